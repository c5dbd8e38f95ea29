import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class RoundCsv:
    """A CSV file with the round in its first column, complete on disk after every write.

    Writing a round replaces the rows of that round and of later ones, so a resumed run continues the existing file.

    Args:
        path: The file.
        first: Names of the columns after the round; other columns follow in the order in which they first appear.
    """

    def __init__(self, path: Path, first: Sequence[str] = ()) -> None:
        self.path = path
        self.columns = ["round", *first]
        self.round: int | None = None

    def write(self, round_index: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of a round.

        Args:
            round_index: Rounds completed.
            rows: Values by column, without the round.
        """
        columns = list(dict.fromkeys([*self.columns, *(name for row in rows for name in row)]))
        if self.round is None or round_index <= self.round or columns != self.columns:
            self._restart(round_index, columns)
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns).writerows({"round": round_index, **row} for row in rows)
        self.round = round_index

    def _restart(self, round_index: int, columns: list[str]) -> None:
        """Rewrite the file with the earlier rounds only, with its old columns and these."""
        earlier: list[dict[str, str]] = []
        if self.path.is_file():
            with self.path.open(newline="") as file:
                reader = csv.DictReader(file)
                columns = list(dict.fromkeys([*(reader.fieldnames or []), *columns]))
                earlier = [row for row in reader if None not in row.values() and int(row["round"]) < round_index]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(earlier)
        os.replace(temporary, self.path)
        self.columns = columns
