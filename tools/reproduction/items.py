"""Tables and figures of papers as settings: ``PAPER/paper.yaml`` has what they share, and each has a file beside it.

Both hold rules: options of ``pfl fit`` and variables for the pairs of data and network, the scales and the methods that
are named under ``if``. ``{name}`` stands for a variable in any text; ``foreach`` repeats what it stands in.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import BoundArguments, signature
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import yaml

from pfl_lightning.errors import PflError, nearest
from reproduction.runs import CONFIGS, Place, Sweep

Made = TypeVar("Made")
Scale = Literal["small", "two_cores", "full"]
Variables = Mapping[str, Any]
Spec = Mapping[str, Any]

SCALES: tuple[Scale, ...] = get_args(Scale)
RULES = ("if", "foreach")  # which decide about what they stand in
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
    for row in repeats(block, variables):
        yield fill(content(block), row)


def content(block: Spec) -> dict[str, Any]:
    """What stands beside the rules of a block."""
    return {key: value for key, value in block.items() if key not in RULES}


def construct(make: Callable[..., Made], settings: Spec, where: str, *first: object) -> Made:
    """Call a class or a function with settings as its keyword arguments; see ``bind`` for the arguments."""
    bound = bind(make, settings, where, *first)
    return make(*bound.args, **bound.kwargs)


def bind(make: Callable[..., object], settings: Spec, where: str, *first: object) -> BoundArguments:
    """The arguments of a class or a function.

    Args:
        make: The class or function.
        settings: Its keyword arguments; rules are none.
        where: What they belong to.
        first: Arguments that come before them.

    Raises:
        PflError: If it has no such arguments, or needs more.
    """
    arguments = signature(make)
    for key in content(settings):
        if key not in arguments.parameters:
            raise PflError(f"{where}: {key}: no such key{nearest(key, arguments.parameters)}")
    try:
        return arguments.bind(*first, **content(settings))
    except TypeError as error:
        raise PflError(f"{where}: {error}") from None


def kind_of(kinds: Mapping[str, Made], block: Spec, where: str) -> tuple[Made, dict[str, Any]]:
    """What ``kind`` names, and the other settings.

    Raises:
        PflError: If there is no such kind.
    """
    kind = block.get("kind", "")
    if kind not in kinds:
        raise PflError(f"{where}: kind: {kind} is not possible; allowed: {', '.join(kinds)}{nearest(kind, kinds)}")
    return kinds[kind], {key: value for key, value in block.items() if key != "kind"}


class Rule(NamedTuple):
    """Options for what its ``if`` names.

    Attributes:
        add: The options.
    """

    add: str


def options_of(rules: Sequence[Any], variables: Variables) -> list[str]:
    """The options of the rules that hold; a rule that is a text always does, and a list holds more rules."""
    options: list[str] = []
    for rule in rules:
        if isinstance(rule, list):
            options += options_of(rule, variables)
            continue
        block = {"add": rule} if isinstance(rule, str) else rule
        text = construct(Rule, block, "options").add
        if holds(block, variables):
            options += [word.format(**variables) for word in shlex.split(text)]
    return options


@dataclass(kw_only=True)
class Settings:
    """One file of settings; what is None is the paper's.

    Attributes:
        like: The file whose other settings these are, too.
        scales: Where it can run.
        pairs: Pairs of data and network, or panels with their variables; by scale if they differ.
        seeds: Its seeds.
        folder: Where its runs are.
        labels: Whether names of runs are labels of curves.
        may_diverge: Whether a run that diverges is an answer, too.
        usual: Ends of the names of runs that say what all other runs have.
        set: Rules for variables.
        options: Rules for options of all runs.
        method_options: Those of a method.
        runs: Groups of runs.
        measure: What is measured of runs, if nothing else is said.
        models: The model by which a method is evaluated.
        printed: Names of what the paper prints, among its ``numbers``.
        numbers: Numbers of the paper: ``of`` which runs, under the pair.
        compare: What ``pfl compare`` shows.
        tables: Tables of measured values.
        pictures: Pictures that ``pfl compare`` does not draw.
        claims: Rows of claims; the paper's have names.
        choose: The search whose best settings run.
        other: The figure that panels are compared with.
        across: What is claimed of all panels together.
        computation: A function that takes the place of runs.
        answers: Of ``stragglers``: what is compared.
        words: Of ``stragglers``: rules for options.
    """

    like: str | None = None
    scales: Sequence[Scale] = ("small", "full")
    pairs: Any = None
    seeds: Any = None
    folder: str | None = None
    labels: bool | None = None
    may_diverge: bool | None = None
    usual: Sequence[str] | None = None
    set: Sequence[Spec] = ()
    options: Sequence[Any] = ()
    method_options: Sequence[Any] | None = None
    runs: Sequence[Spec] | None = None
    measure: Any = None
    models: Mapping[str, str] | None = None
    printed: Any = None
    numbers: Spec = field(default_factory=dict)
    compare: Sequence[Spec] = ()
    tables: Sequence[Spec] = ()
    pictures: Sequence[Spec] | None = None
    claims: Any = ()
    choose: Spec = field(default_factory=dict)
    other: Spec = field(default_factory=dict)
    across: Spec = field(default_factory=dict)
    computation: str | None = None
    answers: Sequence[Spec] = ()
    words: Sequence[Any] = ()


class Search(NamedTuple):
    """A search whose best settings of each method run.

    Attributes:
        item: The search.
        measure: What is best.
        options: Rules for options of the runs.
        folder: Their folder.
    """

    item: str
    measure: Any
    options: Sequence[Any] = ()
    folder: str = ""


class Other(NamedTuple):
    """A figure that panels are compared with.

    Attributes:
        item: The figure.
        title: Its panel.
        scales: Where that is done.
        methods: Methods of the other panel.
    """

    item: str
    title: str
    scales: Sequence[Scale]
    methods: list[str]


@dataclass(kw_only=True)
class Group:
    """Methods that run with the same settings.

    Attributes:
        methods: Names of their files.
        vary: Values of settings, of which all combinations run.
        options: Rules for options.
        folder: Folder of these runs.
    """

    methods: Any
    vary: Spec = field(default_factory=dict)
    options: Sequence[Any] = ()
    folder: str = ""


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
        groups = self.item.get("runs", ())
        return [sweep for group in groups for sweep in self.sweeps_of(group, methods)]

    def sweeps_of(self, block: Spec, methods: Sequence[str] | None = None) -> Iterator[Sweep]:
        """The runs of a group of methods, together for methods with the same options."""
        group = construct(Group, block, "runs")
        rules = [*self.item.get("method_options", ()), *group.options]
        for row in repeats(block, self.variables):
            by_options: dict[tuple[str, ...], list[str]] = {}
            for method in fill(group.methods, row):
                if methods is None or method in methods:
                    options = options_of(rules, {**row, "method": method})
                    by_options.setdefault(tuple(options), []).append(method)
            vary = fill(group.vary, row)
            folder = fill(group.folder, row)
            yield from (Sweep(alike, vary, options, folder) for options, alike in by_options.items())


class Item:
    """A table or figure of a paper.

    Args:
        paper: The paper.
        name: The table or figure.

    Attributes:
        common: The paper's settings.
        block: Its own.

    Raises:
        PflError: If there is none, or a file has keys that there are not.
    """

    def __init__(self, paper: str, name: str) -> None:
        self.paper = paper
        self.name = name
        self.common, self.block = (
            construct(Settings, read(paper, file), f"{paper}/{file}.yaml") for file in ("paper", name)
        )

    def get(self, key: str, default: Any = None) -> Any:
        """A setting of its own, or the paper's."""
        values = (getattr(settings, key) for settings in (self.block, self.common))
        return next((value for value in values if value is not None), default)

    @property
    def scales(self) -> list[Scale]:
        """The scales at which it can run."""
        return [scale for scale in SCALES if scale in self.block.scales]

    def pairs_at(self, scale: Scale) -> dict[str, Variables]:
        """The pairs of data and network at a scale, or the panels, with their variables."""
        pairs = self.block.pairs or []
        at_scale = pairs.get(scale, []) if isinstance(pairs, Mapping) else pairs
        panels = (
            pair if isinstance(pair, Mapping) else {"title": pair, **self.common.pairs[pair]} for pair in at_scale
        )
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
        wanted = list(dict.fromkeys(seeds or self.block.seeds or self.common.seeds[scale]))
        variables["seeds"] = len(wanted)
        for rule in [*self.common.set, *self.block.set]:
            if holds(rule, variables):
                variables |= fill(content(rule), variables)
        variables |= panel  # what a panel says itself stays
        rules = [*self.common.options, *self.block.options, *listed(variables["options"])]
        options = options_of(rules, variables) if self.block.pairs is not None else []
        names = {"title": (title or self.name).replace(" ", "_").replace("%", ""), "item": self.name}
        folder = out / self.get("folder", "{paper}-{title}-{scale}").format(**{**variables, **names})
        return Part(self, title, variables, Place(folder, wanted, jobs, options))


@cache
def read(paper: str, name: str) -> dict[str, Any]:
    """One file of settings, with those of the file that it is ``like``; nobody changes them.

    Raises:
        PflError: If a paper has no such table or figure.
    """
    path = ROOM / paper / f"{name}.yaml"
    if not path.is_file():
        raise PflError(f"item: {name} is not possible for {paper}; allowed: {', '.join(items_of(paper))}")
    settings: dict[str, Any] = yaml.safe_load(path.read_text())
    return {**read(paper, settings["like"]), **settings} if "like" in settings else settings
