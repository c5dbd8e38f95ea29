"""Tables and figures of papers as settings: ``PAPER/paper.yaml`` has what they share, and each has a file beside it.

Both hold rules: options of ``pfl fit`` and variables for the pairs of data and network, the scales and the methods that
are named under ``if``. ``{name}`` stands for a variable in any text; ``foreach`` repeats what it stands in.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import yaml

from pfl_lightning.errors import PflError
from reproduction.runs import CONFIGS, Place, Sweep

Scale = Literal["small", "two_cores", "full"]
Variables = Mapping[str, Any]
Spec = Mapping[str, Any]

SCALES: tuple[Scale, ...] = get_args(Scale)
ROOM = Path(__file__).parent
COMMON = "paper.yaml"


def papers() -> list[str]:
    """The papers, and the libraries, with settings."""
    return sorted(path.parent.name for path in ROOM.glob(f"*/{COMMON}"))


def items_of(paper: str) -> list[str]:
    """The tables and figures of a paper."""
    return sorted(path.stem for path in (ROOM / paper).glob("*.yaml") if path.name != COMMON)


def listed(value: Any) -> list[Any]:
    """A list, or a single element as one."""
    return value if isinstance(value, list) else [value]


def holds(block: Spec, variables: Variables) -> bool:
    """Whether the variables have the values that are named under ``if``."""
    conditions: Spec = block.get("if", {})
    return all(variables.get(name) in listed(values) for name, values in conditions.items())


def fill(value: Any, variables: Variables) -> Any:
    """A value with its variables; a text that is nothing but ``{name}`` becomes the variable itself."""
    if isinstance(value, str):
        name = value[1:-1]
        return variables[name] if value == f"{{{name}}}" and name in variables else value.format(**variables)
    if isinstance(value, Mapping):
        return {fill(key, variables): fill(entry, variables) for key, entry in value.items()}
    if isinstance(value, list):
        return [fill(entry, variables) for entry in value]
    return value


def repeats(block: Spec, variables: Variables) -> Iterator[Variables]:
    """The variables of each repetition: of all combinations under ``foreach``, or of all rows if it lists rows."""
    if not holds(block, variables):
        return
    foreach = fill(block.get("foreach", {}), variables)
    combinations = product(*foreach.values()) if isinstance(foreach, Mapping) else ()
    rows = (
        foreach if isinstance(foreach, list) else [dict(zip(foreach, values, strict=True)) for values in combinations]
    )
    for row in rows:
        yield {**variables, **row}


def expanded(block: Spec, variables: Variables) -> Iterator[dict[str, Any]]:
    """All repetitions with their variables filled in."""
    content = {key: value for key, value in block.items() if key not in ("if", "foreach")}
    for row in repeats(block, variables):
        yield fill(content, row)


def options_of(rules: Sequence[Any], variables: Variables) -> list[str]:
    """The options of the rules that hold; a rule that is a text always does, and a list holds more rules."""
    options: list[str] = []
    for rule in rules:
        if isinstance(rule, list):
            options += options_of(rule, variables)
            continue
        text = rule if isinstance(rule, str) else rule["add"] if holds(rule, variables) else ""
        options += [word.format(**variables) for word in shlex.split(text)]
    return options


class Part(NamedTuple):
    """A table or figure on one pair of data and network, or one panel of it.

    Attributes:
        item: The table or figure.
        title: The pair, or the panel; empty if there are none.
        variables: What its settings can refer to.
        place: Where its runs are.
    """

    item: "Item"
    title: str
    variables: Variables
    place: Place

    def sweeps(self, methods: Sequence[str] | None = None) -> list[Sweep]:
        """Its runs; those of some methods alone, if these are given."""
        groups = self.item.get("runs", [])
        return [sweep for group in groups for sweep in self.sweeps_of(group, methods)]

    def sweeps_of(self, group: Spec, methods: Sequence[str] | None = None) -> Iterator[Sweep]:
        """The runs of a group of methods, together for methods with the same options."""
        rules = [*self.item.get("method_options", []), *group.get("options", [])]
        for row in repeats(group, self.variables):
            by_options: dict[tuple[str, ...], list[str]] = {}
            for method in fill(group["methods"], row):
                options = options_of(rules, {**row, "method": method})
                by_options.setdefault(tuple(options), []).append(method)
            vary = fill(group.get("vary", {}), row)
            folder = fill(group.get("folder", ""), row)
            for told, alike in by_options.items():
                wanted = [method for method in alike if methods is None or method in methods]
                if wanted:
                    yield Sweep(wanted, vary, told, folder)


class Item:
    """A table or figure of a paper.

    Args:
        paper: The paper.
        name: The table or figure.
    """

    def __init__(self, paper: str, name: str) -> None:
        self.paper = paper
        self.name = name
        self.common = read(paper, "paper")
        self.block = read(paper, name)

    def get(self, key: str, default: Any = None) -> Any:
        """A setting of its own, or the paper's."""
        return self.block.get(key, self.common.get(key, default))

    @property
    def scales(self) -> list[Scale]:
        """The scales at which it can run."""
        named = self.block.get("scales", ["small", "full"])
        return [scale for scale in SCALES if scale in named]

    def pairs_at(self, scale: Scale) -> dict[str, Variables]:
        """The pairs of data and network at a scale, or the panels, with their variables."""
        pairs = self.block.get("pairs", [])
        at_scale = pairs.get(scale, []) if isinstance(pairs, Mapping) else pairs
        known = self.common.get("pairs", {})
        panels = (pair if isinstance(pair, Mapping) else {"title": pair, **known[pair]} for pair in at_scale)
        return {panel.get("title", panel.get("data", "")): panel for panel in panels}

    def part(
        self, title: str, scale: Scale, root: Path, out: Path, seeds: Sequence[int] | None = None, jobs: int = 1
    ) -> Part:
        """One pair or panel; see ``reproduce`` for the arguments."""
        variables: dict[str, Any] = {
            "paper": self.paper,
            "item": self.name,
            "scale": scale,
            "title": title,
            "root": root,
        }
        variables |= {"configs": CONFIGS, "out": out, "pair": title, "options": [], "chosen": {}}
        panel = self.pairs_at(scale).get(title, {})
        variables |= panel
        wanted = list(dict.fromkeys(seeds or self.block.get("seeds") or self.common["seeds"][scale]))
        variables["seeds"] = len(wanted)
        for rule in [*self.common.get("set", []), *self.block.get("set", [])]:
            if holds(rule, variables):
                variables |= fill({name: value for name, value in rule.items() if name != "if"}, variables)
        variables |= panel  # what a panel says itself stays
        rules = [*self.common.get("options", []), *self.block.get("options", []), *listed(variables["options"])]
        options = options_of(rules, variables) if "pairs" in self.block else []
        names = {"title": (title or self.name).replace(" ", "_").replace("%", ""), "item": self.name}
        folder = out / self.get("folder", "{paper}-{title}-{scale}").format(**{**variables, **names})
        return Part(self, title, variables, Place(folder, wanted, jobs, options))


def read(paper: str, name: str) -> dict[str, Any]:
    """One file of settings, with those of the file that it is ``like``.

    Raises:
        PflError: If a paper has no such table or figure.
    """
    path = ROOM / paper / f"{name}.yaml"
    if not path.is_file():
        raise PflError(f"item: {name} is not possible for {paper}; allowed: {', '.join(items_of(paper))}")
    settings: dict[str, Any] = yaml.safe_load(path.read_text())
    return {**read(paper, settings["like"]), **settings} if "like" in settings else settings
