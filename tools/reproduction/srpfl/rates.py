"""Learning rates on SRPFL's data: which one validation samples choose, and what makes the papers' 0.1 diverge.

Test samples are not looked at.
"""

import shlex
from collections.abc import Mapping, Sequence
from math import inf, isnan, log, nan
from typing import NamedTuple

import numpy as np

from pfl_lightning.report import RunRecord
from pfl_lightning.report.tables import markdown
from reproduction.claims import Claim, Floats, spread
from reproduction.runs import Place, Sweep, found_runs, is_finished, publish, tried
from reproduction.srpfl.figures import FIGURES, SMALL_FINETUNING, fit_options

RATES = (0.01, 0.03, 0.1)
PAPERS = 0.1
ROUNDS = {"cifar10": 20, "femnist": 20, "fashion_mnist": 10}
# with doubling only the participants differ, so these stand for all methods but HF-MAML; FedAvg finetuned is FedAvg-FT
ROWS = (("fedrep", "finetuned"), ("lg-fedavg", "finetuned"), ("fedavg", "global"), ("fedavg", "finetuned"))
TIED = 1.0  # points of accuracy within which the larger rate is chosen
CHANCE = log(10)  # loss of a model that gives each of the 10 classes the same probability

# of FedRep at the papers' rate. No row for a sum over the 10 samples of a batch: it is their mean at ten times the rate
USUAL = "as it is"
VARIANTS: Mapping[str, str] = {
    USUAL: "",
    "momentum 0": "--model.momentum=0",
    "heads at 0.01": "--model.head_lr=0.01",
    "1 epoch on the heads": "--model.head_epochs=1",
    "batches of 50": "--model.batch_size=50",
    "clipped at norm 1": "--model.clip_norm=1",
}


class Result(NamedTuple):
    """How some runs that differ in their seed have trained.

    Attributes:
        accuracy: Mean accuracy of the clients in % on validation samples after the last round, nan if a run was
            stopped before, ``[seeds]``.
        diverged: First round with a mean training loss above ``CHANCE``, inf for none, ``[seeds]``.
    """

    accuracy: Floats
    diverged: Floats

    @property
    def cells(self) -> tuple[str, str]:
        """Both as texts."""
        first = self.diverged.min()
        return accuracy_text(self.accuracy), f"{first:g}" if first < inf else "-"


def search_rates(place: Place) -> list[Claim]:
    """Train with some rates and in some variants, and publish a table of both for each data set; makes no claims."""
    for data in ROUNDS:
        own = place._replace(pair=data, folder=place.folder / data)
        for variant, sweep in sweeps(data):
            tried(of_variant(own, variant), sweep)
        searched = {row: [result(own, *row, rate) for rate in RATES] for row in ROWS}
        varied = {name: result(own, "fedrep", "finetuned", PAPERS, name) for name in VARIANTS}
        publish(own, "rates", f"{rates_table(data, searched)}\n{variants_table(data, varied)}")
    return []


def sweeps(data: str) -> list[tuple[str, Sweep]]:
    """All runs of a data set, with their variants: a few rounds, a fifth of the training samples for validation."""
    rounds, methods = ROUNDS[data], tuple(dict.fromkeys(method for method, _ in ROWS))
    short = f"--data.val_fraction=0.2 --trainer.max_steps={rounds} --trainer.val_check_interval={rounds}"
    options = shlex.split(f"{short} {SMALL_FINETUNING.get(data, '')}")
    searched = (USUAL, Sweep(methods, {"model.lr": RATES}, options))
    others = {name: shlex.split(own) for name, own in VARIANTS.items() if name != USUAL}
    return [
        searched,
        *((name, Sweep(("fedrep",), {"model.lr": (PAPERS,)}, [*options, *own])) for name, own in others.items()),
    ]


def of_variant(place: Place, variant: str) -> Place:
    """The runs of a variant: those of Figure 3 at small scale, in a folder of their own."""
    panel = next(panel for panel in FIGURES["fig3"].small if panel.data == place.pair)
    options = fit_options("fig3", panel, "small", place.root)
    return place._replace(folder=place.folder / variant.replace(" ", "_"), options=options)


def result(place: Place, method: str, model: str, rate: float, variant: str = USUAL) -> Result:
    """Read some runs.

    Args:
        place: The data set.
        method: The method.
        model: The model that its clients are evaluated by.
        rate: The rate.
        variant: One of ``VARIANTS``.
    """
    runs = found_runs(of_variant(place, variant), Sweep((method,), {"model.lr": (rate,)}).names[0])
    return Result(
        np.array([last_accuracy(run, model, "val") for run in runs]), np.array([first_diverged(run) for run in runs])
    )


def last_accuracy(run: RunRecord | None, model: str, split: str) -> float:
    """Mean accuracy of the clients in % on a split after the last round; nan for a run that was stopped before."""
    if run is None or not is_finished(run):
        return nan
    return float(100 * run.clients[split, model, int(run.rounds[-1])].scores(run.score_kind).mean())


def accuracy_text(accuracy: Floats) -> str:
    """Mean and spread over the seeds; a dash if a run was stopped."""
    return "-" if np.isnan(accuracy).any() else spread(accuracy)


def first_diverged(run: RunRecord | None) -> float:
    """First round with a training loss above that of guessing, or none at all; inf if there is no such round."""
    if run is None:
        return 1.0
    losses = run.logged.get("train/loss", {})  # without one if the first is nan
    rounds = [at for at, loss in losses.items() if not loss <= CHANCE]
    stopped = [] if is_finished(run) else [max(losses, default=0) + 1]
    return float(min(rounds + stopped, default=inf))


def chosen(searched: Sequence[Result]) -> float:
    """The largest rate whose mean accuracy is at most ``TIED`` points below the best, and none of whose runs stopped.

    It is nan if at every rate a run stopped.

    Args:
        searched: Results of ``RATES``.
    """
    means = {rate: found.accuracy.mean() for rate, found in zip(RATES, searched, strict=True)}
    best = max((mean for mean in means.values() if not isnan(mean)), default=nan)
    return max((rate for rate, mean in means.items() if mean >= best - TIED), default=nan)


def rates_table(data: str, searched: Mapping[tuple[str, str], Sequence[Result]]) -> str:
    """Accuracies by method and rate, and the choice."""
    title = f"{data}: validation accuracy (%) after {ROUNDS[data]} rounds by learning rate"
    rows = []
    for row, found in searched.items():
        best = chosen(found)
        rows.append([*row, *(each.cells[0] for each in found), "-" if isnan(best) else f"{best:g}"])
    return markdown(title, ["method", "model", *map(str, RATES), "chosen"], rows)


def variants_table(data: str, varied: Mapping[str, Result]) -> str:
    """What makes FedRep stable at the papers' rate."""
    title = f"{data}: FedRep at {PAPERS:g}; it diverges in the round whose training loss is above that of guessing"
    columns = ["variant", "validation accuracy (%)", "diverges in round"]
    return markdown(title, columns, [[name, *found.cells] for name, found in varied.items()])
