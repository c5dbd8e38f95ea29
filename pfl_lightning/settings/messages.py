"""Turns what the parser raises into one line: the key, the value and what is allowed.

The parser explains itself in a tree: a line ``Parser key "lr":`` opens an option, what is wrong with it follows with a
larger indent, and where an option takes several types, each of them says why it does not fit. What is shown is the
innermost key with the lines about it.
"""

import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from inspect import isabstract
from itertools import pairwise
from pathlib import Path

from pfl_lightning import bounds
from pfl_lightning.errors import causes, nearest, one_line
from pfl_lightning.objects import default_arguments, import_object, is_user_file
from pfl_lightning.settings.registry import choices, options_of, user_classes_named
from pfl_lightning.settings.shipped_files import configs
from pfl_lightning.settings.values import class_name, shown_class

_KEY = re.compile(r'^(?:Type .+ expects a function or a callable class: )?Parser key "(.+?)"(?: element \d+)?:\s*(.*)$')
_OWNER = re.compile(r"class_path[ =]'([\w.]+)'")
_UNION = re.compile(
    r"Does not validate against any of the Union subtypes.*?Errors:\s*- (?!Not a valid)(.+?)\n", re.DOTALL
)
_NO_OPTION = re.compile(r"Option '([\w.]+)' is not accepted|[uU]nrecognized arguments: --([\w.]+)")
_MISSING = re.compile(r"the following arguments are required: (\w+)")
_VALUES = (
    re.compile(r"^Not of type \w+: .*(?:literal|string) .*: '(.+?)'"),
    re.compile(r"(?:Given|Got) value: (?!\[?Namespace|NestedArg)(.+?)(?:\. Got value: Namespace.*)?$"),
    re.compile(r"^Expected a path but (.+) either not accessible"),
    re.compile(r"^Not of type \w+: (?:.* not '?(NoneType|list|dict)|(\S+) )"),
    re.compile(r"^(?:Unable to load config|Problem with given class_path) '(.+)'"),
    re.compile(r"[Ii]mport path(?: string:)? (\S+)"),
)
_EXPECTED = re.compile(
    r"^(?:Expected a|Not of type) (?!path|dot)(?:<class ')?(?:[a-z]\w*\.)*(\w+(?:\[.+?\]| with \d+)?)"
)
_NO_CLASS = re.compile(
    "import path|subclass|instantiatable class|No module named '|has no attribute '|content in sub-config file"
    "|to be a function that returns|must include a class_path"
)
_REASON = re.compile(r"(?:.* callable class: )?(No module named.*?|module '.*?|Import path .*?)(?:\. Got value: .*)?$")
_WORDS = {
    **{kind.__name__: kind.__doc__ for kind in vars(bounds).values() if isinstance(kind, type)},
    "ClosedUnitInterval": "a number >= 0 and <= 1",  # jsonargparse's own types
    "OpenUnitInterval": "a number > 0 and < 1",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
    "Path": "a file",
    "NoneType": "null",
    "ObjectFromPython": "an object, from Python alone",
    **dict.fromkeys(("list", "tuple", "set", "Sequence", "Iterable"), "a list"),
    **dict.fromkeys(("dict", "Mapping"), "options below this key"),
}
_NEEDS_QUOTES = re.compile(r"True|False|[-+.\deE]+")  # words that YAML takes for something else, such as no or 007
_BESIDE_CLASSES = {"null", "a list", "true or false"}  # what options that take classes may take, too
_NETWORKS = "the import path of a torch module, or of a function of yours or torchvision's annotated to return one"
_LOGGERS = "CSVLogger", "MLFlowLogger", "TensorBoardLogger", "WandbLogger"
WITHIN = {"model": ["task.loss"]}  # options of a class in an option, which people look for outside of it
TRACEBACK_HINT = "(PFL_DEBUG=1 shows the traceback)"


