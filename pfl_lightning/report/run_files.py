"""Reads run folders, without the training code; an error names the file."""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from pfl_lightning.errors import PflError, one_line
from pfl_lightning.score_kind import ACCURACY, ScoreKind
from pfl_lightning.score_kind import LOSS as MEAN_LOSS
from pfl_lightning.settings.values import AFTER_TRAINING, SAME_NUMBERS, changes, class_name, flat, named_callbacks

if TYPE_CHECKING:
    import pandas as pd

CONFIG = "config.yaml"
LABEL = "label.yaml"
DATA = "data.txt"
METRICS = "metrics.csv"
CLIENTS = "clients.csv"
EVALUATION = ["split", "model", "round"]  # columns of clients.csv
RESULTS = ["client", "samples", "loss"]  # further columns of every task; classes have the number of CORRECT, too
CORRECT = "correct"
TYPES = dict.fromkeys(("split", "model"), "str") | dict.fromkeys(
    ("round", "client", "samples", CORRECT), "int"
)  # else float
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
# the communication time is applied afterwards, unless it decides who uploads when
COMMUNICATION_TIME = "data.communication_time"
WITHOUT_ROUNDS = "Asynchronous"
NO_MATTER = {*SAME_NUMBERS, *AFTER_TRAINING, COMMUNICATION_TIME}
OF_CLIENTS = ("data.participation", "data.poison")  # who takes part, and what attackers do, on the same data

LABEL_TYPES = {"method": str, "name": str, "doubling": str | None, "suffixes": Mapping, "is_baseline": bool}
SINCE = {"content": str | None, "code": Mapping | None, "changed": Mapping | None}  # runs of former versions lack them
SCORE_TYPES = {"name": str, "higher_is_better": bool, "scale": float | int, "unit": str, "digits": int}
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Label(NamedTuple):
    """How tables and figures name a run, as its method says.

    Attributes:
        method: Name of the method, such as ``FedAvg``.
        name: The same, or what stage doubling makes of it, such as ``FLANP``.
        doubling: Name of the class of the callback that doubles the participants, if there is any.
        suffixes: What evaluated models add to the name if several are compared; else the first one is.
        is_baseline: Whether other methods are compared with it.
        score: What clients are evaluated by; None in runs of former versions, whose tags say it.
        content: Hash of all samples that were read; None where they are drawn.
        code: Hash of each module of the user's own that the settings name.
        changed: What settings were before the run resumed with others, by key, such as ``0.1 until round 20``.
    """

    method: str
    name: str
    doubling: str | None
    suffixes: Mapping[str, str]
    is_baseline: bool
    score: ScoreKind | None = None
    content: str | None = None
    code: Mapping[str, str] | None = None
    changed: Mapping[str, str] | None = None

    @property
    def text(self) -> str:
        """The content of ``label.yaml``."""
        return yaml.safe_dump({**self._asdict(), "score": self.score and asdict(self.score)})


