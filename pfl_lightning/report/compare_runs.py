"""Reads run folders, without the training code."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.errors import PflError
from pfl_lightning.report import run_files
from pfl_lightning.report.run_files import Evaluations, Floats, Ints, Label
from pfl_lightning.score_kind import SCORE_KINDS, ScoreKind
from pfl_lightning.settings.values import SAME_NUMBERS, class_name, flat, named_callbacks

TEST_MEAN = re.compile(rf"test/(.+)/({'|'.join(SCORE_KINDS)})/mean")
LINK_BITS = "bits/paper"  # of one client, by the formula of FedMac's paper
COHORT = "system/cohort"  # clients that trained
CALLS = "sums/calls"  # weighted sums that the server has asked for
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
        rounds: Rounds completed at each evaluation, ``[evaluations]``.
        means: Mean score of the clients by evaluated model, in the method's order, ``[evaluations]``.
        clients: Results of every client at each evaluation, by split, evaluated model and round.
        logged: Values by round of every logged tag.
        left_out: Rounds with test results in ``metrics.csv`` that ``clients.csv`` lacks.
    """

    folder: Path
    label: Label
    seed: int
    settings: Mapping[str, Any]
    score_kind: ScoreKind
    rounds: Ints
    means: Mapping[str, Floats]
    clients: Evaluations
    logged: Mapping[str, Mapping[int, float]]
    left_out: Sequence[int] = ()

    @property
    def calls(self) -> Floats:
        """Weighted sums that the server has asked for until each evaluation, ``[evaluations]``.

        This is what secure aggregation costs. A run that does not count them has asked for one in each round.
        """
        return self.until(CALLS) if CALLS in self.logged else self.rounds.astype(float)

    def seconds(self, rounds: NDArray[Any], communication_time: float) -> Floats:
        """Simulated seconds until the end of some rounds, ``[rounds]``, each of which costs one communication.

        Where clients do not wait for each other, they are known for the run's own communication time alone, nan for
        others.
        """
        simulated = self.settings.get(COMMUNICATION_TIME)
        logged = self.logged[COMPUTE if simulated is None else TOTAL] if simulated in (None, communication_time) else {}
        seconds = np.array([logged.get(index, np.nan) for index in rounds])
        return seconds + communication_time * rounds if simulated is None else seconds

    def until(self, tag: str) -> Floats:
        """What a count that is logged has grown to at each evaluation, ``[evaluations]``."""
        counts = np.maximum.accumulate([0.0, *self.logged[tag].values()])
        return counts[np.searchsorted(list(self.logged[tag]), self.rounds, side="right")]

    def client_scores(self, model: str, round_index: int) -> Floats:
        """Test score of each client that has test samples, in the order of their ids, ``[clients]``."""
        return self.clients["test", model, round_index].scores(self.score_kind)


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
    logged = run_files.read_table(folder / run_files.METRICS, ("round", COMPUTE)).set_index("round")
    if not (logged.index.is_monotonic_increasing and logged.index.is_unique):
        raise PflError(f"runs: '{folder / run_files.METRICS}' has rounds out of order; give run folders of pfl fit")
    tags = [tag for name in logged if (tag := TEST_MEAN.fullmatch(name))]
    clients = run_files.read_clients(folder / run_files.CLIENTS)
    tested = {round_index for split, _, round_index in clients if split == "test"}
    names = [tag[0] for tag in tags]
    evaluated = logged[[COMPUTE, *names]].dropna(how="all", subset=names)  # one model can have diverged
    left_out = [round_index for round_index in evaluated.index if round_index not in tested]
    evaluated = evaluated.drop(left_out)
    if not tags or evaluated.empty:
        raise PflError(f"runs: '{folder}' has no test results; give runs that were evaluated on test samples")
    return RunRecord(
        folder,
        run_files.read_label(folder),
        config["seed_everything"],
        dict(settings_of(config)),
        SCORE_KINDS[tags[0][2]],
        evaluated.index.to_numpy(),
        {tag[1]: evaluated[tag[0]].to_numpy() for tag in tags},
        clients,
        {name: values for name, column in logged.items() if (values := column.dropna().to_dict())},
        left_out,
    )


def check_same_data(runs: Sequence[RunRecord]) -> None:
    """Reject runs that cannot be compared; only who takes part may differ between runs on the same data.

    Raises:
        PflError: If a setting of the data differs.
    """
    first = runs[0]
    for run in runs[1:]:
        for key in sorted(first.settings.keys() | run.settings.keys()):
            values = first.settings.get(key), run.settings.get(key)
            may_differ = key.startswith("data.participation") or key in NO_MATTER
            if values[0] != values[1] and f"{key}.".startswith("data.") and not may_differ:
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
