"""The runs of a sweep: every method with every value of what varies and every seed."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, islice, product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from yaml import YAMLError

from pfl_lightning.cli.fit import settings_of
from pfl_lightning.errors import PflError
from pfl_lightning.runs.resume import Resume, find_resume, refuse_changes
from pfl_lightning.settings.parser import load_settings
from pfl_lightning.settings.shipped_files import FLAGS
from pfl_lightning.settings.values import SAME_NUMBERS, Settings, changes, flat, named_callbacks, outermost

# set by the sweep itself; the seed of the data set follows the other
OWN = ("--seed_everything", "--data.seed", "--data.init_args.seed", "--trainer.default_root_dir", "--ckpt_path")
KEEP = "keep the old value, or choose another --out"


class PlannedRun(NamedTuple):
    """A run of the sweep: its name in progress lines, folder, arguments of ``pfl fit``, and all that these set."""

    name: str
    folder: Path
    args: list[str]
    settings: dict[str, Any]

    def resume(self) -> Resume | None:
        """Its newest checkpoint, if there is one; a PflError if that has other settings."""
        found = self._newest()
        for line in refuse_changes(found, self.settings) if found else ():
            if not line.startswith(SAME_NUMBERS):
                raise PflError(f"{line}; {KEEP}")
        return found

    def refuse_too_late(self, finished: Resume) -> None:
        """Refuse what a finished run would have had to do in its rounds, and fewer rounds; more would continue it.

        Raises:
            PflError: If that is asked for now.
        """
        before, after = (dict(flat(observed(each))) for each in (finished.content["config"], self.settings))
        before["trainer.max_steps"] = done = finished.content["global_step"]
        after["trainer.max_steps"] = min(done, self.settings["trainer"]["max_steps"])
        if changed := changes(before, after):
            first = outermost(changed)[0]
            raise PflError("{}: {} in the finished run, {} now; {}".format(first, *changed[first], KEEP))

    def _newest(self) -> Resume | None:
        for versions in sorted(self.folder.glob("*")):  # whatever the run was called: no other is in its folder
            with suppress(PflError):
                return find_resume("last", versions)
        return None


def observed(settings: Settings) -> dict[str, Any]:
    """The settings by which a run is evaluated and logged, whatever it trains."""
    trainer = settings["trainer"]
    callbacks = {f"trainer.callbacks.{name}": each for name, each in named_callbacks(trainer.get("callbacks"))}
    every = {"trainer.val_check_interval": trainer.get("val_check_interval")}
    return {"percentile_errors": settings.get("percentile_errors"), **every, **callbacks}


def has_begun(folder: Path) -> bool:
    """Whether a run came as far as making its own folder below this one, for which its data must be there."""
    return any(folder.glob("*/version_*"))


def plan(
    methods: Sequence[str], vary: Sequence[str], seeds: Sequence[int], passed: Sequence[str], out: Path
) -> Iterator[PlannedRun]:
    """The runs of a sweep, method by method, then value by value.

    Args:
        methods: Settings files of the methods.
        vary: What varies, such as ``model.lr=0.1,0.03``; of several the runs are all combinations.
        seeds: Values of ``seed_everything``.
        passed: Other arguments of ``pfl fit``.
        out: Folder of all runs.

    Raises:
        PflError: If something is listed twice, or is not for a sweep to set.
        SystemExit: With code 2 if the settings of a run are wrong.
    """
    varied = values_by_key(vary)
    check(methods, varied, passed, "vary")
    grid = [dict(zip(varied, values, strict=True)) for values in product(*varied.values())]
    seeds, kinds = list(dict.fromkeys(seeds)), list(product(methods, grid))
    numbers = (f"{number}/{len(kinds) * len(seeds)}" for number in count(1))
    for method, values in kinds:
        yield from planned_runs(islice(numbers, len(seeds)), method, values, seeds, passed, out)


def planned_runs(
    numbers: Iterable[str],
    method: str,
    values: Mapping[str, str],
    seeds: Sequence[int],
    passed: Sequence[str],
    out: Path,
) -> list[PlannedRun]:
    """The runs of some settings, one for each seed.

    Args:
        numbers: What their names begin with.
        method: Settings file of the method.
        values: Settings of these runs, by key.
        seeds: Their ``seed_everything``.
        passed: Other arguments of ``pfl fit``.
        out: Folder of all runs.

    Raises:
        SystemExit: With code 2 if the settings are wrong.
    """
    name, shown = Path(method).stem, shown_keys(list(values))
    labels = [f"{shown[key]}={value}" for key, value in values.items()]
    runs: list[PlannedRun] = []
    for number, seed in zip(numbers, seeds, strict=True):
        folder = out / folder_name(name, labels) / f"seed_{seed}"
        own = [f"--seed_everything={seed}", f"--trainer.default_root_dir={folder}"]
        further = ["--trainer.enable_progress_bar=false", *(f"--{key}={value}" for key, value in values.items())]
        args = [*with_method(passed, method), *own, *further]
        settings = with_seed(runs[0].settings, seed, folder) if runs else settings_of(args)
        runs.append(PlannedRun(f"{number} {', '.join([name, *labels, f'seed {seed}'])}", folder, args, settings))
    return runs


def with_seed(settings: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """The settings of a run with another seed, in another folder; no other setting depends on these."""
    trainer = {**settings["trainer"], "default_root_dir": str(folder)}
    return {**settings, "seed_everything": seed, "trainer": trainer}


def folder_name(method: str, labels: Sequence[str]) -> str:
    """The folder of a method's runs under some settings, such as ``lr=0.1``, with a folder for each seed."""
    return ",".join([method, *(quote(label, safe="=,[]+") for label in labels)])