@dataclass(frozen=True, eq=False)
class RunRecord:
    """The test results in a run folder.

    Attributes:
        folder: The folder.
        label: How it is named.
        seed: Its ``seed_everything``.
        settings: Everything else that makes its curves, by key such as ``model.local.lr``.
        score_kind: What clients are evaluated by.
        models: The evaluated models, in the method's order.
        rounds: Rounds completed at each evaluation, ``[evaluations]``.
        logged: What it has logged: a row for each round, a column for each tag, nan where it was not logged.
        clients: Results by split, evaluated model and round: a row for each client with samples of the split, in the
            order of their ids, with columns such as ``samples``, ``loss``, ``score`` and ``error``.
        left_out: Rounds with test results in ``metrics.csv`` that ``clients.csv`` lacks.
        diverged: Whether a training loss was not finite.
    """

    folder: Path
    label: Label
    seed: int
    settings: Mapping[str, Any]
    score_kind: ScoreKind
    models: Sequence[str]
    rounds: Ints
    logged: "pd.DataFrame"
    clients: Mapping[tuple[str, str, int], "pd.DataFrame"]
    left_out: Sequence[int] = ()
    diverged: bool = False

    @cached_property
    def counts(self) -> "pd.DataFrame":
        """What ``COUNTS`` have grown to: a row for each round, a column for each that is logged.

        ``ROUND`` is one of them, and ``CALLS``, which is what secure aggregation costs: a run that does not count them
        has asked for one in each round.
        """
        rounds = self.logged.index
        counts = self.logged[[tag for tag in COUNTS if tag in self.logged]].cummax().ffill().fillna(0.0)
        return counts.assign(**{ROUND: rounds, CALLS: counts.get(CALLS, rounds)})

    @property
    def tested(self) -> Sequence[int]:
        """The clients with a score in the last evaluation on test samples."""
        return self._scored_on("test")

    @property
    def attackers(self) -> Sequence[int]:
        """The clients that attack, which are scored apart."""
        return self._scored_on("attackers")

    def _scored_on(self, split: str) -> list[int]:
        """The clients with a score in the last evaluation on a split."""
        evaluation = (split, self.models[0], int(self.rounds[-1]))
        clients: list[int] = self.clients[evaluation]["client"].tolist() if evaluation in self.clients else []
        return clients

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
    seed, settings = read_settings(folder)
    logged = read_table(folder / METRICS, ("round", COMPUTE, LOSS)).set_index("round")
    label = read_label(folder)
    score_kind = label.score or _former_score(logged)
    mean = re.compile(f"test/(.+)/{re.escape(score_kind.name)}/mean")
    tags = [tag for name in logged if (tag := mean.fullmatch(name))]
    means = [tag[0] for tag in tags]
    logged = logged.loc[:, logged.notna().any() | logged.columns.isin([LOSS, *means])]
    table = read_clients(folder / CLIENTS)
    _check_columns(table, [score_kind.name], folder / CLIENTS)
    scores = table[score_kind.name]
    table = table.assign(score=scores, error=score_kind.errors(scores)).sort_values("client")
    evaluated = logged.dropna(how="all", subset=means).index  # one model can have diverged
    is_tested = evaluated.isin(table.loc[table["split"] == "test", "round"])
    if not tags or not is_tested.any():
        raise PflError(f"runs: '{folder}' has no test results; give runs that were evaluated on test samples")
    return RunRecord(
        folder,
        label,
        seed,
        settings,
        score_kind,
        [tag[1] for tag in tags],
        evaluated[is_tested].to_numpy(),
        logged,
        {evaluation: _scored(rows, logged, score_kind) for evaluation, rows in table.groupby(EVALUATION)},
        evaluated[~is_tested].tolist(),
        _has_diverged(folder / METRICS),
    )


def _has_diverged(path: Path) -> bool:
    """Whether a training loss in ``metrics.csv`` is not finite; where none was logged, the cell is empty."""
    import pandas as pd

    losses = pd.read_csv(path, usecols=[LOSS], dtype=str, keep_default_na=False)[LOSS]
    return bool(losses.isin(["nan", "inf"]).any())


def _former_score(logged: "pd.DataFrame") -> ScoreKind:
    """What clients are evaluated by in a run whose label does not say it: the accuracy, or the loss."""
    has_losses = any(re.fullmatch(f"test/.+/{MEAN_LOSS.name}/mean", tag) for tag in logged)
    return MEAN_LOSS if has_losses else ACCURACY


def _scored(clients: "pd.DataFrame", logged: "pd.DataFrame", score_kind: ScoreKind) -> "pd.DataFrame":
    """The clients of an evaluation that have a score: all of them, unless the run says that some are left out."""
    split, model = clients[["split", "model"]].iloc[0]
    name, column = (MEAN_LOSS.name, "loss") if split == "train" else (score_kind.name, "score")
    return clients.dropna(subset=column) if f"{split}/{model}/{name}/left_out" in logged else clients


def check_same_data(runs: Sequence[RunRecord]) -> None:
    """Reject runs that cannot be compared; only who takes part, and what attackers do, may differ on the same data.

    Raises:
        PflError: If a setting of the data differs, or what was in the files, or runs of a seed score other clients
            since others attack.
    """
    of_seed: dict[int, RunRecord] = {}
    for run in runs[1:]:
        for key, values in changes(data_settings(runs[0].settings), data_settings(run.settings)).items():
            difference = f"{values[0]} in '{runs[0].folder}', {values[1]} in '{run.folder}'"
            raise PflError(f"{key}: {difference}; compare runs on the same data")
    if several := differing(runs, lambda run: run.label.content):
        difference = "the files held other samples for '{}' than for '{}'".format(*several)
        raise PflError(f"data: {difference}; compare runs on the same data")
    for run in runs:
        other = of_seed.setdefault(run.seed, run)
        if {*run.attackers} & {*other.tested} or {*other.attackers} & {*run.tested}:
            raise PflError(
                f"runs: '{run.folder}' scores {len(run.tested)} clients and '{other.folder}' {len(other.tested)}, as "
                "attackers are left out; compare runs with the same ones, who do nothing before their first_round"
            )


