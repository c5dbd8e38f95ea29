"""Tables of runs, as they are read."""

import csv
import time
from pathlib import Path


def read_table(path: str | Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by the names of its columns."""
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def wait_for_round(number: int, run: str | Path, seconds: float = 120) -> None:
    """Wait until a run has logged a round."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rows = read_table(Path(run, "metrics.csv")) if Path(run, "metrics.csv").is_file() else []
        if rows and int(rows[-1]["round"] or 0) >= number:  # a line that is replaced while it is read may have none
            return
        time.sleep(0.02)
    raise TimeoutError(f"round {number} did not come")
