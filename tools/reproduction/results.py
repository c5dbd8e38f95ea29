"""Measured values of the runs of a table or figure, and what the paper prints in their place."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from pfl_lightning.data import FederatedDataModule
from pfl_lightning.report import Curve, RunRecord, curves_of
from reproduction.claims import Floats
from reproduction.items import Part, construct, fill, listed, repeats
from reproduction.measures import SPLIT, of_seed
from reproduction.runs import Runs, split_data

Numbers = Mapping[str, Floats | float]  # without an axis where there are no seeds
OTHER = "other: "


class Series(NamedTuple):
    """What is measured.

    Attributes:
        of: Name of the runs.
        minus: Name of those whose values are subtracted, or a series with a measure of its own.
        measure: What is measured of them: its name, or a mapping of its name to its options.
    """

    of: str
    minus: Any = None
    measure: Any = None


class Printed(NamedTuple):
    """Numbers that a paper prints.

    Attributes:
        of: Names of the runs that they are of, which the rules of the block repeat.
        numbers: The numbers in this order, by pair or panel.
    """

    of: Any
    numbers: Mapping[str, Any]


class Results:
    """The runs of a part by name, such as ``fedrep,lr=0.1``, or with the evaluated model ``fedrep,lr=0.1 stored``.

    Where the settings say ``labels``, names are the labels of curves.

    Args:
        part: The table or figure.
        runs: Its runs.
        other: The part of another figure that it is compared with; names of its runs begin with ``other: ``.
        numbers: Values by names that are not those of runs.
    """

    def __init__(self, part: Part, runs: Runs, other: "Results | None" = None, numbers: Numbers | None = None) -> None:
        self.part = part
        self.runs = runs
        self.other = other
        self.numbers = numbers or {}
        self.printed = dict(self._printed())
        self.labelled: dict[str, Curve] = {}
        if part.item.get("labels"):
            ordered = chain.from_iterable(runs[name] for name in sorted(runs))  # a method has one colour in all panels
            curves = curves_of([run for run in ordered if run])
            self.labelled = {self.without_usual(curve.label): curve for curve in curves}

    @cached_property
    def data(self) -> FederatedDataModule:
        """The data of the runs, split among the clients."""
        return split_data(self.part.place.options)

    def has(self, name: str) -> bool:
        """Whether there is a curve with a label, or ``other``, a figure to compare with."""
        return name in self.labelled or (name == "other" and self.other is not None)

    def runs_of(self, name: str) -> tuple[Sequence[RunRecord | None], str]:
        """The runs of a name, one per seed, and the model that they are evaluated by."""
        if name in self.labelled:
            return self.labelled[name].runs, self.labelled[name].model
        folder, _, model = name.partition(" ")
        folder = self.without_usual(folder)
        return self.runs[folder], model or self.model_of(folder)

    def without_usual(self, name: str) -> str:
        """A name without what all other runs have, too."""
        for suffix in fill(self.part.item.get("usual", []), self.part.variables):
            name = name.removesuffix(suffix)
        return name

    def model_of(self, folder: str) -> str:
        """The model that the runs of a folder are evaluated by, if a name says nothing else."""
        models: Mapping[str, str] = self.part.item.get("models", {})
        return models.get(folder.rpartition("/")[2].partition(",")[0], models.get("else", "stored"))

    def curve(self, name: str) -> Curve:
        """All finished runs of a name."""
        runs, model = self.runs_of(name)
        return Curve([run for run in runs if run], model)

    def values(self, series: Any, usual: Any = None) -> Floats:
        """Values of some runs, ``[seeds]``, or a single number without an axis.

        Args:
            series: A number, or a name, or settings of a ``Series``.
            usual: The measure of a series that has none of its own.
        """
        if isinstance(series, int | float):
            return np.array(float(series))
        of, minus, measure = construct(Series, series if isinstance(series, Mapping) else {"of": series}, "series")
        measure = measure or usual
        if minus is not None:
            return self.values(of, measure) - self.values(minus, measure)
        if self.other and of.startswith(OTHER):
            return self.other.values(of.removeprefix(OTHER), measure)
        if of in self.numbers:
            return np.array(self.numbers[of])
        if of in SPLIT:
            return np.array(SPLIT[of](self.data))
        measure = measure or fill(self.part.item.get("measure"), self.part.variables)
        name, options = next(iter(measure.items())) if isinstance(measure, Mapping) else (measure, {})
        pairs = [self.runs_of(run) for run in of.split(" / ")]
        models = [model for _, model in pairs]
        by_seed = zip(*(runs for runs, _ in pairs), strict=True)
        return np.array([of_seed(name, list(runs), models, **options) for runs in by_seed])

    def printed_values(self, series: Any, usual: Any = None) -> Floats:
        """The number that the paper prints in place of a series, as a single seed.

        Raises:
            KeyError: If it prints none.
        """
        if isinstance(series, int | float):
            return np.array([float(series)])
        name = series if isinstance(series, str) else ""  # what has a measure of its own is not printed
        return np.array([number_of(self.printed[name])])

    def _printed(self) -> Iterator[tuple[str, Any]]:
        for name in listed(self.part.item.block.printed or []):
            block = self.part.item.common.numbers[name]
            printed = construct(Printed, block, "numbers")
            numbers = flat(printed.numbers.get(self.part.title, []))
            names = [fill(name, row) for row in repeats(block, self.part.variables) for name in listed(printed.of)]
            yield from zip(names, numbers, strict=False)


def number_of(printed: Any) -> float:
    """A printed number without its spread."""
    return float(str(printed).partition(" ±")[0])


def flat(numbers: Any) -> list[Any]:
    """All numbers of nested rows, one after another."""
    if isinstance(numbers, Mapping):
        return flat(list(numbers.values()))
    return [number for row in numbers for number in flat(row)] if isinstance(numbers, list) else [numbers]
