"""Runs from Python, with the numbers and files of ``pfl fit``, ``test`` and ``validate``, which call what is here."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from inspect import Parameter
from math import nan
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import lightning.pytorch as pl
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from torch import nn

from pfl_lightning import report
from pfl_lightning.bounds import Seed
from pfl_lightning.callbacks import PercentileErrors, RoundCheckpoint
from pfl_lightning.callbacks.round_checkpoint import BEST, Stopped
from pfl_lightning.callbacks.run_folder import CHECKPOINTS
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.federation.checkpoints import read_checkpoint
from pfl_lightning.imports import import_object
from pfl_lightning.methods import Method, NeedsSamplesError
from pfl_lightning.runs.resume import Resume, find_resume, load_method, plain, runs_folder, settings_along
from pfl_lightning.runs.session import Command, Session, check_data, without_chatter
from pfl_lightning.settings.messages import explain
from pfl_lightning.settings.objects import anew, arguments, default_arguments, recipe, unsaid
from pfl_lightning.settings.parser import StrictParser
from pfl_lightning.settings.shipped_files import check_seed, with_config_files
from pfl_lightning.settings.values import flat

if TYPE_CHECKING:
    import pandas as pd

Checkpoint = Literal["last", "best"]
TRAINER: dict[str, Any] = {  # defaults of the trainer's options
    "max_steps": 100,
    "max_epochs": -1,
    "devices": 1,
    "val_check_interval": 10,
    "check_val_every_n_epoch": None,
    "log_every_n_steps": 1,
    "num_sanity_val_steps": 0,
    "enable_model_summary": False,
    "enable_autolog_hparams": False,
    "default_root_dir": "runs",
}


class Experiment:
    """A method, a data set and a number of rounds: what ``pfl fit`` runs, from Python.

    Every run makes the method, the data set and the callbacks of this package anew from the arguments that they were
    made with, so the same experiment gives the same numbers again, and those of the same command. Nothing is printed,
    but on a signal.
    What settings cannot say, such as arrays and functions, is used as it is.

    Args:
        method: The method.
        data: The data set.
        rounds: Communication rounds.
        seed: ``seed_everything``, which the data set's own seed follows.
        callbacks: Callbacks beside those of every run. Others than this package's, such as your own, are used as they
            are, and are not among the settings.
        folder: Where run folders are: ``<folder>/<Method>-<Data>/version_N``.
        checkpoint: When checkpoints are saved.
        percentile_errors: Which percentiles of the clients are logged.
        settings: All settings, as plain values, if these objects were made of them.
        trainer: Other options of the trainer, such as ``val_check_interval=5`` or ``enable_progress_bar=True``.

    Examples:
        >>> from pfl_lightning.data import Digits
        >>> from pfl_lightning.methods import FedRep
        >>> experiment = Experiment(FedRep(lr=0.05), Digits(num_clients=10), rounds=20)
        >>> experiment.settings["model"]["init_args"]["lr"]
        0.05
    """

    def __init__(
        self,
        method: Method,
        data: FederatedDataModule,
        rounds: int = 100,
        *,
        seed: int = 1,
        callbacks: pl.Callback | Sequence[pl.Callback] = (),
        folder: str | Path = "runs",
        checkpoint: RoundCheckpoint | None = None,
        percentile_errors: PercentileErrors | None = None,
        settings: dict[str, Any] | None = None,
        **trainer: Any,
    ) -> None:
        callbacks = [callbacks] if isinstance(callbacks, pl.Callback) else list(callbacks)
        _check(method, data, callbacks)
        if settings is None and "seed" in (arguments(data) or {}):
            raise PflError("data.seed: not possible here, it follows the experiment's; allowed: Experiment(seed=...)")
        for kind in (type(method), type(data)):
            if "<locals>" in kind.__qualname__:
                raise PflError(f"{kind.__name__}: classes within functions are not possible; allowed: those of modules")
        if twice := {"max_steps", "default_root_dir"} & trainer.keys():
            raise PflError(f"trainer.{min(twice)}: not possible here; allowed: Experiment(rounds=..., folder=...)")
        self.method, self.data, self.callbacks = method, data, callbacks
        self.checkpoint = checkpoint or RoundCheckpoint()
        self.percentile_errors = percentile_errors or PercentileErrors()
        own = {"max_steps": rounds, "default_root_dir": fspath(folder)}
        self.trainer = {"enable_progress_bar": False, **trainer, **own}
        self.seed, self._settings = seed, settings

    @classmethod
    def of(cls, made: Namespace, settings: dict[str, Any]) -> "Experiment":
        """The experiment of objects that a parser has made of settings.

        Args:
            made: The objects, by the names of the settings.
            settings: All settings, as plain values.
        """
        options = dict(vars(made.trainer))
        options["logger"] = settings["trainer"]["logger"]
        rounds, folder = options.pop("max_steps"), options.pop("default_root_dir")
        return cls(
            made.model,
            made.data,
            rounds,
            seed=made.seed_everything,
            callbacks=options.pop("callbacks") or (),
            folder=folder,
            checkpoint=made.checkpoint,
            percentile_errors=made.percentile_errors,
            settings=settings,
            **options,
        )

    @classmethod
    def from_settings(cls, *words: str) -> "Experiment":
        """The experiment of settings files and options.

        Args:
            words: Settings files, by paths or by names such as ``quickstart``, and options as on the command line, each
                as one word, such as ``--model.lr=0.1``.

        Raises:
            PflError: If they are wrong.
        """
        options = [word if word.startswith("-") else f"--config={word}" for word in words]
        parser = run_parser()
        parser.add_argument("--config", action="config")
        parsed = _parsed(parser.parse_args, ["--trainer.enable_progress_bar=false", *with_config_files(options)])
        check_seed(options, parsed.pop("config") or (), parsed.seed_everything)
        settings = plain(parser, parsed)
        return cls.of(built(settings), settings)

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, as ``config.yaml`` has them.

        Raises:
            PflError: If one is not possible.
        """
        if self._settings is not None:
            return self._settings
        callbacks = [recipe(callback) for callback in self.callbacks if _is_ours(callback)]
        said = {
            "seed_everything": self.seed,
            "model": recipe(self.method),
            "data": recipe(self.data),
            "trainer": {**recipe(self.trainer), "callbacks": callbacks or None},
            "checkpoint": recipe(arguments(self.checkpoint)),
            "percentile_errors": recipe(arguments(self.percentile_errors)),
        }
        settings = completed(said)
        parsed = dict(flat(settings))
        for key, value in flat(said):
            if isinstance(value, str) and parsed.get(key) != value:
                raise PflError(f"{key}: the text '{value}' is not possible in a program; allowed: the number or object")
        return settings

    def fit(self, resume: bool = False) -> "Run":
        """Train, in the next run folder.

        Args:
            resume: Continue the newest run in its folder instead.

        Raises:
            PflError: If the settings are wrong, or there is nothing to continue.
            KeyboardInterrupt: After the current round was saved, if the process is interrupted.
        """
        settings = self.settings
        if trial := settings["trainer"]["fast_dev_run"]:
            what = f"trainer.fast_dev_run: {trial} is not possible in a program, it leaves no run"
            raise PflError(f"{what}; allowed: False, or pfl fit on the command line")
        found = find_resume("last", runs_folder(settings)) if resume else None
        other = self._anew(settings)
        session = other.session("fit", found)
        with without_chatter():
            try:
                session.run()
            except Stopped:
                raise KeyboardInterrupt("the round is saved; fit(resume=True) continues") from None
        if other.checkpoint.interrupted:
            raise KeyboardInterrupt("the run is complete and saved")
        assert session.run_folder is not None, "a run that has ended has a folder"
        return Run(session.run_folder, self.method, self.data)

    def session(self, command: Command, found: Resume | None, alone: bool = True, **speech: bool) -> Session:
        """A run of this experiment, with its own objects.

        Args:
            command: What to do.
            found: The checkpoint to begin with.
            alone: Whether there can be but this process, since others would not run the same command.
            speech: Options of ``Session`` for what it says.

        Raises:
            PflError: If the settings are not possible.
        """
        settings = self.settings
        for option in ("devices", "num_nodes") if alone else ():
            if str(given := settings["trainer"][option]) != "1":
                what = f"trainer.{option}: {given} is not possible in a program"
                raise PflError(f"{what}; allowed: 1, or pfl {command} on the command line")
        usual = [self.percentile_errors, self.checkpoint]
        options = {**TRAINER, **self.trainer}
        with without_chatter():
            return Session(command, self.method, self.data, settings, options, self.callbacks, usual, found, **speech)

    def _anew(self, settings: dict[str, Any]) -> "Experiment":
        """The same experiment with objects that nothing was done with."""
        other = copy(self)
        other.method, other.data, other._settings = anew(self.method), anew(self.data, seed=self.seed), settings
        other.callbacks = [anew(callback) if _is_ours(callback) else callback for callback in self.callbacks]
        other.checkpoint, other.percentile_errors = anew(self.checkpoint), anew(self.percentile_errors)
        return other


