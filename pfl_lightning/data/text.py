"""Texts as numbers: tokens, vocabularies and GloVe vectors. Only this module uses torchtext."""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_lightning.data.download import Remote, find_or_fetch
from pfl_lightning.data.reading import reading

PADDING = "<pad>"  # the first token of a vocabulary
UNKNOWN = "<unk>"  # the second
WORDS_AND_MARKS = re.compile(r"[\w']+|[.,!?;]")

GLOVE = Remote(
    urls=(
        "https://nlp.stanford.edu/data/glove.6B.zip",
        "https://huggingface.co/stanfordnlp/glove/resolve/main/glove.6B.zip",
    ),
    name="glove.6B.zip",
    digest="617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
)


class Texts(NamedTuple):
    """Texts as sequences of word numbers.

    Attributes:
        tokens: The words of all texts, one text after the other, int32 ``[tokens]``.
        lengths: Words of each text, int32 ``[texts]``.
        words: The word of each number.
    """

    tokens: Tensor
    lengths: Tensor
    words: list[str]

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]]) -> "Texts":
        """Number the words of texts in the order in which they appear."""
        numbers: dict[str, int] = {}
        tokens = array("i")
        lengths = array("i")
        for text in texts:
            tokens.extend([numbers.setdefault(word, len(numbers)) for word in text])
            lengths.append(len(text))
        return cls(torch.from_numpy(np.array(tokens)), torch.from_numpy(np.array(lengths)), list(numbers))

    def keep(self, chosen: Tensor) -> "Texts":
        """Only some of the texts, ``[texts]`` bool."""
        return Texts(self.tokens[chosen.repeat_interleave(self.lengths)], self.lengths[chosen], self.words)

    def counts(self) -> dict[str, int]:
        """Number of occurrences of each word in the texts."""
        return dict(zip(self.words, self.tokens.bincount(minlength=len(self.words)).tolist(), strict=True))

    def renumber(self, vocabulary: list[str], unknown: int) -> "Texts":
        """The same texts with the numbers of a vocabulary.

        Args:
            vocabulary: Words; what is at or before the place of the unknown ones is no word.
            unknown: Number of all words that are not in the vocabulary.
        """
        places = {word: place for place, word in enumerate(vocabulary) if place > unknown}
        numbers = torch.tensor([places.get(word, unknown) for word in self.words], dtype=torch.int32)
        return Texts(numbers[self.tokens], self.lengths, vocabulary)

    def padded(self, length: int) -> Tensor:
        """The first words of each text, then 0, in a small integer type, ``[texts, length]``."""
        starts = self.lengths.cumsum(0) - self.lengths
        places = torch.arange(len(self.tokens)) - starts.repeat_interleave(self.lengths)
        dtype = torch.int16 if len(self.words) <= 1 << 15 else torch.int32
        rows = torch.zeros(len(self.lengths), length, dtype=dtype)
        rows[torch.arange(length) < self.lengths[:, None]] = self.tokens[places < length].to(dtype)
        return rows


def basic_english() -> Callable[[str], list[str]]:
    """The tokenizer of torchtext: lower case, marks apart."""
    from torchtext.data.utils import get_tokenizer

    tokenizer: Callable[[str], list[str]] = get_tokenizer("basic_english")
    return tokenizer


def words_and_marks(text: str) -> list[str]:
    """Delta-FL's and LEAF's tokens: words of letters, digits and apostrophes; the marks . , ! ? ; are single tokens."""
    return WORDS_AND_MARKS.findall(text)


def vocabulary(counts: Mapping[str, int], size: int) -> list[str]:
    """Padding, unknown and the most frequent words; of equally frequent ones the first by the alphabet.

    Args:
        counts: How often each word occurs.
        size: How many words, at most.
    """
    from torchtext.vocab import Vocab

    words: list[str] = Vocab(Counter(counts), max_size=size, specials=[PADDING, UNKNOWN]).itos
    return words


def glove_file(folder: Path, dim: int) -> Path:
    """The file with GloVe's vectors of some length, in the folder or in ``glove`` there; downloaded if it is missing.

    Raises:
        PflError: If that fails.
    """
    name = f"glove.6B.{dim}d.txt"
    return find_or_fetch([folder / name, folder / "glove" / name], GLOVE, name, key="data.glove_root")


def read_glove(path: Path, words: Iterable[str], dim: int) -> dict[str, NDArray[np.float32]]:
    """GloVe's vectors of the given words; words that it does not have are left out.

    torchtext's own reader is not used: it takes a minute, keeps a copy that it never compares with the text again, and
    switches the check of certificates off in the whole process.

    Args:
        path: GloVe's text: a word and its numbers in each line.
        words: The words.
        dim: Length of a vector.

    Raises:
        PflError: If a vector cannot be read.
    """
    wanted = {word.encode("utf-8", "surrogatepass"): word for word in words}
    vectors = {}
    with reading(path, "unzip it again", key="data.glove_root"), path.open("rb") as file:
        for line in file:
            word, _, numbers = line.partition(b" ")
            if word in wanted:
                vectors[wanted[word]] = np.array(numbers.split(), dtype=np.float32).reshape(dim)
    return vectors
