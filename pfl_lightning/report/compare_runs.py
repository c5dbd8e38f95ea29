"""Reads run folders, without the training code."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.errors import PflError
from pfl_lightning.quantity import QUANTITIES, Quantity
from pfl_lightning.report.client_table import Evaluations, Floats, read_clients
from pfl_lightning.report.run_files import Row, read_settings, read_table, whole_number
from pfl_lightning.settings import class_name, flat, is_doubling, named_callbacks

FILES = ("config.yaml", "metrics.csv", "clients.csv")
TEST_MEAN = re.compile(rf"test/(.+)/({'|'.join(QUANTITIES)})/mean")
COHORT, CALLS = "system/cohort", "sums/calls"  # clients that trained; weighted sums that the server has asked for
BITS, LINK_BITS = "bits/total", "bits/paper"  # communicated by all; by one client, by the formula of FedMac's paper
SAMPLES = "samples/total"  # that all clients took gradients of
LOSS, COMPUTE = "train/loss", "time/compute"
LOGGED = (COHORT, CALLS, BITS, LINK_BITS, SAMPLES, LOSS, COMPUTE)
KINDS = ("density/", "consensus/")  # begin the tags of SparsityTracker, and of methods without a server
TRAINER = ("max_steps", "val_check_interval", "precision")  # the trainer's other options make no other curve
# new clients come after training, and the communication time is applied afterwards
NO_MATTER = {"data.root", "data.communication_time", "data.new_clients", "data.new_head_epochs"}


@dataclass(frozen=True, eq=False)
class Run:
    """The test results in a run folder.

    Attributes:
        folder: The folder.
        seed: Its ``seed_everything``.
        settings: Everything else that makes its curves, by key such as ``model.lr``.
        quantity: What clients are evaluated by.
        rounds: Rounds completed at each evaluation, ``[evaluations]``.
        compute: Simulated seconds of computation until then, ``[evaluations]``.
        means: Mean score of the clients by evaluated model, in the method's order, ``[evaluations]``.
        clients: Results of every client at each evaluation, by split, evaluated model and round.
        logged: Values by round of those tags of ``LOGGED`` that the run has, of densities and of errors of consensus.
    """

    folder: Path
    seed: int
    settings: Mapping[str, Any]
    quantity: Quantity
    rounds: NDArray[np.int64]
    compute: Floats
    means: Mapping[str, Floats]
    clients: Evaluations
    logged: Mapping[str, Mapping[int, float]]

    @property
    def method(self) -> str:
        """Name of the method's class."""
        return class_name(self.settings["model"])

    @property
    def doubling(self) -> str | None:
        """Name of the callback that doubles the participants, if there is any."""
        return next(filter(is_doubling, self.settings), None)

    @property
    def calls(self) -> Floats:
        """Weighted sums that the server has asked for until each evaluation, ``[evaluations]``.

        This is what secure aggregation costs. A run that does not count them has asked for one in each round.
        """
        return self.until(CALLS) if CALLS in self.logged else self.rounds.astype(float)

    def until(self, tag: str) -> Floats:
        """What a count that is logged has grown to at each evaluation, ``[evaluations]``."""
        counted = [[count for logged, count in self.logged[tag].items() if logged <= last] for last in self.rounds]
        return np.array([max(counts, default=0.0) for counts in counted])

    def client_scores(self, model: str, round_index: int) -> Floats:
        """Test score of each client that has test samples, in the order of their ids, ``[clients]``."""
        return self.clients["test", model, round_index].scores(self.quantity)


def read_run(folder: Path) -> Run:
    """Read a run folder.

    Args:
        folder: The folder.

    Raises:
        PflError: If it is not a run folder, or has no test results.
    """
    if not folder.is_dir():
        raise PflError(f"runs: no such folder: '{folder}'; allowed: run folders, such as runs/FedRep-Digits/version_0")
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise PflError(f"runs: '{folder}' has no {missing[0]}; allowed: folders with {', '.join(FILES)}")
    config = read_settings(folder / "config.yaml")
    names, logged = read_table(folder / "metrics.csv", ("round", COMPUTE), _numbers)
    if any(later["round"] <= row["round"] for row, later in pairwise(logged)):
        raise PflError(f"runs: '{folder}/metrics.csv' has rounds out of order; allowed: run folders of pfl fit")
    tags = [tag for name in names if (tag := TEST_MEAN.fullmatch(name))]
    clients = read_clients(folder / "clients.csv")
    known = {round_index for split, _, round_index in clients if split == "test"}
    needed = {COMPUTE, *(tag[0] for tag in tags)}
    rows = [row for row in logged if tags and needed <= row.keys() and row["round"] in known]
    if not rows:
        raise PflError(f"runs: '{folder}' has no test results; allowed: runs that were evaluated on test samples")
    return Run(
        folder,
        config["seed_everything"],
        dict(settings_of(config)),
        QUANTITIES[tags[0][2]],
        np.array([int(row["round"]) for row in rows]),
        np.array([row[COMPUTE] for row in rows]),
        {tag[1]: np.array([row[tag[0]] for row in rows]) for tag in tags},
        clients,
        {
            name: {int(row["round"]): row[name] for row in logged if name in row}
            for name in names
            if name in LOGGED or name.startswith(KINDS)
        },
    )


def check_same_data(runs: Sequence[Run]) -> None:
    """Refuse runs that cannot be compared; only who takes part may differ between runs on the same data.

    Raises:
        PflError: If a setting of the data differs.
    """
    first = runs[0]
    for run in runs[1:]:
        for key in sorted(first.settings.keys() | run.settings.keys()):
            was, now = first.settings.get(key), run.settings.get(key)
            if was != now and f"{key}.".startswith("data.") and not key.startswith("data.participation"):
                raise PflError(
                    f"{key}: {was} in '{first.folder}', {now} in '{run.folder}'; allowed: runs on the same data"
                )


def _numbers(row: Row) -> dict[str, float]:
    """The values of a round; what was not logged in it is left out."""
    return {name: float(cell) for name, cell in row.items() if cell} | {"round": whole_number(row["round"])}


def settings_of(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings that make a curve, flat; nulls are left out."""
    trainer = config["trainer"]
    callbacks = dict(named_callbacks(trainer.get("callbacks")))
    parts = {"model": config["model"], "data": config["data"], "trainer": {name: trainer.get(name) for name in TRAINER}}
    for key, value in flat(parts | callbacks):
        if value is not None and key not in NO_MATTER:
            yield key, value
