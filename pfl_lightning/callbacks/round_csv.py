import csv
import io
import os
import warnings
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any

import lightning.pytorch as pl

from pfl_lightning import files
from pfl_lightning.callbacks.evaluation import is_extra
from pfl_lightning.callbacks.run_folder import continues
from pfl_lightning.errors import PflError


class RoundCsv:
    """A CSV file with the round in its first column, in the order of the rounds.

    Rows are appended, and only those of the last round are replaced, in place: a round costs the same after any number
    of rounds. Only a new column costs a copy of the file. What is written is on disk after ``sync``, and outlives a
    kill of the process before that.

    Args:
        path: The file; one that is there is continued.
        first: Names of the columns after the round; other columns follow in the order in which they first appear.

    Attributes:
        round: The last round in the file, as far as this object has read or written it.
    """

    def __init__(self, path: Path, first: Sequence[str] = ()) -> None:
        self.path = path
        self.columns = ["round", *first]
        self.round: int | None = None
        self._start = 0  # bytes before the rows of the last round
        self._end = 0  # bytes up to the end of these rows

    def read(self, rounds: int) -> None:
        """Find the end of some rounds; what a kill has left of a line at the end of the file does not count.

        Args:
            rounds: The last round that counts.

        Raises:
            PflError: If the file is no such table, or damaged before its end.
        """
        self.round = None
        self._start = self._end = damaged = 0
        if self._size() == 0:
            return
        with self.path.open("rb") as file:
            self.columns = _cells(header := file.readline())
            if self.columns[:1] != ["round"]:
                raise self._damage(1)
            self._end = len(header)
            for number, line in enumerate(file, start=2):
                cells = _cells(line)
                is_row = len(cells) == len(self.columns) and cells[0].isdecimal()
                index = int(cells[0]) if is_row else None
                if index is None or index < (self.round or 0):
                    damaged = damaged or number
                elif index > rounds:
                    break
                elif damaged:
                    raise self._damage(damaged)
                else:
                    if index != self.round:
                        self._start = self._end
                    self.round = index
                    self._end += len(line)

    def cut(self, rounds: int) -> None:
        """Remove what is in the file after some rounds.

        Args:
            rounds: The last round to keep.

        Raises:
            PflError: If the file is no such table, or damaged before its end.
        """
        self.read(rounds)
        if self._size() > self._end:
            os.truncate(self.path, self._end)

    def write(self, round_index: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of a round in place of those that the file has of this round and of later ones.

        Args:
            round_index: Rounds completed.
            rows: Values by column, without the round.

        Raises:
            PflError: If the file that is there is no such table.
        """
        if self.round is None or round_index < self.round or self._size() != self._end:
            self.cut(round_index - 1)
        start = self._start if round_index == self.round else self._end
        columns = columns_of(rows, self.columns)
        if columns != self.columns or start == 0:
            start = self._widen(columns, start)
        with self.path.open("r+b") as file:
            file.seek(start)
            file.write(csv_text(columns, [{"round": round_index, **row} for row in rows]).encode())
            file.truncate()
            self._end = file.tell()
        self._start = start
        self.round = round_index

    def numbers(self) -> dict[str, float]:
        """The numbers of the last round in the file, by column; of its first row if it has several."""
        if self.round is None:
            return {}
        with self.path.open("rb") as file:
            file.seek(self._start)
            cells = dict(zip(self.columns[1:], _cells(file.readline())[1:], strict=True))
        return {name: float(cell) for name, cell in cells.items() if cell}

    def sync(self) -> None:
        """Return when all that is written is on disk."""
        if self._size():
            with self.path.open("r+b") as file:
                os.fsync(file.fileno())

    def _widen(self, columns: list[str], end: int) -> int:
        """Copy the file up to a byte, or start it, with these columns; returns the number of bytes."""
        blank = "," * (len(columns) - len(self.columns))
        lines = self.path.read_bytes()[:end].splitlines()[1:] if end else []
        text = csv_text(columns, [], header=True) + "".join(f"{line.decode()}{blank}\r\n" for line in lines)
        files.write_text(text, self.path)
        self.columns = columns
        return len(text.encode())

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _damage(self, line: int) -> PflError:
        return PflError(f"'{self.path}': line {line} is damaged; restore the table of this run, or remove the file")


def columns_of(rows: Sequence[Mapping[str, Any]], first: Sequence[str] = ("round",)) -> list[str]:
    """Some columns, and those of the rows in the order in which they first appear."""
    return list(dict.fromkeys([*first, *chain.from_iterable(rows)]))


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], header: bool = False) -> str:
    """The lines of some rows, after one of the columns if there is to be a header."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cells(line: bytes) -> list[str]:
    """The cells of a whole line; none if it was cut off or is no text."""
    try:
        return next(csv.reader([line.decode()]), []) if line.endswith(b"\n") and b"\0" not in line else []
    except (UnicodeDecodeError, csv.Error):
        return []


class RunTable(pl.Callback):
    """Keeps a table of a run in step with its checkpoints.

    A checkpoint is only saved when the rows of its rounds are on disk. A run that resumes continues the table from the
    checkpoint's round, without an evaluation that a longer run does not have.

    Attributes:
        file: Name of the file.
        csv: The table; None where none is written.
    """

    file: str
    csv: RoundCsv | None = None
    last_saved: int | None = None  # the last round of the table when the checkpoint was saved

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Read where the table ended when the checkpoint was saved.

        Raises:
            TypeError: If that is no round.
        """
        self.last_saved = checkpoint.get("tables", {}).get(self.file)
        if type(self.last_saved) not in (int, NoneType):
            raise TypeError(f"tables.{self.file} must be a round, got {self.last_saved!r}")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Continue the table of a resumed run; all processes must call ``continues`` together."""
        if continues(trainer) and self.csv is not None and trainer.is_global_zero:
            self.continue_table(trainer, self.csv)

    def continue_table(self, trainer: pl.Trainer, table: RoundCsv) -> None:
        """Cut the table at the checkpoint's round."""
        table.cut(trainer.global_step)
        if is_extra(trainer):
            table.cut(trainer.global_step - 1)
        elif self.last_saved is not None and (table.round is None or table.round < self.last_saved):
            state = "is empty" if table.round is None else f"ends with round {table.round}"
            missing = f"had round {self.last_saved} when the checkpoint was saved"
            warnings.warn(f"'{table.path}' {state}, but {missing}", stacklevel=2)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Have the table on disk before the checkpoint."""
        if self.csv is not None and trainer.is_global_zero:
            self.csv.sync()
            checkpoint.setdefault("tables", {})[self.file] = self.csv.round
