"""Checkpoints by name: what a run resumes from or is evaluated with, and which settings may change then."""

import hashlib
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping

from pfl_lightning.callbacks.evaluation import rounds_kept_on_resume
from pfl_lightning.callbacks.labels import is_doubling, run_name
from pfl_lightning.callbacks.round_checkpoint import LAST, PREVIOUS
from pfl_lightning.callbacks.run_folder import CHECKPOINTS
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.federation.checkpoints import FILE, DamagedError, read_checkpoint, refusal, refusing
from pfl_lightning.methods import Method
from pfl_lightning.objects import (
    default_arguments,
    known_subclass,
    public_path,
    to_settings,
    unserializable_keys,
    users_modules,
)
from pfl_lightning.paths import expand_home
from pfl_lightning.report.run_files import NO_MATTER, read_label
from pfl_lightning.runs.folders import versions
from pfl_lightning.settings.parser import CheckpointParser, strict_parsing
from pfl_lightning.settings.registry import options_of
from pfl_lightning.settings.values import LOGGED, Settings, changes, flat, may_change, named_callbacks, outermost

# options of the trainer that an evaluation does not take over from training
OF_PROCESSES = ("devices", "num_nodes", "strategy")
ENTRIES = {  # what a checkpoint says of its run, and the type of each
    FILE: str,
    "config": dict,
    "global_step": int,
    "fingerprint": str,
    "callbacks": dict,
    "monitor": str,
    "changed": dict,  # ``Label.changed``
}


class Resume(NamedTuple):
    """What a run resumes from.

    Attributes:
        checkpoint: The file.
        content: What it says of its run; the tensors of all clients would stay in memory as long as the run.
        folder: The folder of the run, if this is its newest checkpoint.
    """

    checkpoint: Path
    content: dict[str, Any]
    folder: Path | None

    @property
    def run(self) -> Path | None:
        """The run folder that the checkpoint is in, whichever of its checkpoints it is; None for a lone file."""
        place = _place(self.checkpoint)
        return place.parent.parent if place.parent.name == CHECKPOINTS else None


def expand_path(path: str | Path, key: str) -> Path:
    """A folder as the user means it: with the home folder for ``~``, and the values of environment variables.

    Args:
        path: What the user wrote.
        key: The option.

    Raises:
        PflError: If it is empty, there is no such user, or a variable is not set.
    """
    expanded = os.path.expandvars(path)
    if unknown := re.search(r"\$\w+|\$\{\w+\}", expanded):
        raise PflError(f"{key}: {unknown[0]} in {path} is not known here")
    return expand_home(expanded, key)


def runs_folder(settings: Settings) -> Path:
    """Where the runs of a method and a data set are.

    Args:
        settings: All settings of a run.

    Raises:
        PflError: If the folder that the runs are in is not known here.
    """
    return expand_path(settings["trainer"]["default_root_dir"], "trainer.default_root_dir") / run_name(settings)


def find_resume(ckpt_path: str, parent: Path) -> Resume:
    """Find what ``--ckpt_path`` names.

    Args:
        ckpt_path: A checkpoint, a run folder for its newest one, or ``last`` for that of the newest run that has any.
        parent: The folder of the runs of this method and data set.

    Raises:
        PflError: If there is no checkpoint, or it is damaged, or something in it is missing or wrong.
    """
    if ckpt_path == "last":
        for _, folder in reversed(versions(parent)):
            if resume := _newest(folder):
                return resume
        raise PflError(
            f"ckpt_path: last, but no run in '{parent}' has a readable checkpoint; start without --ckpt_path"
        )
    path = Path(ckpt_path)
    if ckpt_path and path.is_dir():
        if resume := _newest(path):
            return resume
        raise PflError(f"ckpt_path: '{path}' has no readable checkpoint; allowed: a run folder, a checkpoint, or last")
    if not path.is_file():
        raise PflError(f"ckpt_path: no such file: '{ckpt_path}'; allowed: a run folder, a checkpoint, or last")
    resume = Resume(path, _entries_of_run(path), None)
    return resume._replace(folder=resume.run if _place(path).name == LAST else None)


