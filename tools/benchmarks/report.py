"""What was measured, as text."""

import statistics
from collections.abc import Iterable, Sequence

import torch

from benchmarks.timing import PEAK_SIZE, Record

COLUMNS = ("workload", "backend", "seconds", "ratio", "spread", "share of peak", "peak MiB")
WAITS = "waits"  # one more column, on a GPU
MEANING = (
    "Ratio: to the plain loop's seconds (of a population: to those of the smallest; beside a library's own command: to "
    "its), the median over the turns. "
    "Share of peak: the plain loop's floating-point operations a second, were they done in this time; work that is "
    "saved, and convolutions, which are no matrix products, can make it more than 100 %. "
    "Peak MiB: what a turn adds to the memory of its process; of populations and of commands, the whole process."
)
ON_GPU = (
    f"Measured until the GPU is done, after turns to warm up that are not counted. {WAITS.capitalize()}: how often the "
    "processor waits for the GPU in a turn, as far as torch notices."
)


def header(records: Sequence[Record], repeats: int, threads: int) -> str:
    """What the numbers of a table mean, and the machine's peak."""
    devices = sorted({row["device"] for row in records if row.get("device", "cpu") != "cpu"})
    rates = [row["peak_gflops"] for row in records if row.get("peak_gflops")]
    product = f"a float32 product of two {PEAK_SIZE} x {PEAK_SIZE} matrices"
    peak = f" Peak: {statistics.median(rates):.0f} GFLOP/s, {product}." if rates else ""
    machine = [f"{repeats} repeats", f"{threads} {'thread' if threads == 1 else 'threads'}", *devices]
    meaning = f"{MEANING} {ON_GPU}" if devices else MEANING
    return f"{', '.join(machine)}, torch {torch.__version__}.{peak}\n{meaning}"


def table(records: Sequence[Record]) -> str:
    """The records as a Markdown table."""
    columns = (*COLUMNS, WAITS) if any(WAITS in row for row in records) else COLUMNS
    return markdown(columns, (cells(row)[: len(columns)] for row in records))


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def cells(row: Record) -> list[str]:
    """One row of the table; a peer that could not be measured has no numbers."""
    names = [row["workload"], row["backend"]]
    if row["seconds"] is None:
        return [*names, "-", "", "", "", "", ""]
    ratio = row.get("ratio_to_smallest", row["ratio_to_plain"])
    return [
        *names,
        f"{row['seconds']:.3f}",
        "" if ratio is None else f"{ratio:.2f}",
        " .. ".join(f"{seconds:.3f}" for seconds in row["spread"]),
        f"{row['peak_share']:.0%}" if row.get("peak_share") is not None else "",
        f"{row['peak_mebibytes']:.0f}" if "peak_mebibytes" in row else "",
        str(sum(row[WAITS].values())) if WAITS in row else "",
    ]


def notes(records: Sequence[Record]) -> str:
    """What the table has no room for, a line each: the memory of populations, peers' versions, places of waits."""
    return "\n".join(filter(None, (note(row) for row in records)))


def note(row: Record) -> str | None:
    """What there is to say about one record."""
    if "reason" in row:
        return f"{row['backend']}: not measured: {row['reason']}"
    if "accuracy" in row:
        outcome = (
            f"test accuracy {row['accuracy']:.1%} after all rounds, {row['whole_seconds']:.0f} s from start to end"
        )
        return f"{row['workload']}, {row['backend']}: {outcome}"
    if "versions" in row:
        versions = ", ".join(f"{package} {version}" for package, version in row["versions"].items())
        return f"{row['backend']}: {versions}; weights within {row['deviation']:.1g} of the update"
    if row.get("more_than_smallest_mebibytes"):
        more = row["more_than_smallest_mebibytes"]
        bank = row["bank_more_than_smallest_mebibytes"]
        return f"{row['workload']} against the smallest: {more:+.0f} MiB in all, {bank:+.0f} MiB of what clients keep"
    if row.get(WAITS) and row["backend"] != "plain":
        places = ", ".join(f"{place} ({times})" for place, times in row[WAITS].items())
        return f"{row['workload']}, {row['backend']}: waits at {places}"
    return None
