"""What the runs of ``pfl bench`` have reached, kept in two small tables from which its report is drawn."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from pfl_lightning import files
from pfl_lightning.errors import PflError
from pfl_lightning.report.compare_curves import Curve, curves_of
from pfl_lightning.report.measures import worst_tenth
from pfl_lightning.report.run_files import BITS, SAMPLES, TOTAL, check_same_data, data_settings, read_run, settings_of
from pfl_lightning.score_kind import ScoreKind
from pfl_lightning.settings.values import changes, flat

if TYPE_CHECKING:
    import pandas as pd

SCORES = "scores.csv"
CURVES = "curves.csv"
SUITE = "suite.yaml"
TEXT = ("data", "method", "label", "model", "chosen")  # columns
SHARED_MODEL = "global"
OF_DATA = ("data", "settings")  # parts of a suite's settings that are by data set


class Entry(NamedTuple):
    """The runs of a method on a data set, which have ended.

    Attributes:
        data: Name of the data set in the suite.
        method: Name of the method's settings file, or of its class.
        chosen: The settings that the search has chosen, in words.
        seeds: The seed of each run.
        folders: The folder of each run; None if it has diverged before anything was saved.
        seconds: What each run took, nan where that is not known.
    """

    data: str
    method: str
    chosen: str
    seeds: Sequence[int]
    folders: Sequence[Path | None]
    seconds: Sequence[float]

    def is_known(self) -> bool:
        """Whether a run has not diverged."""
        return any(self.folders)


class SuiteResults(NamedTuple):
    """The results of a suite, or of a part of it.

    Attributes:
        suite: Its settings as plain values; those of a data set are in ``data`` and ``settings``, by its name.
        score_kinds: What clients of each data set are evaluated by.
        scores: A row for each data set, method, evaluated model and seed: ``mean`` and ``worst_tenth`` of the clients'
            test scores at the last evaluation, and the mean of the ``shared`` model if that is evaluated beside the
            personal ones; ``bits``, ``samples`` trained on, simulated ``time`` and ``seconds`` of the run. The
            ``label`` names method and model.
        curves: The ``mean`` at each evaluation, a row for each of its rounds.
        contents: Hash of the samples of each data set, where they were read.
    """

    suite: Mapping[str, Any]
    score_kinds: Mapping[str, ScoreKind]
    scores: "pd.DataFrame"
    curves: "pd.DataFrame"
    contents: Mapping[str, str | None]

    def write(self, folder: Path) -> None:
        """Keep the results in a folder; each file that is there is what it was until its new one is whole."""
        kinds = {data: asdict(kind) for data, kind in self.score_kinds.items()}
        kept = {"suite": dict(self.suite), "score_kinds": kinds, "contents": dict(self.contents)}
        files.write_text(yaml.safe_dump(kept, sort_keys=False, width=88), folder / SUITE)
        files.write_text(self.scores.to_csv(index=False), folder / SCORES)
        files.write_text(self.curves.to_csv(index=False), folder / CURVES)

    def with_unique_labels(self) -> "SuiteResults":
        """The same, where of several settings files of one class all but one are named in the label.

        The one has the name of the class, as ``fedavg`` has, or else it is the first.
        """
        owners = {label: _owner(str(label), methods) for label, methods in self.scores.groupby("label")["method"]}
        tables = []
        for table in (self.scores, self.curves):
            is_owner = table["method"] == table["label"].map(owners)
            others = table["label"] + " (" + table["method"] + ")"
            tables.append(table.assign(label=table["label"].where(is_owner, others)))
        return self._replace(scores=tables[0], curves=tables[1])

    @property
    def diverged_everywhere(self) -> list[str]:
        """The data sets on which no run has ended well."""
        return [data for data in self.scores["data"].unique() if data not in self.score_kinds]

    def only(self, labels: Sequence[str]) -> "SuiteResults":
        """The results of some methods."""
        scores, curves = (table[table["label"].isin(labels)] for table in (self.scores, self.curves))
        return self._replace(scores=scores, curves=curves)

    def on(self, data: Collection[str]) -> "SuiteResults":
        """The results on some data sets, as if the suite had no others."""
        suite = {**self.suite, **{key: _some(self.suite[key], data) for key in OF_DATA}}
        scores, curves = (table[table["data"].isin(data)] for table in (self.scores, self.curves))
        return SuiteResults(suite, _some(self.score_kinds, data), scores, curves, _some(self.contents, data))

    def beside(self, kept: "SuiteResults") -> "SuiteResults":
        """These results, and others of the same suite; what both have is of these.

        Raises:
            PflError: If the samples of a data set were others.
        """
        import pandas as pd

        for data in self.contents.keys() & kept.contents.keys():
            if len({self.contents[data], kept.contents[data]} - {None}) > 1:
                raise PflError(f"beside: the files of {data} hold other samples here than for the kept results")

        mine = set(self.scores.set_index(["data", "method"]).index)
        tables = []
        for own, other in ((self.scores, kept.scores), (self.curves, kept.curves)):
            is_mine = other.set_index(["data", "method"]).index.isin(mine)
            tables.append(pd.concat([other[~is_mine], own], ignore_index=True))
        of_data = {key: {**kept.suite[key], **self.suite[key]} for key in OF_DATA}
        kinds = {**kept.score_kinds, **self.score_kinds}
        suite, contents = {**self.suite, **of_data}, {**kept.contents, **self.contents}
        return SuiteResults(suite, kinds, scores=tables[0], curves=tables[1], contents=contents)


def _some(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The values of some names, as far as they have one."""
    return {name: value for name, value in values.items() if name in names}