def settings_along(resume: Resume, **parts: Any) -> dict[str, Any]:
    """The settings that a checkpoint brings along to be evaluated, but for its loggers and its processes.

    Args:
        resume: The checkpoint.
        parts: What replaces a part of them, such as ``data``.

    Raises:
        PflError: If it has none, because it was not saved by ``pfl fit``, or they lack an object from Python.
    """
    with refusing(resume.content):
        config = dict(resume.content["config"])
        trainer = {key: value for key, value in config["trainer"].items() if key not in OF_PROCESSES}
    _refuse_unserializable({section: part for section, part in config.items() if section not in {"trainer", *parts}})
    return {**config, "trainer": {**trainer, "logger": False}, **parts}


@strict_parsing()
def load_method(path: str | PathLike[str], **arguments: Any) -> Method:
    """Load a method from a checkpoint, with its own class, ready to be evaluated or trained further.

    Of the classes that a checkpoint names, only those are called that are methods, or of the types that a method's
    arguments have; where such a type is anything that can be called, a torch module or a class of this package. The
    method and its task are of this package, of a file of the user's, or of a module that the program has imported; to
    look another class up, the module that it names is imported.

    Args:
        path: The checkpoint.
        arguments: Constructor arguments that take the place of the checkpoint's. They are needed where settings cannot
            say what the method was made with, such as a ``network`` or a ``loss`` that is a function of your own.

    Raises:
        PflError: If the checkpoint is damaged, or something in it is missing or wrong.
    """
    checkpoint = read_checkpoint(path)
    with refusing(checkpoint):
        settings = checkpoint.get("config", checkpoint)["model"]
        kind = known_subclass(settings["class_path"], Method)
        if kind is None:
            raise refusal(checkpoint, f"model must be a subclass of Method, got {settings['class_path']}")
        options = {name: value for name, value in settings["init_args"].items() if name not in arguments}
        _refuse_unserializable({"model": options})
        parser = CheckpointParser()
        parser.add_class_arguments(kind, "model", instantiate=False, fail_untyped=False)
        made = parser.instantiate(parser.parse_object({"model": options}, defaults=False))
        saved_arguments = {name: made.model[name] for name in options}
        method: Method = kind(**saved_arguments, **arguments)
    method.on_load_checkpoint(checkpoint)
    return method


def _refuse_unserializable(settings: Settings) -> None:
    """Refuse settings of a checkpoint that lack an object from Python."""
    for path in unserializable_keys(settings):
        key = ".".join(name for name in path if name not in ("class_path", "init_args"))
        allowed = "Run(folder, method=..., data=...), or load_method(path, network=...) with what is missing"
        raise PflError(f"{key} is from Python and not in the checkpoint; allowed: {allowed}")


def _place(checkpoint: Path) -> Path:
    """Where a checkpoint is: a link to one is where it points to."""
    is_own = checkpoint.parent.name == CHECKPOINTS and not checkpoint.is_symlink()
    return checkpoint if is_own else checkpoint.resolve()


