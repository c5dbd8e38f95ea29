"""Shakespeare's roles for a small language model: those of one half pretrain it, and those of the other are clients."""

from typing import Any, Literal

import torch

from pfl_lightning.data import LabelledData, Shakespeare
from pfl_lightning.data.datasets.shakespeare import LETTERS, read_roles

LENGTH = 64  # characters


class Roles(Shakespeare):
    """The next character at each step of the texts of Shakespeare's roles, which are cut into pieces of 64 characters.

    A role has the same half in every run.

    Args:
        half: Which roles, ``pretraining`` or ``clients``.
        kwargs: See ``FederatedDataModule``.
    """

    def __init__(self, half: Literal["pretraining", "clients"], **kwargs: Any) -> None:
        super().__init__(text="raw", targets="all", **kwargs)
        self.half = half
        self.input_shape = (LENGTH, len(LETTERS))
        self.overlap = 0  # pieces have no target in common, so they are held out at random

    def load(self) -> tuple[LabelledData, None]:
        """Read the complete works."""
        texts = read_roles(self._raw_file().read_text(encoding="utf-8", errors="replace"))
        users = [user for user in sorted(texts) if len(texts[user]) > LENGTH]
        users = users[self.half == "clients" :: 2]
        # pieces of 65 characters, the last of which is the first of the next piece, [pieces, 65]
        pieces = [torch.tensor(list(map(token, texts[user]))).unfold(0, LENGTH + 1, LENGTH) for user in users]
        counts = torch.tensor(list(map(len, pieces)))
        rows = torch.cat(pieces)
        owners = torch.arange(len(users)).repeat_interleave(counts)
        return LabelledData(rows[:, :-1].to(torch.uint8), rows[:, 1:].short(), owners), None


def token(character: str) -> int:
    """The place of a character in the alphabet; other characters are spaces."""
    return max(LETTERS.find(character), 0)