def _owner(label: str, methods: "pd.Series") -> str:
    """The method whose label needs no more words."""
    names = list(map(str, methods))
    return next((name for name in names if label.lower().startswith(name.lower())), names[0])


def check_same_suite(suite: Mapping[str, Any], kept: SuiteResults, where: Path) -> None:
    """Refuse kept results of a suite with other settings; each may have data sets that the other has not.

    Args:
        suite: Settings of the suite.
        kept: The results.
        where: Their folder, for errors.

    Raises:
        PflError: If they are of another suite.
    """
    common = suite["data"].keys() & kept.suite["data"].keys()
    both = [
        {**each, **{key: {name: each[key][name] for name in common} for key in OF_DATA}} for each in (kept.suite, suite)
    ]
    for key, (theirs, ours) in changes(*(dict(flat(each)) for each in both)).items():
        raise PflError(f"beside: {key}: {theirs} in '{where}', {ours} here; compare results of the same suite")


def read_results(folder: Path) -> SuiteResults:
    """Read what ``SuiteResults.write`` has written.

    Raises:
        PflError: If the folder has no such files.
    """
    import pandas as pd

    try:
        kept = yaml.safe_load((folder / SUITE).read_text())
        kinds = {data: ScoreKind(**kind) for data, kind in kept["score_kinds"].items()}
        scores, curves = (
            pd.read_csv(folder / name, dtype=str, keep_default_na=False).apply(_typed) for name in (SCORES, CURVES)
        )
        return SuiteResults(kept["suite"], kinds, scores, curves, kept["contents"])
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        raise PflError(f"beside: '{folder}' has no results of pfl bench; allowed: a folder of such results") from error


def _typed(column: "pd.Series") -> "pd.Series":
    """A column of a table with its type; numbers to the last digit."""
    if column.name in TEXT:
        return column
    if column.name == "diverged":
        return column == str(True)
    return column.replace("", "nan").map(int if column.name in ("seed", "round") else float)


def suite_results(suite: Mapping[str, Any], entries: Iterable[Entry]) -> SuiteResults:
    """Read the runs of a suite.

    Args:
        suite: Its settings.
        entries: Methods on data sets; at least one run has not diverged.

    Raises:
        PflError: If a folder is not that of a run, or runs of a data set were on other data.
    """
    import pandas as pd

    contents: dict[str, str | None] = {}
    kinds: dict[str, ScoreKind] = {}
    scores: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    runs = [(entry, list(map(read_run, filter(None, entry.folders)))) for entry in entries]
    for data in dict.fromkeys(entry.data for entry, _ in runs):
        same = [run for entry, of_entry in runs if entry.data == data for run in of_entry]
        check_same_data(same)
        contents[data] = next((run.label.content for run in same if run.label.content), None)
    finished = [(entry, curves_of(of_entry)) for entry, of_entry in runs]
    labels: dict[str, dict[str, dict[int, Any]]] = {}
    for entry, curves in finished:
        labels.setdefault(entry.method, {}).update({curve.name: {} for curve in curves})
    for entry, curves in finished:
        about = {"data": entry.data, "method": entry.method}
        if curves:
            kinds[entry.data] = curves[0].score_kind
        finals = {curve.name: _finals(curve) for curve in curves} or labels[entry.method] or {entry.method: {}}
        for label, of_seeds in finals.items():
            for seed, seconds in zip(entry.seeds, entry.seconds, strict=True):
                cells = of_seeds.get(seed, {"diverged": True})
                scores.append(
                    {**about, "label": label, "seed": seed, **cells, "chosen": entry.chosen, "seconds": seconds}
                )
        points += [{**about, **point} for curve in curves for point in _points(curve)]
    return SuiteResults(suite, kinds, pd.DataFrame(scores), pd.DataFrame(points), contents)


def suite_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings of a run that are the same for all methods of a suite, flat: of its data, and how long it is."""
    settings = dict(settings_of(config))
    trainer = {key: value for key, value in settings.items() if key.startswith("trainer.")}
    return data_settings(settings) | trainer


def _finals(curve: Curve) -> dict[int, dict[str, Any]]:
    """What the clients got at the last evaluation, and what the run has cost, by seed."""
    last = int(curve.rounds[-1])
    worst = worst_tenth(curve.score_kind)
    shared = f"test/{SHARED_MODEL}/{curve.score_kind.name}/mean"
    return {
        run.seed: {
            "model": curve.model,
            "mean": mean,
            "worst_tenth": worst(clients),
            "shared": run.logged.at[last, shared] if curve.model != SHARED_MODEL and shared in run.logged else nan,
            "bits": run.counts.at[last, BITS] if BITS in run.counts else nan,
            "samples": run.counts.at[last, SAMPLES] if SAMPLES in run.counts else nan,
            "time": run.logged.at[last, TOTAL],
            "diverged": run.diverged,
        }
        for run, mean, clients in zip(curve.runs, curve.means[:, -1], curve.final("score"), strict=True)
    }


def _points(curve: Curve) -> Iterator[dict[str, Any]]:
    """The mean score at each evaluation of each run."""
    for run, means in zip(curve.runs, curve.means, strict=True):
        for point, mean in zip(curve.rounds, means, strict=True):
            yield {"label": curve.name, "seed": run.seed, "round": point, "mean": mean}
