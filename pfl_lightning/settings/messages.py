"""Turns what the parser raises into one line: the key, the value and what is allowed.

The parser explains itself in a tree: a line ``Parser key "lr":`` opens an option, what is wrong with it follows with a
larger indent, and where an option takes several types, each of them says why it does not fit. What is shown is the
innermost key with the lines about it.
"""

import difflib
import re
from collections.abc import Iterable, Iterator

from pfl_lightning import bounds
from pfl_lightning.imports import import_object
from pfl_lightning.settings.parser import options_of
from pfl_lightning.settings.registry import KINDS, choices, meant
from pfl_lightning.settings.shipped_files import configs
from pfl_lightning.settings.values import class_name, shown_class

_KEY = re.compile(r'^(?:Type .+ expects a function or a callable class: )?Parser key "(.+?)"(?: element \d+)?:\s*(.*)$')
_OWNER = re.compile(r"class_path[ =]'([\w.]+)'")
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
    "|to be a function that returns"
)
_REASON = re.compile(r"(?:.* callable class: )?(No module named.*?|module '.*?|Import path .*?)(?:\. Got value: .*)?$")
_WORDS = {
    **{kind.__name__: kind.__doc__ for kind in vars(bounds).values() if isinstance(kind, type)},
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
    "Path": "a file",
    "NoneType": "null",
    **dict.fromkeys(("list", "tuple", "set", "Sequence", "Iterable"), "a list"),
    **dict.fromkeys(("dict", "Mapping"), "options below this key"),
}
_BESIDE_CLASSES = {"null", "a list", "true or false"}  # what options that take classes may take, too
_NETWORKS = "the import path of a torch module, or of a function of yours or torchvision's annotated to return one"
_OWN = {"network": [_NETWORKS]}
_LOGGERS = "CSVLogger", "MLFlowLogger", "TensorBoardLogger", "WandbLogger"
_DASHES = "\u2013\u2014\u2212"  # what word processors make of hyphens


def explain(message: str, options: Iterable[str] = ()) -> str:
    """Reword a message of the parser.

    Args:
        message: What the parser says, possibly a tree of many lines.
        options: The options that it knows, such as ``--trainer.max_steps``.

    Returns:
        One line that names the key, the value and what is allowed.
    """
    if wrong := re.match(r"argument (\S+): expected", message):
        return f"{wrong[1]}, or an option below it: a value is missing"
    if wrong := re.match(r"Unexpected config: (.*)", message):
        what = wrong[1] or "an empty file"
        return f"config: {what} is not possible; allowed: settings by their names, such as model: FedAvg"
    if wrong := re.match(r"unrecognized arguments: (\S+?)(?:[\s=]|$)", message):
        return f"{wrong[1]}: no such option{nearest(wrong[1], options)}" if wrong[1][0] == "-" else _lost(wrong[1])
    if wrong := re.search(r"(?:Group '(\w+)' does not accept option|^Option) '([\w.]+?)(?:\.class_path)?'", message):
        key = ".".join(filter(None, wrong.groups()))  # in a file
        return f"{key}: no such option{nearest(key, [name.removeprefix('--') for name in options])}"
    if wrong := re.match(r"the following arguments are required: (.+)", message):
        names = [f"--{name}" if f"--{name}" in options else name for name in wrong[1].split(", ")]
        return f"{', '.join(names)}: a value is missing"
    if not (found := list(_problems(message))):
        return " ".join(re.sub(r"Call to compute_fn of link .* failed: ", "", message).split())
    key = max((key for key, _ in found), key=lambda key: key.count("."))
    return _problem(key, [text for other, text in found if other == key])


def _lost(word: str) -> str:
    """What is wrong with a word that no option takes, such as the name of a method."""
    if word[0] in _DASHES:
        return f"{word}: a dash is no hyphen; write --{word.lstrip(f'-{_DASHES}')}"
    known = {"--config": configs(), **{kind.option: choices()[kind.option_name] for kind in KINDS.values()}}
    option = "--config" if word.endswith(".yaml") else next((name for name in known if word in known[name]), "")
    return f"{word}: the option before it is missing{f'; write {option} {word}' if option else ''}"


