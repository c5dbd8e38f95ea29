"""What happens if every test client picks the curve whose model has the smallest loss on its own samples.

A Delta-FL client cannot measure its conformity, so it tries the models (arXiv:2002.11223). It chooses on samples of the
split ``choice``; what its choice is worth is seen on its test samples, which are others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.report.compare_curves import Curves
from pfl_lightning.report.measures import TEST, common_seeds, reference_of
from pfl_lightning.report.run_files import Clients, Floats, Ints
from pfl_lightning.report.tables import OVER_SEEDS, Table, over_seeds, seeds_markdown
from pfl_lightning.score_kind import ScoreKind

OWN = "clients' own choice"
ORACLE = "best in hindsight (oracle: chosen on test)"
SHOWN = ("mean", "p90")
EDGES = (0, 25, 50, 75, 90, 100)  # percentiles of the reference's errors, between the groups
SHARE = ScoreKind("share", higher_is_better=True, scale=100, unit=" (%)", digits=0)


@dataclass(frozen=True, eq=False)
class Choice:
    """The curves that clients pick.

    Attributes:
        curves: The curves to choose from.
        seeds: Seeds that all curves have; clients choose among models of the same seed.
        errors: Test error, or loss, of each client under each curve, ``[curves, seeds, clients]``.
        picks: Index of the curve that each client picks, ``[seeds, clients]``.
    """

    curves: Curves
    seeds: Sequence[int]
    errors: Floats
    picks: Ints

    @property
    def left_out(self) -> list[int]:
        """Seeds that only some of the curves have."""
        return sorted({seed for curve in self.curves for seed in curve.seeds} - set(self.seeds))

    @property
    def outcomes(self) -> dict[str, Floats]:
        """Errors under each fixed curve, under the clients' own choice and under the best, ``[seeds, clients]``."""
        outcomes = {curve.label: errors for curve, errors in zip(self.curves, self.errors, strict=True)}
        outcomes[OWN] = np.take_along_axis(self.errors, self.picks[None], axis=0)[0]
        outcomes[ORACLE] = self.errors.min(axis=0)
        return outcomes

    @property
    def groups(self) -> dict[str, NDArray[np.bool_]]:
        """Who belongs to each group of percentiles of the error under the reference, ``[seeds, clients]``."""
        reference = self.errors[list(self.curves).index(reference_of(self.curves))]
        ranks = reference.argsort(axis=1, kind="stable").argsort(axis=1)
        percentiles = 100 * (ranks + 0.5) / reference.shape[1]
        members = {f"{low}-{high}": (low <= percentiles) & (percentiles < high) for low, high in pairwise(EDGES)}
        return {name: inside for name, inside in members.items() if inside.any()}

    @property
    def shares(self) -> list[dict[str, Floats]]:
        """By curve and group, the share of the group's clients that pick the curve, ``[seeds]``."""
        return [
            {name: ((self.picks == index) & group).sum(1) / group.sum(1) for name, group in self.groups.items()}
            for index in range(len(self.curves))
        ]


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
    seeds = common_seeds(curves)
    results = [
        [
            _loss_and_error(tried, test, curve.score_kind)
            for run, tried, test in zip(curve.runs, curve.final("choice"), curve.final("test"), strict=True)
            if run.seed in seeds
        ]
        for curve in curves
    ]
    losses, errors = np.moveaxis(np.array(results), 2, 0)
    return Choice(curves, seeds, errors, np.nan_to_num(losses, nan=np.inf).argmin(axis=0))


def choice_tables(choice: Choice) -> tuple[Table, Table]:
    """What the clients' own choice is worth, and which curve serves whom.

    Returns:
        Mean and p90 of the test errors under each curve, under the clients' own choice and in hindsight; and the share
        of the clients of each group that pick each curve.
    """
    score_kind = choice.curves[0].score_kind
    errors = [
        {"method": label, "seeds": len(seeds)} | over_seeds({name: map(TEST[name], seeds) for name in SHOWN})
        for label, seeds in choice.outcomes.items()
    ]
    picks = [
        {"method": curve.label} | over_seeds(shares) for curve, shares in zip(choice.curves, choice.shares, strict=True)
    ]
    errors_title = (
        f"Clients' test {score_kind.error_label} if each picks the model with the smallest loss on its "
        f"choice samples, {OVER_SEEDS}"
    )
    picks_title = (
        f"Who picks which model{SHARE.unit}, by the percentile of the client's {score_kind.error_name} under "
        f"{reference_of(choice.curves).label}, {OVER_SEEDS}"
    )
    left_out = ", ".join(map(str, choice.left_out))
    note = f"\nSeeds that not all curves have are left out: {left_out}\n" if left_out else ""
    return (
        Table("choice", errors, seeds_markdown(errors_title, errors, SHOWN, score_kind) + note),
        Table("choice_groups", picks, seeds_markdown(picks_title, picks, choice.groups, SHARE) + note),
    )


def _loss_and_error(tried: Clients, test: Clients, score_kind: ScoreKind) -> tuple[Floats, Floats]:
    """Loss on the samples for choosing, and test error, of the clients that have both kinds of samples."""
    _, in_tried, in_test = np.intersect1d(tried.ids, test.ids, return_indices=True)
    return tried.loss[in_tried], score_kind.errors(test.scores(score_kind))[in_test]
