import csv
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.client.examples import Transform
from pfl_lightning.data.cache import cached
from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.datasets.leaf import leaf_files, read_leaf
from pfl_lightning.data.download import Remote, find_or_fetch
from pfl_lightning.data.labelled import LabelledData, whole_numbers
from pfl_lightning.data.partitions.users import NaturalUsers
from pfl_lightning.data.reading import reading
from pfl_lightning.data.text import Texts, basic_english, glove_file, read_glove, vocabulary, words_and_marks
from pfl_lightning.data.transforms import Numbers, Tokens, TokenVectors
from pfl_lightning.errors import PflError
from pfl_lightning.paths import expand_home
from pfl_lightning.seeding import seed_of

LEAF = (
    "make them with LEAF (github.com/TalwalkarLab/leaf) by ./preprocess.sh in its data/sent140, with the options -s "
    "niid --sf 0.3 -k 80 -t sample for SRPFL or -s niid --sf 1.0 -k 50 -t user --tf 0.5 for Delta-FL, and copy its "
    "folder data there; or set data.source to csv"
)
CSV = "training.1600000.processed.noemoticon.csv"
ARCHIVE = Remote(
    urls=(
        "https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
        "https://zenodo.org/records/11116734/files/trainingandtestdata.zip?download=1",
    ),
    name="trainingandtestdata.zip",
    digest="004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
)
LABELS = {"0": 0, "4": 1}

# as SRPFL's code, except 48: of 40,073 real tweets 13 are longer
FEWEST_TOKENS = 5
LONGEST = 48
WORDS = 10_000
LONGEST_VECTORS = 20  # as Delta-FL (arXiv:2002.11223)
NO_TWEET = re.compile(r"https?://t\.co/\w+|@\w+")


Tweet = tuple[str, str, int, bool]  # its user, its text, its label (1 positive, 0 negative), whether it is for training