class Run:
    """A run folder, of ``pfl fit`` or of an ``Experiment``.

    Args:
        folder: The folder.
        method: The method, if its checkpoint cannot make it again, since it has functions or objects from Python.
        data: The data set, if its checkpoint cannot make it again, since it has arrays from Python.
    """

    def __init__(
        self, folder: str | Path, method: Method | None = None, data: FederatedDataModule | None = None
    ) -> None:
        self.folder = Path(folder)
        self._method, self._data = method, data

    def test(self, checkpoint: Checkpoint = "last", **data: Any) -> "pd.DataFrame":
        """Evaluate on the test samples, as ``pfl test`` does.

        Args:
            checkpoint: The ``last`` round, or the ``best`` one.
            data: Options of the data set that may change: ``root``, ``new_clients``, ``new_samples`` and
                ``new_head_epochs``.

        Returns:
            A row for each split, model and client, which is also in the folder.

        Raises:
            PflError: If there is no such checkpoint, the data are others, or an option may not change.
        """
        return self._evaluate("test", checkpoint, data)

    def validate(self, checkpoint: Checkpoint = "last", **data: Any) -> "pd.DataFrame":
        """Evaluate on the validation samples, as ``pfl validate`` does; see ``test``, but not of new clients."""
        return self._evaluate("validate", checkpoint, data)

    def results(self) -> "pd.DataFrame":
        """A row for each evaluation of training, split, model and quantity; see ``pfl_lightning.results``."""
        return report.results(self.folder)

    def clients(self) -> "pd.DataFrame":
        """A row for each evaluation of training, split, model and client; see ``pfl_lightning.clients``."""
        return report.clients(self.folder)

    def method(self, checkpoint: Checkpoint = "last") -> Method:
        """The trained method.

        Raises:
            PflError: If there is no such checkpoint, or it cannot make the method again.
        """
        return self._trained(self._find(checkpoint))

    def client(self, client: int, model: str | None = None, checkpoint: Checkpoint = "last", **data: Any) -> nn.Module:
        """One client's model; see ``Method.client``. If it needs the client's samples, the data set is loaded.

        Args:
            client: The client's id.
            model: Name of the model, such as ``stored`` or ``finetuned``. Default: one that needs no training.
            checkpoint: The ``last`` round, or the ``best`` one.
            data: Options of the data set that may change, such as ``root``.

        Raises:
            PflError: If there is no such client, model or checkpoint, or the data are others.
        """
        found = self._find(checkpoint)
        method = self._trained(found)
        try:
            return method.client(client, model)
        except NeedsSamplesError:
            loaded = self._experiment(found, data).data
            loaded.setup()
            check_data(loaded, found)
            return method.client(client, model, loaded)

    def _find(self, checkpoint: Checkpoint) -> Resume:
        if checkpoint not in get_args(Checkpoint):
            raise PflError(f"checkpoint: {checkpoint} is not possible; allowed: {', '.join(get_args(Checkpoint))}")
        best = self.folder / CHECKPOINTS / BEST
        return find_resume(str(best if checkpoint == "best" else self.folder), Path())

    def _trained(self, found: Resume) -> Method:
        if self._method is None:
            return load_method(found.checkpoint)
        method = anew(self._method)
        method.on_load_checkpoint(read_checkpoint(found.checkpoint))
        return method

    def _experiment(self, found: Resume, data: Mapping[str, Any]) -> Experiment:
        """The experiment of this run, with some options of the data set that are others."""
        if "seed" in data:
            raise PflError("data.seed: not possible here, it is the run's; allowed: root, new_clients and the like")
        for name, value in data.items():
            if name.startswith("new_") and isinstance(value, str):
                raise PflError(f"data.{name}: the text '{value}' is not possible in a program; allowed: a number")
        given = {"model": self._method, "data": self._data}
        said = {name: recipe(made) for name, made in given.items() if made is not None}
        settings = settings_along(found, **said)
        settings["data"] = {**settings["data"], "init_args": {**settings["data"]["init_args"], **data}}
        settings = completed(settings)
        experiment = Experiment.of(built({**settings, **dict.fromkeys(said)}), settings)
        if self._method is not None:
            experiment.method = anew(self._method)
        if self._data is not None:
            experiment.data = anew(self._data, **data, seed=experiment.seed)
        return experiment

    def _evaluate(self, command: Command, checkpoint: Checkpoint, data: Mapping[str, Any]) -> "pd.DataFrame":
        import pandas as pd

        found = self._find(checkpoint)
        session = self._experiment(found, data).session(command, found)
        with without_chatter():
            session.run()
        rows = pd.DataFrame(session.table.rows)
        return rows.assign(accuracy=nan if session.data.regression else rows["correct"] / rows["samples"])


def completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run, with the defaults of those that are not given.

    Args:
        settings: Settings, as plain values; a line says what an object from Python is.

    Raises:
        PflError: If one is not possible.
    """
    later = list(unsaid(settings))
    given = _without(settings, later)
    parts = {part: given.pop(part) for part in ("model", "data") if _lacks(given[part], settings[part])}
    parser = run_parser()
    whole = {**plain(parser, _parsed(parser.parse_object, given)), **parts}
    for place in later:
        inner, said = whole, settings
        for name in place[:-1]:
            inner, said = inner.setdefault(name, {}), said[name]
        inner[place[-1]] = said[place[-1]]
    return whole


def _check(method: object, data: object, callbacks: Sequence[object]) -> None:
    """Refuse what is no object of its kind, such as a class, or one whose constructor leaves out those of its bases."""
    for key, given, kind in (
        ("model", method, Method),
        ("data", data, FederatedDataModule),
        *(("trainer.callbacks", callback, pl.Callback) for callback in callbacks),
    ):
        if not isinstance(given, kind):
            what = given if isinstance(given, type | str) else type(given).__name__
            raise PflError(f"{key}: {what} is not possible; allowed: an object of a subclass of {kind.__name__}")
        if kind is not pl.Callback and "init_args" not in vars(given):
            raise PflError(f"{key}: {type(given).__name__}.__init__ lacks its super().__init__(**kwargs)")


def built(settings: Mapping[str, Any]) -> Namespace:
    """The objects of settings: the method, the data set, the callbacks and the options of the trainer.

    Args:
        settings: All settings, as plain values; loggers are made later, when the run has a folder. A part that is null
            is left to its default.

    Raises:
        PflError: If one is not possible.
    """
    parser = run_parser()
    known = {name: part for name, part in settings.items() if part is not None}
    known["trainer"] = {**known["trainer"], "logger": False}
    made: Namespace = parser.instantiate(_parsed(parser.parse_object, known))
    return made


def run_parser() -> StrictParser:
    """What parses the settings of a run from Python."""
    parser = StrictParser(exit_on_error=False)
    add_settings(parser)
    return parser


def add_settings(parser: ArgumentParser) -> None:
    """Add the settings of a run to a parser; FedAvg on the embedded digits needs none at all.

    The data set's seed follows ``seed_everything``.
    """
    parser.add_argument("--seed_everything", type=Seed, default=1)
    parser.add_class_arguments(pl.Trainer, "trainer", instantiate=False, fail_untyped=False, sub_configs=True)
    parser.add_subclass_arguments(Method, "model", fail_untyped=False)
    parser.add_subclass_arguments(FederatedDataModule, "data", fail_untyped=False)
    parser.add_class_arguments(RoundCheckpoint, "checkpoint", sub_configs=True)
    parser.add_class_arguments(PercentileErrors, "percentile_errors", sub_configs=True)
    parser.link_arguments("seed_everything", "data.init_args.seed")
    parser.set_defaults({f"trainer.{option}": value for option, value in TRAINER.items()})
    methods, data = "pfl_lightning.methods.FedAvg", "pfl_lightning.data.Digits"
    parser.set_defaults({"model": {"class_path": methods}, "data": {"class_path": data}})


def _parsed(parse: Callable[[Any], Any], given: Any) -> Namespace:
    try:
        parsed: Namespace = parse(deepcopy(given))  # it changes settings in place
    except ArgumentError as error:
        raise PflError(explain(str(error))) from error
    return parsed


def _without(part: Any, places: Sequence[tuple[str, ...]], *here: str) -> Any:
    """Settings without those at some places."""
    if not isinstance(part, Mapping):
        return part
    names = [name for name in part if (*here, name) not in places]
    return {name: _without(part[name], places, *here, name) for name in names}


def _lacks(given: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether an object from Python is for an argument that has no default, so that the parser would ask for it."""
    kind = import_object(settings["class_path"])
    gone = settings.get("init_args", {}).keys() - given.get("init_args", {}).keys()
    return any(default_arguments(kind).get(name) is Parameter.empty for name in gone)


def _is_ours(callback: pl.Callback) -> bool:
    return type(callback).__module__.startswith("pfl_lightning.")
