"""The runs of a sweep: every method with every value of what varies and every seed."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import quote

from yaml import YAMLError

from pfl_lightning.errors import PflError
from pfl_lightning.runs.resume import Resume, changes_on_resume, find_resume
from pfl_lightning.runs.run_settings import settings_of
from pfl_lightning.settings.parser import load_settings
from pfl_lightning.settings.shipped_files import CONFIG_FLAGS
from pfl_lightning.settings.values import LOGGED, SAME_NUMBERS, Settings, changes, flat, named_callbacks, outermost

# set by the sweep itself; the seed of the data set follows the other
OWN = ("--seed_everything", "--data.seed", "--data.init_args.seed", "--trainer.default_root_dir", "--ckpt_path")
OF_PLACE = ("default_root_dir", "enable_progress_bar")  # what a sweep sets of the trainer
# searches have threads; jsonargparse has one state for a process, and moves its working folder while it reads a file
PARSING = Lock()
BEST = "best.yaml"  # the best settings of a search
KEEP = "keep the old value, or choose another --out"


class PlannedRun(NamedTuple):
    """A run of the sweep: its name in progress lines, folder, arguments of ``pfl fit``, and all that these set."""

    name: str
    folder: Path
    args: list[str]
    settings: dict[str, Any]

    def numbered(self, number: str) -> "PlannedRun":
        """This run with a number before its name."""
        return self._replace(name=f"{number} {self.name}")

    def resume(self) -> Resume | None:
        """Its newest checkpoint, if there is one; a PflError if that has other settings."""
        resume = self._newest()
        changed = changes_on_resume(resume, self.settings) if resume else {}
        for key, (before, now) in changed.items():
            if key not in SAME_NUMBERS:
                raise PflError(f"{key}: {before} in the checkpoint, {now} now; {KEEP}")
        return resume

    def refuse_too_late(self, finished: Resume) -> None:
        """Refuse what a finished run would have had to do in its rounds, and fewer rounds; more would continue it.

        Raises:
            PflError: If that is asked for now.
        """
        rounds = finished.content["global_step"]
        before = observed(finished.content["config"], rounds)
        after = observed(self.settings, min(rounds, self.settings["trainer"]["max_steps"]))
        if changed := changes(before, after):
            first = outermost(changed)[0]
            raise PflError("{}: {} in the finished run, {} now; {}".format(first, *changed[first], KEEP))

    def _newest(self) -> Resume | None:
        for versions in sorted(self.folder.glob("*")):  # whatever the run was called: no other is in its folder
            with suppress(PflError):
                return find_resume("last", versions)
        return None


def observed(settings: Settings, rounds: int) -> dict[str, Any]:
    """The flat settings by which a run of some rounds is evaluated and logged, whatever it trains."""
    trainer = settings["trainer"]
    callbacks = dict(named_callbacks(trainer.get("callbacks")))
    observing = {"val_check_interval": trainer.get("val_check_interval"), "callbacks": callbacks, "max_steps": rounds}
    return dict(flat({"trainer": observing, **{section: settings.get(section) for section in LOGGED}}))


def has_begun(folder: Path) -> bool:
    """Whether a run came as far as making its own folder below this one, for which its data must be there."""
    return any(folder.glob("*/version_*"))


class Plan(NamedTuple):
    """What the runs of a sweep share.

    Attributes:
        methods: Settings files of the methods, or their classes.
        seeds: Values of ``seed_everything``.
        passed: Other arguments of ``pfl fit``.
        out: Folder of all runs.
        prefix: What the names of all runs begin with in progress lines.
    """

    methods: Sequence[str]
    seeds: Sequence[int]
    passed: Sequence[str]
    out: Path
    prefix: str = ""

    def check(self, option: str, varied: Iterable[str]) -> None:
        """Refuse methods whose runs would share a folder, what the sweep sets itself, and what is no setting of a run.

        Args:
            option: The option that lists what varies, for errors.
            varied: The keys of what varies.

        Raises:
            PflError: If there is one, or no method or seed.
        """
        for name, given in (("methods", self.methods), ("seeds", self.seeds)):
            if not given:
                raise PflError(f"{name}: a value is missing")
        names = list(map(self.name, self.methods))
        for name in names:
            if names.count(name) > 1:
                allowed = "files with different names, or in folders with different names"
                raise PflError(f"methods: {name} is listed twice; allowed: {allowed}")
        for word in [*self.passed, *(f"--{key}" for key in varied)]:
            if word.partition("=")[0] in OWN:
                raise PflError(f"{word} is not possible, the sweep sets it; allowed: --seeds, --out")
            if word == "-h" or word.startswith("--help"):
                raise PflError(f"{word} is not possible in a sweep; allowed: the options that pfl fit --help lists")
        for key in varied:
            if ("." not in key and key not in ("model", "data")) or key.endswith(".help"):
                raise PflError(f"{option}: {key} is not possible; allowed: settings of a run, such as model.local.lr")

    def name(self, method: str) -> str:
        """Name of a method's runs: that of its class, or of its file, or of the folder of files of the same name.

        ``best.yaml`` of a search is always named by its folder, whatever else runs.
        """
        if not is_file(method):
            return method.rpartition(".")[2]
        path = Path(method)
        with PARSING:
            files = {Path(other).resolve() for other in self.methods if is_file(other)}
            folder = path.resolve().parent.name
        is_shared = [other.stem for other in files].count(path.stem) > 1 or path.name == BEST
        return folder if is_shared else path.stem

    def grid(self, varied: Mapping[str, Sequence[str]]) -> list[PlannedRun]:
        """The runs with all combinations of what varies, method by method, then value by value.

        Raises:
            PflError: If the settings of a run are wrong.
        """
        kinds = product(self.methods, combinations(varied))
        runs = [run for method, values in kinds for run in self.runs(method, values)]
        return [run.numbered(f"{number}/{len(runs)}") for number, run in enumerate(runs, start=1)]

    def runs(self, method: str, values: Mapping[str, str]) -> list[PlannedRun]:
        """The runs of some settings, one for each seed.

        Args:
            method: Settings file of the method, or its class.
            values: Settings of these runs, by key.

        Raises:
            PflError: If the settings are wrong.
        """
        method_name = self.name(method)
        name = self.prefix + ", ".join([method_name, *labels(values)])
        varied = [f"--{key}={value}" for key, value in values.items()]
        args = [*with_method(self.passed, method), "--trainer.enable_progress_bar=false", *varied]
        with PARSING:
            settings = settings_of([*args, f"--seed_everything={self.seeds[0]}"])  # no other depends on seed or folder
        runs = []
        for seed in self.seeds:
            folder = self.out / folder_name(method_name, values) / f"seed_{seed}"
            trainer = {**settings["trainer"], "default_root_dir": str(folder)}
            options = [f"--seed_everything={seed}", f"--trainer.default_root_dir={folder}"]
            of_seed = {**settings, "seed_everything": seed, "trainer": trainer}
            runs.append(PlannedRun(f"{name}, seed {seed}", folder, [*args, *options], of_seed))
        return runs


def without_place(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a planned run without its seed and folder, with which others can be run."""
    trainer = {key: value for key, value in settings["trainer"].items() if key not in OF_PLACE}
    return {key: value for key, value in settings.items() if key != "seed_everything"} | {"trainer": trainer}