def explain(message: str, options: Iterable[str] = (), words: Iterable[str] = ()) -> str:
    """Reword a message of the parser.

    Args:
        message: What the parser says, possibly a tree of many lines.
        options: The options that it knows, such as ``--trainer.max_steps``.
        words: The command line.

    Returns:
        One line that names the key, the value and what is allowed.
    """
    if wrong := re.match(r"argument (\S+): expected", message):
        pairs = pairwise([*words, "--"])
        bare = (word for word, following in pairs if "=" not in word and following.startswith("--"))
        named = (word for word in bare if word.startswith(wrong[1]))
        return f"{next(named, f'{wrong[1]}, or an option below it')}: a value is missing"
    if wrong := re.match(r"Unexpected config: (.*)", message):
        what = wrong[1] or "an empty file"
        return f"config: {what} is not possible; allowed: settings by their names, such as model: FedAvg"
    if wrong := re.match(r"unrecognized arguments: (\S+?)(?:[\s=]|$)", message):
        if not wrong[1].startswith("-"):
            return f"{wrong[1]}: the option before it is missing"
        return f"{wrong[1]}: no such option{nearest(wrong[1], options)}"
    if wrong := re.search(r"(?:Group '(\w+)' does not accept option|^Option) '([\w.]+?)(?:\.class_path)?'", message):
        key = ".".join(filter(None, wrong.groups()))  # in a file
        return f"{key}: no such option{nearest(key, [name.removeprefix('--') for name in options])}"
    if wrong := re.match(r"the following arguments are required: (.+)", message):
        names = [f"--{name}" if f"--{name}" in options else name for name in wrong[1].split(", ")]
        return f"{', '.join(names)}: a value is missing"
    if wrong := _UNION.match(message):  # what the constructor of a class has said, without the option
        return f"{class_name(_captured(_OWNER, [message]))}: {wrong[1]}"
    problems = list(_problems(message))
    if not problems:
        return " ".join(re.sub(r"Call to compute_fn of link .* failed: ", "", message).split())
    innermost = max((key for key, _ in problems), key=lambda key: key.count("."))
    return _problem(innermost, [text for key, text in problems if key == innermost])


def blame(error: BaseException | None) -> str:
    """The line of a user's file that has raised an error or a cause of it, or called what has.

    Returns:
        File, line and error, such as ``my_method.py, line 12, in local: KeyError: 'x'``; empty if no such file did.
    """
    for cause in causes(error):
        places = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(cause.__traceback__)]
        if isinstance(cause, SyntaxError):
            places.append((cause.filename or "", cause.lineno, "<module>"))
        if places_in_user_files := [place for place in places if is_user_file(Path(place[0]))]:
            file, line, function = places_in_user_files[-1]
            path = Path(file).resolve()
            shown_path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            where = "" if function == "<module>" else f", in {function}"
            kind = "" if isinstance(cause, ImportError) else f"{type(cause).__name__}: "
            message = cause.msg if isinstance(cause, SyntaxError) else one_line(cause)
            return f"{shown_path}, line {line}{where}: {kind}{message} {TRACEBACK_HINT}"
    return ""


def _problems(message: str) -> Iterator[tuple[str, str]]:
    """The lines of a tree of errors, each with the key of the option that it is about."""
    parents: list[tuple[int, str]] = []  # the indent and the key of each option that is open
    for line in message.splitlines():
        text = line.strip(" -")
        if not text:
            continue
        indent = len(line) - len(line.lstrip(" -"))
        parents = [(start, key) for start, key in parents if start <= indent]
        while match := _KEY.match(text):
            if match[1] not in [key for _, key in parents[-1:]]:  # an option with options of its own is named twice
                parents.append((indent, match[1]))
            text = match[2]
        if text and parents:
            yield ".".join(key for _, key in parents), text


