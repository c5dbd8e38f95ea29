import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pfl_lightning.data.cache import cached
from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.labelled import LabelledData, warn_unless_official
from pfl_lightning.data.partitions.dirichlet import Dirichlet
from pfl_lightning.data.reading import reading
from pfl_lightning.data.text import Texts, basic_english, vocabulary
from pfl_lightning.data.transforms import Tokens
from pfl_lightning.errors import PflError

CLASSES = {"1": "World", "2": "Sports", "3": "Business", "4": "Sci/Tech"}
FILES = ("train.csv", "test.csv")
FOLDER = "ag_news_csv"
ADDRESS = "https://github.com/mhjabreel/CharCnn_Keras/tree/master/data/ag_news_csv"
WORDS, LENGTH = 32_000, 200  # as in PFLlib


class AGNews(FederatedDataModule):
    """AG News: the topic of 127,600 pieces of news, by their title and description.

    The files are ``train.csv`` and ``test.csv``, in ``ag_news_csv`` or in ``root``: class, title and description in
    quotes, without a line of names. An input are the numbers ``[200]`` of the first words and marks, in lower case,
    in a vocabulary of padding, unknown and the 32,000 most frequent ones of the training texts. The classes are World,
    Sports, Business and Sci/Tech. The official test texts are for testing, and nothing says who wrote which.

    Paper: Zhang, Zhao and LeCun, "Character-level Convolutional Networks for Text Classification", NeurIPS 2015,
    arXiv:1509.01626; used by PFLlib, arXiv:2312.04992.

    Differs: PFLlib pools both files, and holds out a quarter of each client's texts (``test_fraction: 0.25``).
    """

    num_classes = 4
    input_kind = "padded tokens"
    usual_partition = Dirichlet

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Read the texts, slowly the first time, and make numbers of them.

        Raises:
            PflError: If files are missing or cannot be read.
        """
        files = [self._file(name) for name in FILES]
        content = cached(lambda: _parse(files), files, Path(self.root), "agnews", version=1)
        texts = Texts(content["tokens"], content["lengths"], content["words"])
        is_training = content["training"]
        self.vocabulary = vocabulary(texts.keep(is_training).counts(), WORDS)
        self.input_shape = (LENGTH, len(self.vocabulary))
        inputs = texts.renumber(self.vocabulary, unknown=1).padded(LENGTH)
        samples = LabelledData(inputs, content["targets"])
        train, test = samples.take(is_training), samples.take(~is_training)
        warn_unless_official(f"AGNews in '{self.root}'", (train, test), (120_000, 7_600))
        return train, test

    def transform(self) -> Tokens:
        """Words as numbers."""
        return Tokens()

    def _file(self, name: str) -> Path:
        for path in (Path(self.root) / FOLDER / name, Path(self.root) / name):
            if path.is_file():
                return path
        raise PflError(
            f"data.root: no AG News in '{self.root}' (looked for {name}, there and in {FOLDER}); download it from "
            f"{ADDRESS}"
        )


def _parse(files: Sequence[Path]) -> dict[str, Any]:
    """``Texts`` of both files, their targets, and whether they are for training, ``[texts]`` each."""
    tokenize = basic_english()
    rows = [(*row, path is files[0]) for path in files for row in _rows(path)]
    targets, texts, training = zip(*rows, strict=True)
    return {
        **Texts.of(map(tokenize, texts))._asdict(),
        "targets": torch.tensor(targets),
        "training": torch.tensor(training),
    }


def _rows(path: Path) -> Iterator[tuple[int, str]]:
    """Class from 0 and text of each row."""
    numbers = {label: number for number, label in enumerate(CLASSES)}
    with reading(path, f"download it again from {ADDRESS}"), path.open(encoding="utf-8", newline="") as file:
        for place, (label, *texts) in enumerate(csv.reader(file, strict=True), start=1):
            if label not in numbers or len(texts) != 2:
                got = f"{label} and {len(texts)} texts in row {place}"
                raise ValueError(f"rows must be a class from 1 to 4 and two texts, got {got}")
            yield numbers[label], " ".join(texts).replace("\\", " ")
