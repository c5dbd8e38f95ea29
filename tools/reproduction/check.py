"""Makes the runs of a table or figure, shows them, and checks the claims about them."""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

import numpy as np

from reproduction.claims import Claim, about
from reproduction.delta_fl.toy import toy_claims
from reproduction.fedmac.recovery import recovery_claims
from reproduction.items import Item, Part, expanded, fill, options_of, repeats
from reproduction.kinds import slower_with_stragglers
from reproduction.pictures import PICTURES
from reproduction.results import Results
from reproduction.rows import claims_of, verdicts
from reproduction.runs import Sweep, compare, publish, train
from reproduction.srpfl.linear_claims import linear_claims
from reproduction.stragglers.compare import compare_answers
from reproduction.tables import table, write_csv

COMPUTATIONS: Mapping[str, Callable[[Part], list[Claim]]] = {
    "sparse_recovery": lambda part: recovery_claims(part.place),
    "three_gaussians": lambda part: toy_claims(part.place),
    "linear_representations": lambda part: linear_claims(part.place),
    "stragglers": compare_answers,
}


def check(parts: Iterable[Part]) -> list[Claim]:
    """The claims about all parts of a table or figure."""
    claims: list[Claim] = []
    panels: dict[float, Results] = {}
    for part in parts:
        part.place.folder.mkdir(parents=True, exist_ok=True)
        block = part.item.block
        if "computation" in block:
            claims += about(part.title, COMPUTATIONS[block["computation"]](part))
            continue
        results = results_of(part)
        claims += about(part.title, shown(results))
        if "across" in block:
            panels[part.variables[block["across"]["by"]]] = results
    if panels:
        claims += slower_with_stragglers(panels, block["across"]["fast"], block["across"]["slow"])
    return claims


def results_of(part: Part, methods: list[str] | None = None) -> Results:
    """Make the runs of a part, of some methods alone if these are given, and those that it is compared with."""
    may_diverge = part.item.get("may_diverge", False)
    runs = dict(train(part.place, part.sweeps(methods), may_diverge))
    if "choose" in part.item.block:
        for method, sweep in chosen(part).items():
            (runs[method],) = train(part.place, [sweep], may_diverge).values()
            part.variables["chosen"][method] = sweep.settings
    other = None if methods else other_part(part)
    return Results(part, runs, results_of(other, part.item.block["other"]["methods"]) if other else None)


def other_part(part: Part) -> Part | None:
    """The panel of another figure that a panel is compared with at this scale."""
    block, scale = part.item.block.get("other"), part.variables["scale"]
    if block is None or scale not in block["scales"]:
        return None
    other = Item(part.item.paper, block["item"])
    title = fill(block["title"], part.variables)
    if title not in other.pairs_at(scale):
        return None
    out = part.place.folder.parents[1]
    return other.part(title, scale, part.variables["root"], out, part.place.seeds, part.place.jobs)


def chosen(part: Part) -> dict[str, Sweep]:
    """The runs of each method with its best settings in a search for the first seed, which is made and shown."""
    block, variables = part.item.block["choose"], part.variables
    search = Item(part.item.paper, block["item"]).part(
        part.title, variables["scale"], variables["root"], variables["out"], part.place.seeds[:1], part.place.jobs
    )
    search.place.folder.mkdir(parents=True, exist_ok=True)
    results = results_of(search)
    shown(results)
    best: dict[str, tuple[float, Sweep]] = {}
    for sweep in (single for group in search.sweeps() for single in group.singles()):
        score = float(np.nan_to_num(results.values(sweep.names[0], block["measure"]), nan=-np.inf).mean())
        (method,) = sweep.methods
        if method not in best or score > best[method][0]:
            best[method] = score, sweep
    options = options_of(block.get("options", []), variables)
    return {
        method: sweep._replace(options=options, folder=block.get("folder", "")) for method, (_, sweep) in best.items()
    }


def shown(results: Results) -> list[Claim]:
    """The claims about some runs; writes and draws beside them what the settings name."""
    part = results.part
    for block in part.item.block.get("compare", ()):
        for comparison in expanded(block, part.variables):
            names = [name for name in results.runs if fnmatchcase(name, comparison.get("runs", "*"))]
            compare(part.place, [run for name in names for run in results.runs[name] if run], comparison["name"])
    groups = list(claims_of(part.variables.get("claims", part.item.block.get("claims", ())), results))
    texts: dict[str, list[str]] = {}
    for block in part.item.block.get("tables", ()):
        for variables in repeats(block, part.variables):
            texts.setdefault(fill(block["name"], variables), []).append(table(block, results, variables))
        if "csv" in block:
            write_csv(block, results, part.place.folder / block["csv"])
    for name, tables in texts.items():
        publish(part.place, name, "\n".join(filter(None, [*tables, verdicts(groups)])))
    for picture in part.item.get("pictures", ()):
        PICTURES[picture["kind"]](picture, results)
    return [claim for _, claim in groups]
