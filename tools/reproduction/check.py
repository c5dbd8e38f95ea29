"""Makes the runs of a table or figure, shows them, and checks the claims about them."""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from pfl_lightning.report import save_figure
from reproduction.claims import Claim, about
from reproduction.delta_fl import toy
from reproduction.fedmac import recovery
from reproduction.items import (
    Group,
    Item,
    Other,
    Part,
    Search,
    Settings,
    bind,
    construct,
    expanded,
    fill,
    kind_of,
    listed,
    options_of,
    repeats,
)
from reproduction.kinds import claims_of, row_of, slower_with_stragglers
from reproduction.pictures import PICTURES
from reproduction.results import Numbers, Printed, Results
from reproduction.rows import verdicts
from reproduction.runs import Sweep, compare, publish, train
from reproduction.srpfl import linear
from reproduction.stragglers.compare import compare_answers
from reproduction.tables import Table, table, write_csv

COMPUTATIONS: Mapping[str, Callable[[Part], Numbers]] = {
    "sparse_recovery": recovery.numbers,
    "three_gaussians": toy.numbers,
    "linear_representations": linear.numbers,
    "stragglers": compare_answers,
}


class Comparison(NamedTuple):
    """Runs that ``pfl compare`` shows.

    Attributes:
        name: Name of its files.
        runs: Pattern of their names.
    """

    name: str
    runs: str = "*"


class Across(NamedTuple):
    """What is claimed of panels together: that stragglers cost less with doubling.

    Attributes:
        by: The variable that has the share of stragglers.
        fast: Label of the curve with doubling.
        slow: That of the one without.
    """

    by: str
    fast: str
    slow: str


BLOCKS: Mapping[str, Callable[..., object]] = {
    "runs": Group,
    "compare": Comparison,
    "tables": Table,
    "choose": Search,
    "other": Other,
    "across": Across,
}


def check(parts: Iterable[Part]) -> list[Claim]:
    """The claims about all parts of a table or figure."""
    claims: list[Claim] = []
    panels: dict[float, Results] = {}
    for part in parts:
        block = part.item.block
        verify(part.item.common, f"{part.item.paper}/paper.yaml")
        verify(block, f"{part.item.paper}/{part.item.name}.yaml")
        part.place.folder.mkdir(parents=True, exist_ok=True)
        computation = COMPUTATIONS[block.computation] if block.computation else None
        results = Results(part, {}, numbers=computation(part)) if computation else results_of(part)
        claims += about(part.title, shown(results))
        if block.across:
            across = Across(**block.across)
            panels[part.variables[across.by]] = results
    if panels:
        claims += slower_with_stragglers(panels, across.fast, across.slow)
    return claims


def verify(settings: Settings, where: str) -> None:
    """Make sure that settings have only keys that there are, before anything runs.

    Raises:
        PflError: If one has another.
    """
    for key, kind in BLOCKS.items():
        for block in listed(getattr(settings, key) or []):
            construct(kind, block, f"{where}, {key}")
    for block in settings.numbers.values():
        construct(Printed, block, f"{where}, numbers")
    for block in settings.pictures or ():
        picture, rest = kind_of(PICTURES, block, f"{where}, pictures")
        bind(picture, rest, f"{where}, pictures", None)
    rows = settings.claims.values() if isinstance(settings.claims, dict) else [settings.claims]
    for row in (row for group in rows for row in group if isinstance(row, dict)):
        row_of(row, f"{where}, claims")


def results_of(part: Part, methods: list[str] | None = None) -> Results:
    """Make the runs of a part, of some methods alone if these are given, and those that it is compared with."""
    may_diverge = part.item.get("may_diverge", False)
    runs = dict(train(part.place, part.sweeps(methods), may_diverge))
    if part.item.block.choose:
        for method, sweep in chosen(part).items():
            (runs[method],) = train(part.place, [sweep], may_diverge).values()
            part.variables["chosen"][method] = sweep.settings
    other = None if methods else other_part(part)
    return Results(part, runs, results_of(other, part.item.block.other["methods"]) if other else None)


def other_part(part: Part) -> Part | None:
    """The panel of another figure that a panel is compared with at this scale."""
    scale = part.variables["scale"]
    if not part.item.block.other:
        return None
    other = construct(Other, part.item.block.other, "other")
    item = Item(part.item.paper, other.item)
    title = fill(other.title, part.variables)
    if scale not in other.scales or title not in item.pairs_at(scale):
        return None
    out = part.place.folder.parents[1]
    return item.part(title, scale, part.variables["root"], out, part.place.seeds, part.place.jobs)


def chosen(part: Part) -> dict[str, Sweep]:
    """The runs of each method with its best settings in a search for the first seed, which is made and shown."""
    variables = part.variables
    wanted = construct(Search, part.item.block.choose, "choose")
    search = Item(part.item.paper, wanted.item).part(
        part.title, variables["scale"], variables["root"], variables["out"], part.place.seeds[:1], part.place.jobs
    )
    search.place.folder.mkdir(parents=True, exist_ok=True)
    results = results_of(search)
    shown(results)
    best: dict[str, tuple[float, Sweep]] = {}
    for sweep in (single for group in search.sweeps() for single in group.singles()):
        score = float(np.nan_to_num(results.values(sweep.names[0], wanted.measure), nan=-np.inf).mean())
        (method,) = sweep.methods
        if method not in best or score > best[method][0]:
            best[method] = score, sweep
    rules = [*part.item.get("method_options", ()), *wanted.options]
    return {
        method: sweep._replace(options=options_of(rules, {**variables, "method": method}), folder=wanted.folder)
        for method, (_, sweep) in best.items()
    }


def shown(results: Results) -> list[Claim]:
    """The claims about some runs; writes and draws beside them what the settings name."""
    part = results.part
    own = part.item.block
    for block in own.compare:
        for settings in expanded(block, part.variables):
            comparison = Comparison(**settings)
            names = [name for name in results.runs if fnmatchcase(name, comparison.runs)]
            compare(part.place, [run for name in names for run in results.runs[name] if run], comparison.name)
    groups = list(claims_of(part.variables.get("claims", own.claims), results))
    texts: dict[str, list[str]] = {}
    for block in own.tables:
        made = construct(Table, block, "tables")
        for variables in repeats(block, part.variables):
            texts.setdefault(fill(made.name, variables), []).append(table(made, results, variables))
        if made.csv:
            write_csv(made, results, part.place.folder / made.csv)
    for name, tables in texts.items():
        publish(part.place, name, "\n".join(filter(None, [*tables, verdicts(groups)])))
    for block in part.item.get("pictures", ()):
        picture, settings = kind_of(PICTURES, block, "pictures")
        for name, figure in picture(results, **settings).items():
            save_figure(figure, part.place.folder / f"{name}.png")
    return [claim for _, claim in groups]