def changes_on_resume(resume: Resume, settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Compare the settings of a run that is resumed with those of its checkpoint.

    Args:
        resume: The checkpoint.
        settings: Settings now.

    Returns:
        What each setting was and is that has changed and may.

    Raises:
        PflError: If settings have changed that must stay the same throughout a run; it names them all.
    """
    changed = changes(_kept(resume.content["config"]), _kept(settings))
    if refused := outermost([key for key in changed if not may_change(key)]):
        reasons = "; ".join("{}: {} in the checkpoint, {} now".format(key, *changed[key]) for key in refused)
        plural = "s" * (len(refused) > 1)
        folder = resume.run or resume.checkpoint
        raise PflError(f"{reasons}; keep the old value{plural} for '{folder}', or start a new run")
    return changed


def changed_so_far(resume: Resume, settings: Settings) -> dict[str, str]:
    """``Label.changed`` of a run that goes on from a checkpoint with some settings."""
    texts: dict[str, str] = dict(resume.content["changed"])
    for key, (before, _) in changes_on_resume(resume, settings).items():
        if key not in NO_MATTER:
            since = f"{before} until round {resume.content['global_step']}"
            texts[key] = ", ".join(filter(None, [texts.get(key), since]))
    return texts


def code_of(settings: Settings) -> dict[str, str]:
    """Hash of each module of the user's own that settings name; what these import is not in it."""
    return {
        module: hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()
        for module, file in users_modules(settings)
    }


def other_code(folder: Path, settings: Settings) -> list[str]:
    """The modules of the user's own that are not what they were when a run began, as far as that is known."""
    before: Mapping[str, str] = {}
    with suppress(PflError):  # a run that was not made for reports
        before = read_label(folder).code or {}
    return [module for module, now in code_of(settings).items() if before.get(module, now) != now]


def refuse_stopped(checkpoint: Mapping[str, Any], settings: Settings, callbacks: Iterable[pl.Callback]) -> None:
    """Refuse to continue a run that ``EarlyStopping`` has ended, unless its options are others now.

    Settings do not say those of a callback from Python, of which only a larger patience is seen.

    Raises:
        PflError: If training would go on as if nothing had been.
    """
    is_same = _early_stopping(checkpoint["config"]) == _early_stopping(settings)
    rounds_kept = rounds_kept_on_resume(checkpoint, settings["trainer"].get("val_check_interval"))
    states = checkpoint["callbacks"] if rounds_kept == checkpoint["global_step"] else {}
    for callback in [callback for callback in callbacks if isinstance(callback, EarlyStopping)]:
        state = states.get(callback.state_key, {})
        if state.get("stopping_reason") and is_same and callback.patience <= state["patience"]:
            raise PflError(
                f"ckpt_path: EarlyStopping has ended this run after round {checkpoint['global_step']}; allowed: a "
                "larger trainer.callbacks.patience, or trainer.callbacks without it"
            )


def has_stopped(checkpoint: Mapping[str, Any]) -> bool:
    """Whether ``EarlyStopping`` has ended a run with this checkpoint, or ``OracleDoubling`` has reached its target."""
    keeps_all_rounds = rounds_kept_on_resume(checkpoint) == checkpoint["global_step"]
    states = checkpoint["callbacks"].items()
    ends = [state for key, state in states if key.startswith(("EarlyStopping", "OracleDoubling"))]
    return any((keeps_all_rounds and state.get("stopping_reason")) or state.get("arrived") for state in ends)


def _early_stopping(settings: Settings) -> list[Any]:
    callbacks = named_callbacks(settings["trainer"].get("callbacks"))
    return [callback.get("init_args") for name, callback in callbacks if name == "EarlyStopping"]


def with_data_defaults(settings: Settings) -> dict[str, Any]:
    """Settings in which arguments of the data set that are null have the values that it uses for them."""
    data = settings["data"]
    kind = known_subclass(data["class_path"], FederatedDataModule)
    defaults = kind.default_values() if kind else {}
    values = {name: _default_settings(value) if isinstance(value, type) else value for name, value in defaults.items()}
    values |= {name: value for name, value in data["init_args"].items() if value is not None}
    return {**settings, "data": {**data, "init_args": {**data["init_args"], **values}}}


def _newest(folder: Path) -> Resume | None:
    for name in (LAST, PREVIOUS):
        path = folder / CHECKPOINTS / name
        if path.is_file():
            try:
                return Resume(path, _entries_of_run(path), folder)
            except DamagedError:
                warnings.warn(f"'{path}' is damaged; falling back to the checkpoint before it", stacklevel=2)
    return None


def _entries_of_run(path: Path) -> dict[str, Any]:
    content = {"changed": {}, **read_checkpoint(path)}  # which those of former versions lack
    with refusing(content):
        for name, kind in ENTRIES.items():
            if type(content[name]) is not kind:
                raise refusal(content, f"{name} must be of the type {kind.__name__}, got {content[name]!r}")
    if content["global_step"] < 0:
        raise refusal(content, f"global_step must be 0 or more, got {content['global_step']}")
    return {name: content[name] for name in ENTRIES}


def _kept(settings: Settings) -> dict[str, Any]:
    """The flat settings that a run keeps while it trains: of the trainer, its precision and who takes part."""
    trainer = settings["trainer"]
    callbacks = named_callbacks(trainer.get("callbacks"))
    doubling = {name: callback for name, callback in callbacks if is_doubling(callback)}
    sections = {
        **with_data_defaults(settings),
        "trainer": {"precision": trainer.get("precision") or "32-true", "callbacks": doubling},
    }
    return dict(flat({name: section for name, section in sections.items() if name not in LOGGED}))


def _default_settings(kind: type) -> dict[str, Any]:
    """The settings of an object that is constructed without arguments, with all defaults."""
    defaults = default_arguments(kind)
    arguments = {name: to_settings(defaults[name]) for name in options_of(kind)}
    return {"class_path": public_path(kind), "init_args": arguments}