def data_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some flat settings that say what the data are, which are the same in all runs that are compared."""
    keys = (key for key in settings if f"{key}.".startswith("data.") and key not in NO_MATTER)
    return {key: settings[key] for key in keys if not key.startswith(OF_CLIENTS)}


def differing(runs: Sequence[RunRecord], quality: Callable[[RunRecord], Any]) -> list[Path]:
    """The folders of two runs that are known to differ in something; none if there are no such runs."""
    known = [run for run in runs if quality(run)]
    return next(([first.folder, run.folder] for first, run in pairwise(known) if quality(first) != quality(run)), [])


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


def read_settings(folder: Path) -> tuple[int, dict[str, Any]]:
    """Read the seed of a run, and ``settings_of`` it; what was another value before the run resumed says so.

    Raises:
        PflError: If they are not those of a run.
    """
    with _reading(folder / CONFIG) as path:
        config = yaml.safe_load(path.read_text())
        seed, settings = int(config["seed_everything"]), dict(settings_of(config))
    before = read_label(folder).changed or {}
    return seed, settings | {key: f"{text}, then {settings.get(key)}" for key, text in before.items()}


def read_label(folder: Path) -> Label:
    """Read how a run is named from its ``label.yaml``.

    Raises:
        PflError: If it is not there, or is another file.
    """
    with _reading(folder / LABEL) as path:
        label = Label(**_typed(yaml.safe_load(path.read_text()), LABEL_TYPES))
        _typed(label._asdict(), SINCE)
        for texts in filter(None, (label.suffixes, label.code, label.changed)):
            _typed(texts, dict.fromkeys(texts, str))
        return label._replace(score=label.score and ScoreKind(**_typed(label.score, SCORE_TYPES)))


def _typed(values: Any, types: Mapping[str, Any]) -> Mapping[str, Any]:
    """Values by their names, which must have types.

    Raises:
        ValueError: If one has another type.
        LookupError: If one is missing.
    """
    for name, kind in types.items():
        if not isinstance(values[name], kind):
            raise ValueError(f"{name} is {values[name]}")
    return values  # type: ignore[no-any-return]


def read_table(file: Path, columns: Sequence[str]) -> "pd.DataFrame":
    """Read a table of a run. What follows its last complete line is left out: the run may be writing it.

    Args:
        file: The CSV file.
        columns: Columns that it must have.

    Raises:
        PflError: If the file cannot be read, or lacks a column, or a cell is not what its column holds.
    """
    import pandas as pd  # which takes half a second

    with _reading(file) as path:
        text = path.read_text(encoding="utf-8")
        complete = io.StringIO(text[: text.rfind("\n") + 1])
        cells = pd.read_csv(complete, dtype=object, index_col=False)
        table = cells.astype({name: TYPES.get(name, "float") for name in cells})  # Python's floats, to the last digit
    _check_columns(table, columns, file)
    return table


def _check_columns(table: "pd.DataFrame", columns: Sequence[str], file: Path) -> None:
    """Refuse a table of a run that lacks a column."""
    if missing := [name for name in columns if name not in table]:
        raise PflError(f"runs: '{file}' has no column {missing[0]}; give run folders of pfl fit")


def read_clients(path: Path) -> "pd.DataFrame":
    """Read the clients' results, with the accuracy if they have correct predictions.

    The last evaluation is left out if clients are missing: it may be being written.

    Raises:
        PflError: If the table cannot be read.
    """
    table = read_table(path, [*EVALUATION, *RESULTS])
    sizes = table.groupby("round").size()
    if len(sizes) and sizes.iloc[-1] < sizes.iloc[0]:
        table = table[table["round"] < sizes.index[-1]]
    if CORRECT in table:
        table.insert(list(table).index("loss") + 1, ACCURACY.name, table[CORRECT] / table["samples"])
    return table


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """Name the file if it cannot be read, or is not what it is taken for."""
    try:
        yield path
    except OSError as error:
        why = f"cannot read '{path}' ({error.strerror})"
        raise PflError(f"runs: {why}; give run folders, such as runs/FedRep-Digits/version_0") from error
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = f" ({one_line(error)})" if isinstance(error, ValueError) else ""
        raise PflError(f"runs: '{path}' was not written by pfl fit{why}; give run folders of pfl fit") from error