def _problems(message: str) -> Iterator[tuple[str, str]]:
    """The lines of a tree of errors, each with the key of the option that it is about."""
    opened: list[tuple[int, str]] = []  # the indent and the key of each option that is open
    for line in message.splitlines():
        if not (text := line.strip(" -")):
            continue
        indent = len(line) - len(line.lstrip(" -"))
        opened = [(start, key) for start, key in opened if start <= indent]
        while key := _KEY.match(text):
            if key[1] not in [known for _, known in opened[-1:]]:  # an option with options of its own is named twice
                opened.append((indent, key[1]))
            text = key[2]
        if text and opened:
            yield ".".join(key for _, key in opened), text


def _problem(key: str, texts: list[str]) -> str:
    """What is wrong with an option, given the lines about it."""
    name = key.rpartition(".")[2]
    known = choices().get(name, {})
    path = next(_found(_OWNER, texts), "")
    owner, kind = class_name(path), import_object(path)
    see = f"see --{key}.help {shown_class(path)}".rstrip()
    if option := next(_found(_NO_OPTION, texts), ""):
        if option == "class_path":
            return f"{key}: options beside class_path are not possible; allowed: below init_args"
        near = nearest(option, options_of(kind)) if isinstance(kind, type) else ""
        return f"{key}.{option}: {owner} has no such option{near}; {see}"
    if missing := next(_found(_MISSING, texts), ""):
        return f"{key}.{missing}: a value is missing; {see}"
    given = next((value for pattern in _VALUES for value in _found(pattern, texts)), "").strip("'")
    given = "null" if given in ("None", "NoneType") else given
    allowed = list(dict.fromkeys(filter(None, map(_allowed, texts))))
    if any(map(_NO_CLASS.search, texts)) and {*allowed} <= _BESIDE_CLASSES:
        reason = next((f": {reason}" for reason in _found(_REASON, texts)), "")
        names = sorted(known) or [each for each in _LOGGERS if name == "logger"]
        kinds = ", ".join(names) or "the import path of a class"
        yours = [each for each in meant(given, name) if each != given]
        near = _variant(key, given) or nearest(given, yours, cutoff=0)
        near = near or nearest(given, {*(() if reason else names)} - {given})
        said = f"{given} is not possible{reason}{near}" if given else "a class is missing, which comes first"
        return f"{key}: {said}; allowed: {', or '.join([kinds, *allowed, *_OWN.get(name, ())])}"
    if allowed and given:
        return f"{key}: {given} is not possible; allowed: {', or '.join(allowed)}"
    return f"{key}: {' '.join(texts)}"


def _variant(key: str, name: str) -> str:
    """What to write for a method that is no class but settings of another, such as FedAdam; empty if it is none."""
    file = f"methods/{name.lower()}"
    classes = {word.lower() for word in choices()["model"]}
    return f"; write --config {file}" if key == "model" and file in configs() and name.lower() not in classes else ""


def _allowed(text: str) -> str:
    """What a line says would be possible, in words; empty if it says nothing of it."""
    if text.startswith("Unable to load config"):
        return "the options below this key"
    if not (said := _EXPECTED.match(text)):
        return ""
    if said[1].startswith("Literal["):
        return said[1].removeprefix("Literal[").removesuffix("]")
    return _WORDS.get(said[1]) or said[1].replace("tuple with", "a list of")


def _found(pattern: re.Pattern[str], texts: list[str]) -> Iterator[str]:
    """What a pattern captures in each line."""
    for text in texts:
        if captured := pattern.search(text):
            yield next(filter(None, captured.groups()), "")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """A question for the known name that is part of a wrong one, or most like it, in any case; empty if none is."""
    names = {each.lower(): each for each in known}
    parts = [each for each in names if each in name.lower().split("_")]
    near = parts or difflib.get_close_matches(name.lower(), names, n=1, cutoff=cutoff)
    return f"; did you mean {names[near[0]]}?" if near else ""