def shown_keys(keys: Sequence[str]) -> dict[str, str]:
    """What settings are called in folders: the last part of the key, or all of it if two keys end alike."""
    last = {key: key.rpartition(".")[2] for key in keys}
    return last if len(set(last.values())) == len(keys) else {key: key for key in keys}


def values_by_key(vary: Sequence[str], option: str = "vary") -> dict[str, list[str]]:
    """The values of each setting that varies, as the command line takes them.

    Args:
        vary: A setting and its values each, such as ``model.lr=0.1,0.03``.
        option: The option that lists them, for errors.

    Raises:
        PflError: If a setting has no values, or is listed twice, or one of its values is.
    """
    varied: dict[str, list[str]] = {}
    for word in vary:
        key, _, listed = word.partition("=")
        values = []
        with suppress(YAMLError):
            values = load_settings(f"[{listed}]")
        if not key or not values:
            raise PflError(f"{option}: {word} is not possible; allowed: a setting and its values: model.lr=0.1,0.03")
        if key in varied or any(value in values[:index] for index, value in enumerate(values)):
            raise PflError(f"{option}: {word}: {key}, or one of its values, is listed twice; allowed: once")
        varied[key] = [v if isinstance(v, str) else json.dumps(v, separators=(",", ":")) for v in values]
    return varied


def check(methods: Sequence[str], varied: Mapping[str, Any], passed: Sequence[str], option: str) -> None:
    """Refuse methods whose runs would share a folder, what the sweep sets itself, and what is no setting of a run.

    Args:
        methods: Settings files of the methods.
        varied: What varies, by key.
        passed: Other arguments of ``pfl fit``.
        option: The option that lists what varies, for errors.

    Raises:
        PflError: If there is one.
    """
    names = [Path(method).stem for method in methods]
    if twice := {name for name in names if names.count(name) > 1}:
        raise PflError(f"methods: {twice.pop()} is listed twice; allowed: files with different names")
    if own := [word for word in [*passed, *(f"--{key}" for key in varied)] if word.partition("=")[0] in OWN]:
        raise PflError(f"{own[0]} is not possible, the sweep sets it; allowed: --seeds, --out")
    if asked := [word for word in passed if word == "-h" or word.startswith("--help")]:
        raise PflError(f"{asked[0]} is not possible in a sweep; allowed: the options that pfl fit --help lists")
    for key in varied:
        if ("." not in key and key not in ("model", "data")) or key.endswith(".help"):
            raise PflError(f"{option}: {key} is not possible; allowed: settings of a run, such as model.lr")


def with_method(passed: Sequence[str], method: str) -> list[str]:
    """The arguments with the method's file after the other files, such as the data set's, and before the options."""
    files = [index for index, word in enumerate(passed) if word.partition("=")[0] in FLAGS]
    end = max((index + (1 if "=" in passed[index] else 2) for index in files), default=0)
    return [*passed[:end], "--config", method, *passed[end:]]
