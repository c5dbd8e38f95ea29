"""A published table beside ours: the best round on test samples, as they report it, and what it does not say."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from pfl_lightning.report import RunRecord
from pfl_lightning.report.tables import markdown
from reproduction.claims import LEVEL, Claim, Floats, half_width, paired, spread, within
from reproduction.runs import Place, Sweep, found_runs, is_finished, over_all_samples, publish, start

TOLERANCE = 1.0  # points
UNSTEADY = 5.0  # points: a published number that spreads so much says nothing
COLUMNS = ("method", "published", "best round", "last round", "mean client", "worst client")


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        name: Its name in the table.
        method: The method of its runs; rows of one method are of the same runs.
        model: The model that their clients are evaluated by.
        options: What these runs alone are told.
    """

    name: str
    method: str
    model: str
    options: Sequence[str] = ()


FINETUNED = ("--model.eval_epochs=10",)
USUAL_ROWS = (  # of every table: FedAvg, and what published tables leave out
    Row("Local", "local", "stored"),
    Row("FedAvg", "fedavg", "global", FINETUNED),
    Row("FedAvg-FT", "fedavg", "finetuned", FINETUNED),
)


class Published(NamedTuple):
    """What others report.

    Attributes:
        accuracy: Test accuracy over all samples in the best round (%).
        spread: Standard deviation over their trials.
    """

    accuracy: float
    spread: float = 0.0


class Scores(NamedTuple):
    """Test accuracies of the runs of a row in %, ``[seeds]`` each.

    Attributes:
        best: Over all samples, in the best round on them.
        last: Over all samples, after the last round.
        mean: Mean over the clients, after the last round.
        worst: The worst client, after the last round.
    """

    best: Floats
    last: Floats
    mean: Floats
    worst: Floats


Found = Mapping[str, Scores]


def table_claims(place: Place, rows: Sequence[Row], published: Mapping[str, Mapping[str, Published]]) -> list[Claim]:
    """Run the rows of a table, show and write it; at full scale, check that it agrees with what was published.

    Raises:
        SystemExit: If a run fails before its first evaluation.
    """
    runs: dict[str, list[RunRecord | None]] = {}
    for row in rows:
        if row.method not in runs:
            code = start(place, Sweep((row.method,), options=row.options))  # a run that diverges is an answer, too
            runs[row.method] = found_runs(place, row.method)
            if None in runs[row.method]:
                raise SystemExit(code)
    found = {row.name: scores(runs[row.method], row.model) for row in rows}
    publish(place, "table", f"{shown(place, found, published[place.pair])}\n{above_local(found)}")
    write(place.folder / "table.csv", found, place.seeds)
    return list(claims(found, published[place.pair])) if place.scale == "full" else []


def scores(runs: Sequence[RunRecord | None], model: str) -> Scores:
    """The accuracies of a model in the runs of a row, one per seed; nan for a run that ended early."""
    each = [run_scores(run, model) if run and is_finished(run) else [np.nan] * 4 for run in runs]
    return Scores(*(100 * np.array(each).T))


def run_scores(run: RunRecord, model: str) -> list[float]:
    """The same shares of a run."""
    micro = over_all_samples(run, "test", model)
    clients = run.client_scores(model, int(run.rounds[-1]))
    return [max(micro), micro[-1], float(clients.mean()), float(clients.min())]


def write(path: Path, found: Found, seeds: Sequence[int]) -> None:
    """Write the scores of each seed, from which the table can be drawn again."""
    each = [pd.DataFrame(scores._asdict()).assign(method=name, seed=seeds) for name, scores in found.items()]
    pd.concat(each).set_index(["method", "seed"]).to_csv(path, float_format="%.4f")


def read(path: Path) -> Found:
    """The scores in a file of ``write``."""
    rows = pd.read_csv(path).groupby("method", sort=False)
    return {str(name): Scores(*own[list(Scores._fields)].to_numpy().T) for name, own in rows}


def shown(place: Place, found: Found, published: Mapping[str, Published]) -> str:
    """The table; published numbers stand where there are some."""
    rows = [
        [name, published_text(published.get(name)), *(spread(one, nan="ended early") for one in each)]
        for name, each in found.items()
    ]
    seeds = f"{len(place.seeds)} seed{'s' * (len(place.seeds) > 1)}"
    title = (
        f"{place.pair}, {place.scale} scale, {seeds}: test accuracy (%). The best round is chosen on test samples, as "
        "the published ones are; it and the last round are over all samples."
    )
    return markdown(title, list(COLUMNS), rows)


def above_local(found: Found) -> str:
    """How far the others are above Local, by what one round and all clients say."""
    local = found["Local"]
    rows = [
        [name, difference(each.last - local.last), difference(each.mean - local.mean)]
        for name, each in found.items()
        if each is not local
    ]
    title = (
        f"Points above Local: {100 * LEVEL:.0f} % intervals of the paired differences, not corrected for their number."
    )
    return markdown(title, ["method", "last round", "mean client"], rows)


def difference(points: Floats) -> str:
    """The mean of paired differences ``[seeds]`` with half of its interval, of the seeds that have one."""
    known = points[~np.isnan(points)]
    if len(known) < 2:
        return spread(points, nan="ended early")
    seeds = "" if len(known) == len(points) else f" ({len(known)} of {len(points)} seeds)"
    return f"{known.mean():.2f} ± {half_width(known, len(known)):.2f}{seeds}"


def published_text(number: Published | None) -> str:
    """A published number as a text; a dash for none."""
    if number is None:
        return "-"
    return f"{number.accuracy:.2f}" + (f" ± {number.spread:.2f}" if number.spread else "")


def claims(found: Found, published: Mapping[str, Published]) -> Iterator[Claim]:
    """Each row is as near to the published number as a point, or as its standard deviation if that is larger.

    There is none where the published trials differ by so much that any number would agree.
    """
    for name, number in published.items():
        if number.spread > UNSTEADY:
            continue
        best, allowed = found[name].best, max(TOLERANCE, number.spread)
        text, expected = f"{name}: best round (%)", f"{number.accuracy:.2f} ± {allowed:.2f}"
        yield paired(
            text, spread(best, nan="ended early"), expected, *within(best - number.accuracy, allowed)
        )._replace(printed=published_text(number))
