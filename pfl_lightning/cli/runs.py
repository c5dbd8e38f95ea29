"""Run folders: where a run is stored, which checkpoint it resumes from, and which settings may change then."""

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from pydoc import locate
from typing import Any, NamedTuple

import torch

from pfl_lightning.callbacks.checkpointing import LAST, PREVIOUS
from pfl_lightning.callbacks.run_folder import CHECKPOINTS, versions
from pfl_lightning.cli.parser import PflParser, plain
from pfl_lightning.errors import PflError
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


def place(path: str | Path, key: str) -> Path:
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


def find_resume(ckpt_path: str, parent: Path) -> Resume:
    """Find what ``--ckpt_path`` names.

    Args:
        ckpt_path: A checkpoint, or ``last`` for the newest one of the newest run that has any.
        parent: The folder of the runs of this method and data set.

    Raises:
        PflError: If there is no checkpoint, or none that can be read.
    """
    if ckpt_path == "last":
        for _, folder in reversed(versions(parent)):
            if resume := _newest(folder):
                return resume
        raise PflError(
            f"ckpt_path: last, but no run in '{parent}' has a readable checkpoint; start without --ckpt_path"
        )
    path = Path(ckpt_path)
    if not path.is_file():
        raise PflError(f"ckpt_path: no such file: '{path}'; allowed: a checkpoint file, or last")
    content = read_checkpoint(path)
    if content is None:
        raise PflError(f"ckpt_path: cannot read '{path}': not a complete checkpoint of pfl fit")
    newest = path.name == LAST and path.parent.name == CHECKPOINTS
    return Resume(path, content, path.parent.parent if newest else None)


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """What a checkpoint holds, or None if it is not complete."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        return None
    return content if isinstance(content, dict) and "method" in content else None


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
            if (content := read_checkpoint(path)) is not None:
                return Resume(path, content, folder)
            warnings.warn(f"'{path}' is not complete; falling back to the checkpoint before it", stacklevel=2)
    return None


def _comparable(settings: Settings) -> Iterator[tuple[str, Any]]:
    """The settings that make up a run, flat."""
    trainer = settings.get("trainer", {})
    parts = {key: settings.get(key) for key in ("seed_everything", "model", "data")}
    parts |= {name: callback for name, callback in named_callbacks(trainer.get("callbacks")) if is_doubling(name)}
    yield from flat({key: _completed(part) for key, part in parts.items()})
    yield "trainer.precision", trainer.get("precision")


def _completed(settings: Any) -> Any:
    """Settings with the options that their classes have, and with no others; one that is not there has its default."""
    if not isinstance(settings, Mapping):
        return settings
    given = settings
    if "class_path" in settings and (defaults := _default_options(settings["class_path"])) is not None:
        options = settings.get("init_args", {})
        given = {**settings, "init_args": {name: options.get(name, defaults[name]) for name in defaults}}
    return {name: _completed(inner) for name, inner in given.items()}


@cache
def _default_options(class_path: str) -> dict[str, Any] | None:
    """Every option of a class, if there is such a class."""
    kind = locate(class_path)
    if not isinstance(kind, type):
        return None
    parser = PflParser()
    parser.add_class_arguments(kind, "of", fail_untyped=False)
    options: dict[str, Any] = plain(parser, parser.get_defaults(skip_validation=True), validate=False).get("of", {})
    return options
