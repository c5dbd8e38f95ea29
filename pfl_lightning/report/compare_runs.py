"""Reads run folders, without the training code."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_lightning.errors import PflError
from pfl_lightning.report import run_files
from pfl_lightning.report.run_files import Ints, Label
from pfl_lightning.score_kind import ACCURACY, SCORE_KINDS, ScoreKind
from pfl_lightning.settings.values import SAME_NUMBERS, changes, class_name, flat, named_callbacks

if TYPE_CHECKING:
    import pandas as pd

TEST_MEAN = re.compile(rf"test/(.+)/({'|'.join(SCORE_KINDS)})/mean")
BITS = "bits/total"
SAMPLES = "samples/total"
LINK_BITS = "bits/paper"  # of one client, by the formula of FedMac's paper
COHORT = "system/cohort"  # clients that trained
CALLS = "sums/calls"  # weighted sums that the server has asked for
COUNTS = (BITS, SAMPLES, LINK_BITS, CALLS)
ROUND = "round"
LOSS = "train/loss"
COMPUTE = "time/compute"
TOTAL = "time/total"
TRAINER = ("max_steps", "val_check_interval", "precision")  # the trainer's other options make no other curve
# new clients come after training, and the communication time is applied afterwards, unless it decides who uploads when
COMMUNICATION_TIME = "data.communication_time"
WITHOUT_ROUNDS = "Asynchronous"
NO_MATTER = {*SAME_NUMBERS, COMMUNICATION_TIME, "data.new_clients", "data.new_samples", "data.new_head_epochs"}


@dataclass(frozen=True, eq=False)
class RunRecord:
    """The test results in a run folder.

    Attributes:
        folder: The folder.
        label: How it is named.
        seed: Its ``seed_everything``.
        settings: Everything else that makes its curves, by key such as ``model.lr``.
        score_kind: What clients are evaluated by.
        models: The evaluated models, in the method's order.
        rounds: Rounds completed at each evaluation, ``[evaluations]``.
        logged: What it has logged: a row for each round, a column for each tag, nan where it was not logged.
        counts: What ``COUNTS`` have grown to: a row for each round, a column for each. ``ROUND`` is one of them, and
            ``CALLS``, which secure aggregation costs: a run that does not count them has asked for one in each round.
        clients: Results by split, evaluated model and round: a row for each client with samples of the split, in the
            order of their ids, with columns such as ``samples``, ``loss``, ``score`` and ``error``.
        left_out: Rounds with test results in ``metrics.csv`` that ``clients.csv`` lacks.
    """

    folder: Path
    label: Label
    seed: int
    settings: Mapping[str, Any]
    score_kind: ScoreKind
    models: Sequence[str]
    rounds: Ints
    logged: "pd.DataFrame"
    counts: "pd.DataFrame"
    clients: Mapping[tuple[str, str, int], "pd.DataFrame"]
    left_out: Sequence[int] = ()

    def seconds(self, communication_time: float) -> "pd.Series":
        """Simulated seconds by round, each of which costs one communication.

        Where clients do not wait for each other, they are known for the run's own communication time alone, nan for
        others.
        """
        simulated = self.settings.get(COMMUNICATION_TIME)
        if simulated is None:
            return self.logged[COMPUTE] + communication_time * self.logged.index
        return self.logged[TOTAL] * (1.0 if simulated == communication_time else nan)


def read_run(folder: Path) -> RunRecord:
    """Read a run folder.

    Args:
        folder: The folder.

    Raises:
        PflError: If it is not a run folder, or has no test results.
    """
    if not folder.is_dir():
        raise PflError(f"runs: no such folder: '{folder}'; give run folders, such as runs/FedRep-Digits/version_0")
    if missing := [name for name in run_files.FILES if not (folder / name).is_file()]:
        raise PflError(f"runs: '{folder}' has no {missing[0]}; a run folder has {', '.join(run_files.FILES)}")
    config = run_files.read_settings(folder)
    logged = run_files.read_metrics(folder, (COMPUTE, LOSS))
    tags = [tag for name in logged if (tag := TEST_MEAN.fullmatch(name))]
    means = [tag[0] for tag in tags]
    logged = logged.loc[:, logged.notna().any() | logged.columns.isin([LOSS, *means])]
    score_kind = SCORE_KINDS[tags[0][2]] if tags else ACCURACY
    table = run_files.read_clients(folder / run_files.CLIENTS, has_accuracy=score_kind == ACCURACY)
    scores = table[score_kind.name]
    table = table.assign(score=scores, error=score_kind.errors(scores)).sort_values("client")
    evaluated = logged.dropna(how="all", subset=means).index  # one model can have diverged
    is_tested = evaluated.isin(table.loc[table["split"] == "test", "round"])
    if not tags or not is_tested.any():
        raise PflError(f"runs: '{folder}' has no test results; give runs that were evaluated on test samples")
    return RunRecord(
        folder,
        run_files.read_label(folder),
        config["seed_everything"],
        dict(settings_of(config)),
        score_kind,
        [tag[1] for tag in tags],
        evaluated[is_tested].to_numpy(),
        logged,
        counts_of(logged),
        dict(iter(table.groupby(run_files.EVALUATION))),
        evaluated[~is_tested].tolist(),
    )


def counts_of(logged: "pd.DataFrame") -> "pd.DataFrame":
    """What counts have grown to in each round, from what a run has logged; see ``RunRecord.counts``."""
    counts = logged[[tag for tag in COUNTS if tag in logged]].cummax().ffill().fillna(0.0)
    counts[ROUND] = counts.index
    return counts if CALLS in counts else counts.assign(**{CALLS: counts.index})


def check_same_data(runs: Sequence[RunRecord]) -> None:
    """Reject runs that cannot be compared; only who takes part may differ between runs on the same data.

    Raises:
        PflError: If a setting of the data differs.
    """
    first = runs[0]
    for run in runs[1:]:
        for key, values in changes(first.settings, run.settings).items():
            may_differ = key.startswith("data.participation") or key in NO_MATTER
            if f"{key}.".startswith("data.") and not may_differ:
                difference = f"{values[0]} in '{first.folder}', {values[1]} in '{run.folder}'"
                raise PflError(f"{key}: {difference}; compare runs on the same data")


def settings_of(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings that make a curve, flat; nulls are left out."""
    trainer = config["trainer"]
    callbacks = dict(named_callbacks(trainer.get("callbacks")))
    parts = {"model": config["model"], "data": config["data"], "trainer": {name: trainer.get(name) for name in TRAINER}}
    settings = dict(flat(parts | callbacks))
    has_rounds = class_name(str(settings.get("data.participation"))) != WITHOUT_ROUNDS
    for key, value in settings.items():
        if value is not None and (key not in NO_MATTER or (key == COMMUNICATION_TIME and not has_rounds)):
            yield key, value
