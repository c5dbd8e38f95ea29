"""Sentiment140 as texts, for the tokenizer of a pretrained network."""

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.data import OwnData, RawData
from pfl_lightning.data.datasets.sent140 import CSV
from pfl_lightning.data.reading import reading

FILES = ("training.csv", CSV)


class TweetTexts(OwnData):
    """The tweets of Sentiment140's table, which is anywhere below ``root``, and their users.

    Args:
        least: Users with fewer tweets are left out.
        kwargs: See ``OwnData``.
    """

    def __init__(self, least: PositiveInt = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.least = least

    def read(self) -> Sequence[RawData]:
        """Read the table, which has no split."""
        path = next((path for name in FILES for path in Path(self.root).rglob(name)), Path(self.root) / CSV)
        with reading(path, "unzip it again"), path.open(encoding="iso-8859-1", newline="") as file:
            tweets = [(text, label, user) for label, _, _, _, user, text in csv.reader(file, strict=True)]
        counts = Counter(user for _, _, user in tweets)
        texts, labels, users = zip(*(tweet for tweet in tweets if counts[tweet[2]] >= self.least), strict=True)
        return [RawData(texts, labels, users)]