class Sent140(FederatedDataModule):
    """Sentiment140: 1,600,000 tweets of 660,000 users, negative or positive.

    ``tokens`` are SRPFL's: without t.co links and mentions, in lower case, numbers in a vocabulary of padding, unknown
    and the 10,000 most frequent words of the training tweets (of all tweets where there is no test split). Tweets with
    fewer than 5 tokens are left out, and so are tokens after the 48th, which 3 in 10,000 tweets have. The network's
    embedding starts with GloVe's vectors; padding and unknown are zero, a word without a vector is N(0, 1).

    ``vectors`` are Delta-FL's: GloVe's of the first 20 words and marks, zero for unknown ones and after the end.
    Their code keeps capitals, so words with them are unknown. ``mean`` is the mean over all words and marks.

    Paper: Go et al., "Twitter Sentiment Classification using Distant Supervision", technical report, Stanford, 2009;
    users as in LEAF, arXiv:1812.01097; used by SRPFL, arXiv:2206.02078, and Delta-FL, arXiv:2002.11223.

    Differs: torchtext's basic_english tokens where SRPFL's code has spaCy's. A partition's smallest number of samples
    counts the tweets that are kept, where LEAF's counts all of a user's.

    Differs: ``mean_ratio`` takes the mean over all tweets, not separately over training and test users.

    Args:
        source: ``leaf`` reads LEAF's JSON files with their split of each user's tweets; if it has split the users, all
            tweets are one split, for ``test_clients``. ``csv`` reads the original table, which has no split.
        text: Inputs of the network: ``tokens`` (SRPFL), word ``vectors``, or their ``mean`` (Delta-FL).
        normalize: ``mean_ratio`` turns every feature x of ``mean`` into x / mean - 1, as Delta-FL's code does.
        glove_dim: Length of GloVe's vectors: 100 for SRPFL, 50 for Delta-FL.
        glove_root: Folder that contains ``glove.6B.<glove_dim>d.txt``, itself or in ``glove``. Default: ``root``.
        kwargs: See ``FederatedDataModule``.

    Raises:
        PflError: If ``normalize`` does not go with ``text``.
    """

    num_classes = 2
    usual_partition = NaturalUsers

    def __init__(
        self,
        source: Literal["leaf", "csv"] = "leaf",
        text: Literal["tokens", "vectors", "mean"] = "tokens",
        normalize: Literal["none", "mean_ratio"] = "none",
        glove_dim: Literal[50, 100] = 100,
        glove_root: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if normalize != "none" and text != "mean":
            raise PflError(f"data.normalize must be none with data.text {text}, got {normalize}")
        self.source = source
        self.text = text
        self.normalize = normalize
        self.input_kind = "padded tokens" if text == "tokens" else "numbers"
        self.glove_dim = glove_dim
        self.glove_folder = Path(self.root) if glove_root is None else expand_home(glove_root, "data.glove_root")

    def prepare_data(self) -> None:
        """Download GloVe's vectors, and the table if that is the source, unless they are there.

        Raises:
            PflError: If that fails, or LEAF's files are missing.
        """
        self._tweets()
        glove_file(self.glove_folder, self.glove_dim)

    def load(self) -> tuple[LabelledData, LabelledData | None]:
        """Read the tweets, slowly the first time, and make numbers of them.

        Raises:
            PflError: If files are missing or cannot be read, or there are no tweets.
        """
        glove = glove_file(self.glove_folder, self.glove_dim)
        tensors = self._read()
        texts = Texts(tensors["tokens"], tensors["lengths"], tensors["words"])
        users = tensors["users"]
        training = tensors["training"]
        if not torch.isin(users[~training], users[training]).any():  # LEAF has split the users
            training = torch.ones_like(training)
        is_long = texts.lengths >= (FEWEST_TOKENS if self.text == "tokens" else 0)
        if not (is_long & training).any():
            raise PflError(f"data.root: no tweets to train on in '{self.root}'")
        texts = texts.keep(is_long)
        training = training[is_long]
        inputs = self._tokens(texts, training, glove) if self.text == "tokens" else self._vectors(texts, glove)
        samples = LabelledData(inputs, tensors["targets"][is_long], users[is_long])
        return samples.take(training), None if training.all() else samples.take(~training)

    def transform(self) -> Transform:
        """Tokens as numbers or as vectors, or mean vectors as they are."""
        if self.text == "tokens":
            return Tokens()
        return TokenVectors(self.vectors) if self.text == "vectors" else Numbers()

    def pretrained(self) -> dict[str, Tensor]:
        """GloVe's vectors for an embedding of tokens; always the same random ones for words that it does not know."""
        return {"embedding.weight": self.embedding} if self.text == "tokens" else {}

    def _tweets(self) -> tuple[list[Path], Iterator[Tweet]]:
        """LEAF's files, or the original table, which is downloaded if it is missing; and their tweets, yet to read."""
        root = Path(self.root)
        if self.source == "leaf":
            splits = leaf_files(root, LEAF)
            return [*chain(*splits)], _leaf_tweets(splits)
        folders = (root, root / "data" / "raw_data")
        path = find_or_fetch([folder / name for name in (CSV, "training.csv") for folder in folders], ARCHIVE, CSV)
        return [path], _csv_tweets(path)

    def _read(self) -> dict[str, Any]:
        """The tweets as ``_parse`` gives them."""
        files, tweets = self._tweets()
        kind, tokenize = ("tokens", _srpfl_tokens()) if self.text == "tokens" else ("words", words_and_marks)
        name = f"sent140-{self.source}-{kind}"
        with reading(Path(self.root), "create its files again"):
            return cached(lambda: _parse(tweets, tokenize), files, Path(self.root), name, version=1)

    def _tokens(self, texts: Texts, training: Tensor, glove: Path) -> Tensor:
        """Numbers in the vocabulary of the training tweets, ``[tweets, length]``."""
        self.vocabulary = vocabulary(texts.keep(training).counts(), WORDS)
        self.input_shape = (min(LONGEST, int(texts.lengths.max())), len(self.vocabulary))
        self.embedding = self._embedding(glove)
        return texts.renumber(self.vocabulary, unknown=1).padded(self.input_shape[0])

    def _embedding(self, glove: Path) -> Tensor:
        """A vector for each word of the vocabulary, ``[words, glove_dim]``."""
        random = torch.Generator().manual_seed(seed_of("words without a vector"))
        weight = torch.randn(len(self.vocabulary), self.glove_dim, generator=random)
        weight[:2] = 0
        vectors = read_glove(glove, self.vocabulary[2:], self.glove_dim)
        for place, word in enumerate(self.vocabulary):
            if word in vectors:
                weight[place] = torch.from_numpy(vectors[word])
        return weight

    def _vectors(self, texts: Texts, glove: Path) -> Tensor:
        """Numbers in a table of vectors, ``[tweets, length]``, or mean vectors, ``[tweets, glove_dim]``."""
        vectors = read_glove(glove, texts.words, self.glove_dim)
        self.vectors = torch.from_numpy(np.stack([np.zeros(self.glove_dim, dtype=np.float32), *vectors.values()]))
        texts = texts.renumber(["", *vectors], unknown=0)
        if self.text == "vectors":
            self.input_shape = (LONGEST_VECTORS, self.glove_dim)
            return texts.padded(LONGEST_VECTORS)
        self.input_shape = (self.glove_dim,)
        starts = (texts.lengths.cumsum(0) - texts.lengths).int()
        means = F.embedding_bag(texts.tokens, self.vectors, starts, mode="mean")
        return means / means.mean(0) - 1 if self.normalize == "mean_ratio" else means


def _parse(tweets: Iterable[Tweet], tokenize: Callable[[str], list[str]]) -> dict[str, Any]:
    """``Texts``, and their users, targets and whether they are for training, ``[tweets]`` each."""
    users, texts, targets, training = zip(*tweets, strict=True)
    return {
        **Texts.of(map(tokenize, texts))._asdict(),
        "users": torch.from_numpy(np.unique(users, return_inverse=True)[1]),
        "targets": torch.tensor(targets, dtype=torch.int64),
        "training": torch.tensor(training),
    }


def _srpfl_tokens() -> Callable[[str], list[str]]:
    tokenize = basic_english()
    return lambda text: tokenize(NO_TWEET.sub("", text))


def _leaf_tweets(splits: list[list[Path]]) -> Iterator[Tweet]:
    """Tweets of LEAF's files; those of the first split are for training."""
    for files in splits:
        for user, (texts, targets) in read_leaf(files, _texts):
            for text, target in zip(texts, targets, strict=True):
                yield user, text, target, files is splits[0]


def _texts(inputs: list[Any], targets: list[int]) -> tuple[list[str], list[int]]:
    """Texts and targets of LEAF's samples."""
    return [text for _, _, _, _, text, _ in inputs], whole_numbers(targets).tolist()


def _csv_tweets(path: Path) -> Iterator[Tweet]:
    """Tweets of the original table; all of them are for training."""
    with reading(path, "unzip it again"), path.open(encoding="iso-8859-1", newline="") as file:
        for label, _, _, _, user, text in csv.reader(file, strict=True):
            yield user, text, LABELS[label], True
