"""Run folders: where a run is stored, which checkpoint it resumes from, and which settings may change then."""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pfl_lightning.callbacks.checkpoint_files import LAST, PREVIOUS
from pfl_lightning.callbacks.run_folder import CHECKPOINTS, versions
from pfl_lightning.cli.parser import PflParser, plain
from pfl_lightning.errors import PflError
from pfl_lightning.methods import DamagedError, check_run, check_training, read_checkpoint
from pfl_lightning.settings import Settings, flat, is_doubling, named_callbacks

HONOURED = ("lr", "root", "new_clients", "new_head_epochs")  # settings whose keys end so may change when a run resumes


class Resume(NamedTuple):
    """What a run resumes from.

    Attributes:
        checkpoint: The file.
        content: Its content.
        folder: The folder of the run, if this is its newest checkpoint.
    """

    checkpoint: Path
    content: dict[str, Any]
    folder: Path | None


def expand_path(path: str | Path, key: str) -> Path:
    """A folder as the user means it: with the home folder for ``~``, and the values of environment variables.

    Args:
        path: What the user wrote.
        key: The option.

    Raises:
        PflError: If there is no such user, or a variable is not set.
    """
    found = os.path.expanduser(os.path.expandvars(path))
    unknown = re.search(r"^~[^/]*|\$\w+|\$\{\w+\}", found)
    if unknown:
        raise PflError(f"{key}: {path} is not possible, {unknown[0]} is not known here; allowed: a folder")
    return Path(found)


def find_resume(ckpt_path: str, parent: Path, training: bool = True) -> Resume:
    """Find what ``--ckpt_path`` names.

    Args:
        ckpt_path: A checkpoint, or ``last`` for the newest one of the newest run that has any.
        parent: The folder of the runs of this method and data set.
        training: Whether training continues from it.

    Raises:
        PflError: If there is no checkpoint, or it is damaged, or something in it is missing or wrong.
    """
    resume = _find(ckpt_path, parent)
    check_run(resume.content)
    if training:
        check_training(resume.content)
    return resume


def _find(ckpt_path: str, parent: Path) -> Resume:
    if ckpt_path == "last":
        for _, folder in reversed(versions(parent)):
            if resume := _newest(folder):
                return resume
        raise PflError(
            f"ckpt_path: last, but no run in '{parent}' has a readable checkpoint; start without --ckpt_path"
        )
    path = Path(ckpt_path)
    if not path.is_file():
        raise PflError(f"ckpt_path: no such file: '{ckpt_path}'; allowed: a checkpoint file, or last")
    content = read_checkpoint(path)
    at = path if path.parent.name == CHECKPOINTS and not path.is_symlink() else path.resolve()
    newest = at.name == LAST and at.parent.name == CHECKPOINTS
    return Resume(path, content, at.parent.parent if newest else None)


def refuse_changes(old: Settings, new: Settings) -> list[str]:
    """Compare the settings of a run that is resumed with those of its checkpoint.

    An option that is younger than the checkpoint had its default there; one that its class no longer has is ignored.

    Args:
        old: Settings in the checkpoint.
        new: Settings now.

    Returns:
        A line for each setting that has changed and may.

    Raises:
        PflError: If a setting has changed that must stay the same throughout a run.
    """
    before, after = (dict(_comparable(settings)) for settings in (old, new))
    lines = []
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        if was != now:
            if not key.endswith(HONOURED):
                raise PflError(f"{key}: {was} in the checkpoint, {now} now; keep the old value, or start a new run")
            lines.append(f"{key}: {was} in the checkpoint, {now} from now on")
    return lines


def _newest(folder: Path) -> Resume | None:
    for name in (LAST, PREVIOUS):
        path = folder / CHECKPOINTS / name
        if path.is_file():
            try:
                return Resume(path, read_checkpoint(path), folder)
            except DamagedError:
                warnings.warn(f"'{path}' is damaged; falling back to the checkpoint before it", stacklevel=2)
    return None


def _comparable(settings: Settings) -> Iterator[tuple[str, Any]]:
    """The settings that make up a run, flat."""
    trainer = settings.get("trainer", {})
    parts = {key: settings.get(key) for key in ("seed_everything", "model", "data")}
    parts |= {name: callback for name, callback in named_callbacks(trainer.get("callbacks")) if is_doubling(name)}
    yield from flat({key: _completed(part) for key, part in parts.items()})
    yield "trainer.precision", trainer.get("precision")
    yield "checkpoint.monitor", settings.get("checkpoint", {}).get("monitor")


def _completed(settings: Any) -> Any:
    """Settings with the options that their classes have, and with no others; one that is not there has its default."""
    if not isinstance(settings, Mapping):
        return settings
    given, options = settings, settings.get("init_args", {})
    if isinstance(options, Mapping) and (kind := _known_class(settings.get("class_path"))) is not None:
        defaults = _default_options(kind)
        given = {**settings, "init_args": {name: options.get(name, defaults[name]) for name in defaults}}
    return {name: _completed(inner) for name, inner in given.items()}


def _known_class(class_path: Any) -> type | None:
    """A class by its path, if this run has imported it; others are not imported, as a checkpoint may name any."""
    module, _, name = str(class_path).rpartition(".")
    kind = getattr(sys.modules.get(module), name, None)
    return kind if isinstance(kind, type) else None


@cache
def _default_options(kind: type) -> dict[str, Any]:
    """Every option of a class, with its default."""
    parser = PflParser()
    parser.add_class_arguments(kind, "of", fail_untyped=False)
    options: dict[str, Any] = plain(parser, parser.get_defaults(skip_validation=True), validate=False).get("of", {})
    return options