def labels(values: Mapping[str, str]) -> list[str]:
    """Settings such as ``lr=0.1``, by the last part of each key, or by whole keys if two of them end alike."""
    keys = [key.rpartition(".")[2] for key in values]
    if len({*keys}) < len(keys):
        keys = list(values)
    return [f"{key}={value}" for key, value in zip(keys, values.values(), strict=True)]


def folder_name(method: str, values: Mapping[str, str]) -> str:
    """The folder of a method's runs under some settings, with a folder for each seed."""
    return ",".join([method, *(quote(label, safe="=,[]+") for label in labels(values))])


def combinations(varied: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """All combinations of values, by key."""
    return [dict(zip(varied, values, strict=True)) for values in product(*varied.values())]


def values_by_key(vary: Sequence[str], option: str = "vary") -> dict[str, list[str]]:
    """The values of each setting that varies, as the command line takes them.

    Args:
        vary: A setting and its values each, such as ``model.local.lr=0.1,0.03``.
        option: The option that lists them, for errors.

    Raises:
        PflError: If a setting has no values, or is listed twice, or one of its values is.
    """
    varied: dict[str, list[str]] = {}
    for word in vary:
        key, _, text = word.partition("=")
        values = parse(f"[{text}]")
        if not key or not values:
            allowed = "a setting and its values: model.local.lr=0.1,0.03; in a file in quotes, for the comma"
            raise PflError(f"{option}: {word} is not possible; allowed: {allowed}")
        if key in varied or any(values.count(value) > 1 for value in values):
            raise PflError(f"{option}: {word}: {key}, or one of its values, is listed twice; allowed: once")
        varied[key] = [v if isinstance(v, str) else json.dumps(v, separators=(",", ":")) for v in values]
    return varied


def parse(text: str) -> Any:
    """YAML as plain values; None if it is wrong."""
    with suppress(YAMLError):
        return load_settings(text)
    return None


def with_method(passed: Sequence[str], method: str) -> list[str]:
    """The arguments with the method after the files, such as the data set's, and before the options."""
    end = 0
    for index, word in enumerate(passed, start=1):
        flag, has_value, _ = word.partition("=")
        if flag in CONFIG_FLAGS:
            end = index if has_value else index + 1
    return [*passed[:end], "--config" if is_file(method) else "--model", method, *passed[end:]]


def is_file(method: str) -> bool:
    """Whether a method is given by its settings file, and not by its class."""
    return method.endswith(".yaml") or Path(method).is_file()
