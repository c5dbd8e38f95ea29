"""Shakespeare's roles for a small language model: those of one half pretrain it, and those of the other are clients."""

from pathlib import Path
from typing import Any, Literal

import torch

from pfl_lightning.data import FederatedDataModule, LabelledData
from pfl_lightning.data.datasets.shakespeare import LETTERS, RAW_PLACES, read_roles
from pfl_lightning.data.partitions.users import NaturalUsers
from pfl_lightning.data.reading import reading
from pfl_lightning.data.transforms import Tokens
from pfl_lightning.tasks import NextToken, Task

LENGTH = 64  # characters


class Roles(FederatedDataModule):
    """The next character at each step of the texts of Shakespeare's roles, which are cut into pieces of 64 characters.

    Roles and alphabet are those of ``Shakespeare``. A role has the same half in every run.

    Args:
        half: Which roles, ``pretraining`` or ``clients``.
        kwargs: See ``FederatedDataModule``.
    """

    usual_partition = NaturalUsers
    input_kind = "tokens"
    num_classes = len(LETTERS)
    input_shape = (LENGTH, len(LETTERS))

    def __init__(self, half: Literal["pretraining", "clients"], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.half = half

    @property
    def task(self) -> Task:
        """The next token at every step."""
        return NextToken().sized(self.num_classes)

    def load(self) -> tuple[LabelledData, None]:
        """Read the complete works."""
        path = Path(self.root) / RAW_PLACES[0]
        with reading(path, "put the text of the data set Shakespeare there"):
            texts = read_roles(path.read_text(encoding="utf-8", errors="replace"))
        users = [user for user in sorted(texts) if len(texts[user]) > LENGTH]
        users = users[self.half == "clients" :: 2]
        # pieces of 65 characters, the last of which is the first of the next piece, [pieces, 65]
        pieces = [torch.tensor(list(map(token, texts[user]))).unfold(0, LENGTH + 1, LENGTH) for user in users]
        counts = torch.tensor(list(map(len, pieces)))
        rows = torch.cat(pieces)
        owners = torch.arange(len(users)).repeat_interleave(counts)
        return LabelledData(rows[:, :-1].to(torch.uint8), rows[:, 1:].short(), owners), None

    def transform(self) -> Tokens:
        """Characters as numbers."""
        return Tokens()


def token(character: str) -> int:
    """The place of a character in the alphabet; other characters are spaces."""
    return max(LETTERS.find(character), 0)
