"""What happens if every test client picks the curve whose model has the smallest loss on its own samples.

A Delta-FL client cannot measure its conformity, so it tries the models (arXiv:2002.11223). It chooses on samples of the
split ``choice``; what its choice is worth is seen on its test samples, which are others.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pfl_lightning.report.compare_curves import Curves
from pfl_lightning.report.measures import TEST, common_seeds, reference_of
from pfl_lightning.report.run_files import Floats
from pfl_lightning.report.tables import OVER_SEEDS, Table, over_seeds, seeds_markdown
from pfl_lightning.score_kind import ScoreKind

if TYPE_CHECKING:
    import pandas as pd

OWN = "clients' own choice"
ORACLE = "best in hindsight (oracle: chosen on test)"
SHOWN = ("mean", "p90")
EDGES = (0, 25, 50, 75, 90, 100)  # percentiles of the reference's errors, between the groups
SHARE = ScoreKind("share", higher_is_better=True, scale=100, unit=" (%)", digits=0)


class Choice(NamedTuple):
    """The curves that clients pick.

    Attributes:
        curves: The curves to choose from.
        seeds: Seeds that all curves have; clients choose among models of the same seed.
        outcomes: Test error, or loss: a row for each seed and client; a column for each curve, for the clients' own
            choice and for the best.
        picked: Whether the clients pick a curve, a column for each.
        percentiles: The group of percentiles of each client's error under the reference, such as ``0-25``.
    """

    curves: Curves
    seeds: Sequence[int]
    outcomes: "pd.DataFrame"
    picked: "pd.DataFrame"
    percentiles: "pd.Series"

    def errors(self, label: str) -> list[Floats]:
        """A column of ``outcomes``, ``[clients]`` for each seed."""
        return [errors.to_numpy() for _, errors in self.outcomes[label].groupby("seed")]

    @property
    def groups(self) -> list[str]:
        """The groups of percentiles that have clients."""
        return list(self.percentiles.cat.remove_unused_categories().cat.categories)

    def shares(self, label: str) -> dict[str, Floats]:
        """By group, the share of its clients that pick a curve, ``[seeds]``."""
        shares = self.picked[label].groupby([self.percentiles, "seed"], observed=True).mean()
        return {name: shares[name].to_numpy() for name in self.groups}


def can_choose(curves: Curves) -> bool:
    """Whether there are several curves, each evaluated on samples for choosing."""
    return len(curves) > 1 and all(curve.evaluates("choice") for curve in curves)


def choice_of(curves: Curves) -> Choice:
    """Let the clients choose; of equal losses they take the earlier curve.

    Args:
        curves: Curves on the same data, with ``can_choose`` and a common seed.

    Returns:
        The choices of the clients that have samples for choosing and test samples, in the models after the last round.
    """
    import pandas as pd

    losses, errors = _final(curves, "loss", "choice").align(_final(curves, "error", "test"), join="inner", axis=0)
    picks = losses.fillna(np.inf).to_numpy().argmin(axis=1)
    picked = pd.DataFrame(picks[:, None] == np.arange(len(curves)), errors.index, errors.columns)
    reference = errors[reference_of(curves).label].groupby("seed")
    percentiles = 100 * (reference.rank(method="first", na_option="bottom") - 0.5) / reference.transform("size")
    names = [f"{low}-{high}" for low, high in pairwise(EDGES)]
    return Choice(
        curves,
        common_seeds(curves),
        errors.assign(**{OWN: errors.where(picked).max(axis=1), ORACLE: errors.min(axis=1, skipna=False)}),
        picked,
        pd.cut(percentiles, EDGES, right=False, labels=names),
    )


def _final(curves: Curves, column: str, split: str) -> "pd.DataFrame":
    """What clients got at the last evaluation: a row for each common seed and client, a column for each curve."""
    import pandas as pd

    clients = {
        (curve.label, run.seed): rows.set_index("client")[column]
        for curve in curves
        for run, rows in zip(curve.runs, curve.results(split), strict=True)
    }
    table = pd.concat(clients, names=["method", "seed"]).unstack("method")
    return table.loc[common_seeds(curves), [curve.label for curve in curves]]


def choice_tables(choice: Choice) -> tuple[Table, Table]:
    """What the clients' own choice is worth, and which curve serves whom.

    Returns:
        Mean and p90 of the test errors under each curve, under the clients' own choice and in hindsight; and the share
        of the clients of each group that pick each curve.
    """
    score_kind = choice.curves[0].score_kind
    errors = [
        {"method": label, "seeds": len(choice.seeds)}
        | over_seeds({name: map(TEST[name], choice.errors(label)) for name in SHOWN})
        for label in choice.outcomes
    ]
    picks = [{"method": curve.label} | over_seeds(choice.shares(curve.label)) for curve in choice.curves]
    errors_title = (
        f"Clients' test {score_kind.error_label} if each picks the model with the smallest loss on its "
        f"choice samples, {OVER_SEEDS}"
    )
    picks_title = (
        f"Who picks which model{SHARE.unit}, by the percentile of the client's {score_kind.error_name} under "
        f"{reference_of(choice.curves).label}, {OVER_SEEDS}"
    )
    seeds = {run.seed for curve in choice.curves for run in curve.runs}
    left_out = ", ".join(map(str, sorted(seeds - {*choice.seeds})))
    note = f"\nSeeds that not all curves have are left out: {left_out}\n" if left_out else ""
    return (
        Table("choice", errors, seeds_markdown(errors_title, errors, SHOWN, score_kind) + note),
        Table("choice_groups", picks, seeds_markdown(picks_title, picks, choice.groups, SHARE) + note),
    )
