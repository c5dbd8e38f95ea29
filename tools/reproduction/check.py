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
        spec = part.item.spec
        if "computation" in spec:
            claims += about(part.title, COMPUTATIONS[spec["computation"]](part))
            continue
        results = results_of(part)
        claims += about(part.title, shown(results))
        if "across" in spec:
            panels[part.variables[spec["across"]["by"]]] = results
    if panels:
        claims += slower_with_stragglers(panels, spec["across"]["fast"], spec["across"]["slow"])
    return claims


def results_of(part: Part, methods: list[str] | None = None) -> Results:
    """Make the runs of a part, of some methods alone if these are given, and those that it is compared with."""
    may_diverge = part.item.get("may_diverge", False)
    runs = dict(train(part.place, part.sweeps(methods), may_diverge))
    if "choose" in part.item.spec:
        for method, sweep in chosen(part).items():
            (runs[method],) = train(part.place, [sweep], may_diverge).values()
            part.variables["chosen"][method] = sweep.settings
    other = None if methods else other_part(part)
    return Results(part, runs, results_of(other, part.item.spec["other"]["methods"]) if other else None)


def other_part(part: Part) -> Part | None:
    """The panel of another figure that a panel is compared with at this scale."""
    spec, scale = part.item.spec.get("other"), part.variables["scale"]
    if spec is None or scale not in spec["scales"]:
        return None
    other = Item(part.item.paper, spec["item"])
    title = fill(spec["title"], part.variables)
    if title not in other.pairs_at(scale):
        return None
    out = part.place.folder.parents[1]
    return other.part(title, scale, part.variables["root"], out, part.place.seeds, part.place.jobs)


def chosen(part: Part) -> dict[str, Sweep]:
    """The runs of each method with its best settings in a search for the first seed, which is made and shown."""
    spec, variables = part.item.spec["choose"], part.variables
    search = Item(part.item.paper, spec["item"]).part(
        part.title, variables["scale"], variables["root"], variables["out"], part.place.seeds[:1], part.place.jobs
    )
    search.place.folder.mkdir(parents=True, exist_ok=True)
    results = results_of(search)
    shown(results)
    best: dict[str, tuple[float, Sweep]] = {}
    for sweep in (single for group in search.sweeps() for single in group.singles()):
        score = float(np.nan_to_num(results.values(sweep.names[0], spec["measure"]), nan=-np.inf).mean())
        (method,) = sweep.methods
        if method not in best or score > best[method][0]:
            best[method] = score, sweep
    options = options_of(spec.get("options", []), variables)
    return {
        method: sweep._replace(options=options, folder=spec.get("folder", "")) for method, (_, sweep) in best.items()
    }


def shown(results: Results) -> list[Claim]:
    """The claims about some runs; writes and draws beside them what the settings name."""
    part = results.part
    for block in part.item.spec.get("compare", ()):
        for spec in expanded(block, part.variables):
            names = [name for name in results.runs if fnmatchcase(name, spec.get("runs", "*"))]
            compare(part.place, [run for name in names for run in results.runs[name] if run], spec["name"])
    groups = list(claims_of(part.variables.get("claims", part.item.spec.get("claims", ())), results))
    texts: dict[str, list[str]] = {}
    for spec in part.item.spec.get("tables", ()):
        for variables in repeats(spec, part.variables):
            texts.setdefault(fill(spec["name"], variables), []).append(table(spec, results, variables))
        if "csv" in spec:
            write_csv(spec, results, part.place.folder / spec["csv"])
    for name, tables in texts.items():
        publish(part.place, name, "\n".join(filter(None, [*tables, verdicts(groups)])))
    for picture in part.item.get("pictures", ()):
        PICTURES[picture["kind"]](picture, results)
    return [claim for _, claim in groups]
