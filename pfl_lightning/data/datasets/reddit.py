from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from pfl_lightning.data.cache import cached
from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.datasets.leaf import leaf_files, read_leaf
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.partitions.users import NaturalUsers
from pfl_lightning.data.text import Texts, vocabulary
from pfl_lightning.data.transforms import Tokens
from pfl_lightning.tasks import NO_TARGET, NextToken, Task

RECIPE = "download them as data/reddit of LEAF (github.com/TalwalkarLab/leaf) says, and copy its folder data there"
WORDS = 10_000
LEAF_PADDING = "<PAD>"
Chunk = tuple[list[str], list[str], list[bool]]  # words, the word that follows each, and whether that counts


class Reddit(FederatedDataModule):
    """The next word in comments on Reddit of December 2017; every author is a user.

    The files are LEAF's, with its splits; ``val`` is for validation. LEAF has cut comments into pieces of 10 words, and
    each is a sample: numbers ``[10]`` in a vocabulary of padding, unknown and the 10,000 most frequent words of the
    training samples, and the numbers of the words that follow. LEAF's own vocabulary is a pickle, which could run code,
    and is not read.

    Paper: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, arXiv:1812.01097.

    Differs: that the next word is none of the vocabulary is an answer like others; LEAF counts it as wrong.
    """

    usual_partition = NaturalUsers
    input_kind = "padded tokens"

    @property
    def task(self) -> Task:
        """The next token at every step."""
        return NextToken().sized(self.num_classes)

    def load(self) -> tuple[LabelledData, LabelledData | None]:
        """Read LEAF's files, slowly the first time, and make numbers of their words.

        Raises:
            PflError: If they are missing or cannot be read.
        """
        train, *test = leaf_files(Path(self.root), RECIPE)
        val = sorted((train[0].parent.parent / "val").glob("*.json")) if test else []
        splits = [files for files in (train, val, *test) if files]
        content = cached(lambda: _parse(splits), [*chain(*splits)], Path(self.root), "reddit", version=1)
        sizes = content["sizes"].tolist()
        words = Texts(content["words"], content["lengths"], content["names"])
        training = torch.arange(len(words.lengths)) < sizes[0]
        self.vocabulary = vocabulary(words.keep(training).counts(), WORDS)
        self.num_classes = len(self.vocabulary)
        length = int(words.lengths.max())
        self.input_shape = (length, self.num_classes)
        following = words._replace(tokens=content["following"]).renumber(self.vocabulary, unknown=1).padded(length)
        counts = words._replace(tokens=content["counts"]).padded(length) > 0
        samples = LabelledData(
            words.renumber(self.vocabulary, unknown=1).padded(length),
            following.masked_fill(~counts, NO_TARGET),
            content["users"],
        )
        self.own_validation = sizes[1] if val else 0
        if not test:
            return samples, None
        is_test = torch.arange(len(training)) >= len(training) - sizes[-1]
        return samples.take(~is_test), samples.take(is_test)

    def transform(self) -> Tokens:
        """Words as numbers."""
        return Tokens()


def _parse(splits: Sequence[Sequence[Path]]) -> dict[str, Any]:
    """Words of all samples, one split after the other, and how many samples each split has.

    ``words``, ``following`` and ``counts`` are those of all samples, one after the other, ``[words]``; ``lengths`` and
    ``users`` are ``[samples]``.
    """
    chunks: list[Chunk] = []
    users: list[int] = []
    numbers: dict[str, int] = {}
    sizes = []
    for files in splits:
        before = len(chunks)
        for name, found in read_leaf(files, lambda comments, targets: [*_chunks(comments, targets)]):
            chunks += found
            users += [numbers.setdefault(name, len(numbers))] * len(found)
        sizes.append(len(chunks) - before)
    texts = Texts.of(row for words, following, _ in chunks for row in (words, following))
    is_following = torch.arange(len(texts.lengths)) % 2 == 1
    return {
        "words": texts.keep(~is_following).tokens,
        "following": texts.keep(is_following).tokens,
        "counts": torch.tensor([count for *_, counts in chunks for count in counts], dtype=torch.int32),
        "lengths": texts.lengths[~is_following],
        "names": texts.words,
        "users": torch.tensor(users),
        "sizes": torch.tensor(sizes),
    }


def _chunks(comments: Sequence[Any], targets: Sequence[Any]) -> Iterator[Chunk]:
    """The pieces of a user's comments, without padding.

    Raises:
        ValueError: If there is not one target for each word, or words are no text.
    """
    for pieces, target in zip(comments, targets, strict=True):
        for words, following, counts in zip(pieces, target["target_tokens"], target["count_tokens"], strict=True):
            if not len(words) == len(following) == len(counts):
                sizes = f"{len(words)}, {len(following)} and {len(counts)}"
                raise ValueError(f"words, target_tokens and count_tokens must be as many, got {sizes}")
            if kinds := {*map(type, words), *map(type, following)} - {str}:
                raise ValueError(f"words must be text, got {kinds.pop().__name__}")
            length = len([word for word in words if word != LEAF_PADDING])
            if length:
                yield words[:length], following[:length], [bool(count) for count in counts[:length]]