def _problem(key: str, texts: list[str]) -> str:
    """What is wrong with an option, given the lines about it."""
    path = _captured(_OWNER, texts)
    see = f"see --{key}.help {shown_class(path)}".rstrip()
    if option := _captured(_NO_OPTION, texts):
        if option == "class_path":
            return f"{key}: options beside class_path are not possible; allowed: below init_args"
        owner = import_object(path)
        known = [*options_of(owner), *_in_groups(owner), *WITHIN.get(key, ())] if isinstance(owner, type) else []
        suggestion = nearest(option, known)
        return f"{key}.{option}: {class_name(path)} has no such option{suggestion}; {see}"
    if missing := _captured(_MISSING, texts):
        return f"{key}.{missing}: a value is missing; {see}"
    value = next(filter(None, (_captured(pattern, texts) for pattern in _VALUES)), "").strip("'")
    value = "null" if value in ("None", "NoneType") else value
    allowed = list(dict.fromkeys(filter(None, map(_allowed, texts))))
    if any(map(_NO_CLASS.search, texts)) and {*allowed} <= _BESIDE_CLASSES:
        return _wrong_class(key, value, allowed, _captured(_REASON, texts))
    if allowed and value:
        is_item = value in choices().get(key.rpartition(".")[2], {})
        suggestion = f"; write --{key}+={value}" if is_item else ""
        if _WORDS["str"] in allowed and _NEEDS_QUOTES.fullmatch(value):
            suggestion = "; as a word it needs quotes, as yes, no, on, off and numbers do"
        return f"{key}: {value} is not possible{suggestion}; allowed: {', or '.join(allowed)}"
    return f"{key}: {' '.join(texts)}"


def _in_groups(owner: type) -> Iterator[str]:
    """The options of a class that are in a group, such as ``local.lr``."""
    for group, default in default_arguments(owner).items():
        if is_dataclass(default):
            yield from (f"{group}.{field.name}" for field in fields(default))


def _wrong_class(key: str, value: str, allowed: list[str], reason: str) -> str:
    """What is wrong with an option that takes a class, and perhaps other values."""
    option = key.rpartition(".")[2]
    names = sorted(choices().get(option, _LOGGERS if option == "logger" else ()))
    example = ", such as torch.optim.lr_scheduler.StepLR" * (option == "lr_schedule")
    lists = [", ".join(names) or f"the import path of a class{example}", *allowed]
    if option == "network":
        lists.append(_NETWORKS)
    if not value:
        return f"{key}: a class is missing, which comes first; allowed: {', or '.join(lists)}"
    is_imported = value.rpartition(".")[0] in sys.modules  # or its import would run a program
    if is_imported and isabstract(kind := import_object(value)):
        return f"{key}: {value} lacks {', '.join(sorted(kind.__abstractmethods__))}, which its base leaves to it"
    file = f"methods/{value.lower()}"
    if option == "model" and file in configs() and value.lower() not in map(str.lower, names):
        suggestion = f"; write --config {file}"  # no class, but settings of one, such as FedAdam
    else:
        suggestion = nearest(value, {*user_classes_named(value, option)} - {value}, cutoff=0)
        suggestion = suggestion or nearest(value, {*(() if reason else names)} - {value})
    because = f": {reason}" if reason else ""
    return f"{key}: {value} is not possible{because}{suggestion}; allowed: {', or '.join(lists)}"


def _allowed(text: str) -> str:
    """What a line says would be possible, in words; empty if it says nothing of it."""
    if text.startswith("Unable to load config"):
        return "the options below this key"
    expected = _EXPECTED.match(text)
    if not expected:
        return ""
    if expected[1].startswith("Literal["):
        return expected[1].removeprefix("Literal[").removesuffix("]")
    return _WORDS.get(expected[1]) or expected[1].replace("tuple with", "a list of")


def _captured(pattern: re.Pattern[str], texts: list[str]) -> str:
    """What a pattern captures in the first line that it matches; empty if it matches none."""
    matches = filter(None, map(pattern.search, texts))
    return next((next(filter(None, match.groups()), "") for match in matches), "")
