"""Every option takes what its type admits and refuses the rest in a line; every default is of its option's type.

The options are those of all classes that settings can name, so that a new one is tried without a row of its own.
"""

import inspect
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback

from pfl_lightning import bounds
from pfl_lightning.callbacks import PercentileErrors, RoundCheckpoint
from pfl_lightning.client import LocalTraining
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import SettingsError
from pfl_lightning.federation.sparsity import Sparsity
from pfl_lightning.methods import Method
from pfl_lightning.settings.parser import SettingsParser, strict_parsing
from pfl_lightning.settings.registry import KINDS, choices

GROUPS = (LocalTraining, Sparsity)
TEXTS = {str, Path}  # types that take any word
NEEDED = {  # what must be given beside the class of a choice
    "--model.topology": ["--model=DPSGD"],
    "--data.partition.sizes": ["--data.partition=ConsecutiveClasses"],
    "--data.participation.staleness": ["--data.participation=Asynchronous"],
    "LibSVM": ["--data.file=word"],
    "Table": ["--data.file=word", "--data.target=word"],
    "ClientMetrics": ["--trainer.callbacks.metric=torchmetrics.MeanSquaredError"],
}
WRONG = ("null", "nan", "inf", "-1", "word", "10000000000000000000000000000000")
NUMBERS = [kind for kind in vars(bounds).values() if isinstance(kind, type) and issubclass(kind, int | float)]


class Option(NamedTuple):
    """An option, the words that choose its class, and its type and default."""

    key: str
    words: list[str]
    kind: Any
    default: Any


def options_of(owner: type, key: str, words: list[str], offered: type | None = None) -> Iterator[Option]:
    """The options that a class declares itself, as far as the command line has them for it or for another class."""
    names = SettingsParser().add_class_arguments(
        offered or owner, "of", skip={"input_shape", "num_classes", "output_shape"}, fail_untyped=False
    )
    parameters = inspect.signature(owner.__init__).parameters
    hints = typing.get_type_hints(owner.__init__)
    for name in (name.removeprefix("of.") for name in names):
        if name in hints and hints[name] not in GROUPS:  # each of their own options is one here
            yield Option(f"{key}.{name}", words, hints[name], parameters[name].default)


def every_option() -> Iterator[Option]:
    """The options of every class that settings can name; what classes inherit is listed once."""
    fedrep = choices()["model"]["FedRep"]
    for base in fedrep.__mro__:
        if issubclass(base, Method) and "__init__" in vars(base):
            yield from options_of(base, "model", ["--model=FedRep"], fedrep)
    yield from options_of(LocalTraining, "model.local", [])
    yield from options_of(Sparsity, "model.sparsity", [])
    yield from options_of(FederatedDataModule, "data", [], choices()["data"]["Digits"])
    yield from options_of(PercentileErrors, "percentile_errors", [])
    yield from options_of(RoundCheckpoint, "checkpoint", [])
    for kind in KINDS.values():
        for name, found in choices()[kind.option_name].items():
            if "__init__" in vars(found):
                words = [*NEEDED.get(kind.option, ()), f"{kind.option}={name}", *NEEDED.get(name, ())]
                yield from options_of(found, kind.option.strip("-+"), words)


@pytest.fixture(scope="module", autouse=True)
def strictly():
    with strict_parsing():
        yield


@pytest.fixture(scope="module")
def options() -> list[Option]:
    return list(every_option())


@pytest.fixture(scope="module")
def parser() -> SettingsParser:
    """The options of a run but for the trainer's own, which makes it fast."""
    parser = SettingsParser(prog="pfl fit")
    parser.add_subclass_arguments(Method, "model")
    parser.add_subclass_arguments(FederatedDataModule, "data")
    parser.add_argument("--trainer.callbacks", type=list[Callback] | Callback | None)
    parser.add_class_arguments(RoundCheckpoint, "checkpoint", sub_configs=True)
    parser.add_class_arguments(PercentileErrors, "percentile_errors", sub_configs=True)
    parser.set_defaults({"model": {"class_path": "FedAvg"}, "data": {"class_path": "Digits"}})
    return parser


def of_type(kind: Any) -> SettingsParser:
    """A parser with one option, which is much faster."""
    parser = SettingsParser()
    parser.add_argument("--option", type=kind)
    return parser


def said(parser: SettingsParser, *words: str) -> str:
    """The only line that a parser says about arguments; empty if it takes them."""
    line = ""
    try:
        parser.parse_args(list(words))
    except SettingsError as error:
        line = f"pfl: error: {error}"
    assert "\n" not in line
    return line


def likeness(kind: Any) -> str:
    """What tells a type from others to a wrong value: all literals of words are alike."""
    if typing.get_origin(kind) is Literal:
        return f"one of { ({type(value) for value in typing.get_args(kind)}) }"
    return f"{typing.get_origin(kind) or kind} of {[likeness(each) for each in typing.get_args(kind)]}"


def admits(kind: Any, value: str) -> bool:
    """Whether a type takes one of the wrong values by design."""
    kinds = {*typing.get_args(kind)} if isinstance(kind, UnionType) else {kind}
    return bool(
        (value == "null" and NoneType in kinds)
        or (value != "null" and kinds & TEXTS)
        or (value == "-1" and bounds.Real in kinds)
    )


def is_right(line: str, option: Option, key: str, value: str) -> bool:
    """Whether a wrong value is taken if the type admits it, or refused with what is wrong and what is possible."""
    if admits(option.kind, value):
        return line == ""
    says_all = line.startswith(f"pfl: error: {key}") and f" {value}" in line.replace("'", "") and "allowed: " in line
    return says_all and "<class" not in line and "Namespace" not in line


def test_options_take_what_their_types_admit_and_refuse_the_rest_in_a_line(options, parser):
    one_each = {likeness(option.kind): option for option in reversed(options)}.values()
    assert len(one_each) > 40
    wrong = []
    for option in one_each:
        for value in ("null", "word"):  # below the keys of their classes, as users give them
            line = said(parser, *option.words, f"--{option.key}={value}")
            wrong += [] if is_right(line, option, option.key, value) else [(option.key, value, line)]
        kinds = {*typing.get_args(option.kind)} if isinstance(option.kind, UnionType) else {option.kind}
        for value in () if kinds & TEXTS and NoneType not in kinds else WRONG:  # alone, null is a word, too
            line = said(of_type(option.kind), f"--option={value}")
            wrong += [] if is_right(line, option, "option", value) else [(option.key, value, line)]
    assert wrong == []


@pytest.mark.parametrize("kind", NUMBERS, ids=lambda kind: kind.__name__)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.one_of(st.integers(), st.floats(), st.text("0123456789.eE+-_ xn", min_size=1)))
def test_a_number_is_taken_as_its_type_takes_it_or_refused_in_a_line(kind, value):
    text = str(value).strip()
    try:
        kind(text)
        is_taken = True
    except ValueError:
        is_taken = False
    line = said(of_type(kind), f"--option={text}")
    assert line == "" if is_taken else line.startswith("pfl: error: option: ")


def test_defaults_are_of_the_types_of_their_options(options):
    plain = [option for option in options if isinstance(option.default, bool | int | float | str | tuple | NoneType)]
    assert len(plain) > 100
    texts = [each.default if isinstance(each.default, str) else json.dumps(each.default) for each in plain]
    lines = [
        f"{option.key}: {said(of_type(option.kind), f'--option={text}')}"
        for option, text in zip(plain, texts, strict=True)
    ]
    assert lines == [f"{option.key}: " for option in plain]
