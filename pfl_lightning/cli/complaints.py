"""Rewords the parser's errors: one line with the key, the value, what is allowed, and the closest valid name.

The parser explains itself in a tree: a line ``Parser key "lr":`` opens an option, what is wrong with it follows with a
larger indent, and where an option takes several types, each of them says why it does not fit.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from jsonargparse import ArgumentParser

from pfl_lightning.cli.own_code import check_import, wrong_class
from pfl_lightning.settings import class_name

Choices = Mapping[str, Mapping[str, type]]

_KEY = re.compile(r'^(?:Type .+ expects a function or a callable class: )?Parser key "(.+?)"(?: element \d+)?:\s*(.*)$')
_PATH = re.compile(r"class_path'?(?:[=:] ?| )'([\w.]+)'")
_PATH = re.compile(r"class_path'?(?:[=:] ?| )'([\w.]+)'")
_CLASS = re.compile(r"(?:Problem with given class_path |class_path=)'([\w.]+)'")
_SUBTYPES = re.compile(r"^(Does not validate|Subtypes:|Errors:|Given value)")
_MISSING = re.compile(r"the following arguments are required: (\w+)")
_NO_OPTION = re.compile(r"Option '([\w.]+)' is not accepted|[uU]nrecognized arguments: --([\w.]+)")
_GIVEN = (
    re.compile(r"^Not of type \w+: (?!is not)(.+?) is not possible; allowed: "),
    re.compile(r"^Expected a path but (.+) either not accessible"),
    re.compile(r"Given value: (?!\[?Namespace|NestedArg)(.+?)(?:\. Got value: Namespace.*)?$"),
    re.compile(r"Got value: (?!Namespace|NestedArg)(.+?)(?:\. Got value: Namespace.*)?$"),
    re.compile(r"^Unable to load config '(.+)'"),
    re.compile(r"^Expected a dot import path string: (.+)"),
    re.compile(r"^Not of type Path: .* not (None)Type"),
    re.compile(r"(?:Got|Given) value: \[?Namespace\(class_path='([\w.]+)'"),
    re.compile(r"^Import path (\S+) (?:is|does) not"),
)
_ALLOWED = re.compile(r"is not possible; allowed: (.+?)(?:\. Got value: .*)?$")
_EXPECTED = re.compile(
    r"^(?:Expected a|Not of type) (?:(Path): |<class '(?:[\w.]*\.)?(\w+)'>|typing\.(\w+)|tuple with (\d+))"
)
_LITERAL = re.compile(r"^Expected a (?:typing\.)?Literal\[(.+?)\](?:\. Got|$)")
_BASE = re.compile(
    r"subclass of ([A-Z]\w*)|\.([A-Z]\w*)\] expects a function or a callable class"
    r"|^Subtypes: \[.*?\.([A-Z]\w*)(?:'>|\], <)"
)
_NO_CLASS = re.compile(
    r"import path|subclass|expects a function or a callable class|Expected a path but"
    r"|^No module named '|^module '[\w.]+' has no attribute '"
)
_OTHERS = {"network": ["the import path of a torch module, or of a function annotated to return one"]}
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
    "Path": "a file",
    "NoneType": "null",
    **dict.fromkeys(("list", "tuple", "set", "Sequence", "Iterable"), "a list"),
    **dict.fromkeys(("dict", "Mapping"), "options below this key"),
}


def explain(message: str, options: Iterable[str], choices: Choices) -> str:
    """Reword a message of the parser.

    Args:
        message: What the parser says, possibly a tree of many lines.
        options: The options that it knows, such as ``--trainer.max_steps``.
        choices: For the last part of a key, the classes that it takes, by name.

    Returns:
        One line that names the key, the value and what is allowed.

    Raises:
        PflError: If a file of the user's own cannot be imported.
    """
    if wrong := re.match(r"unrecognized arguments: (\S+?)(?:[\s=]|$)", message):
        return f"{wrong[1]}: no such option{nearest(wrong[1], options)}"
    if wrong := re.search(r"does not accept option '([\w.]+)'", message):  # a key in a file
        return _unknown_key(wrong[1], [option.removeprefix("--") for option in options])
    if wrong := re.match(r"Call to compute_fn of link .* failed: (.*)", message):
        return wrong[1]
    if wrong := re.match(r"Problems parsing config: (.*)", message, re.DOTALL):
        return f"config: not YAML: {' '.join(wrong[1].split())}".replace('"<unicode string>", ', "")
    if wrong := re.match(r"Unexpected config: (.*)", message):
        return f"config: {wrong[1]} is not possible; allowed: settings such as model, data and trainer"
    if not (found := list(_problems(message))):
        return " ".join(message.split())
    key = max((key for key, _ in found), key=lambda key: key.count("."))
    return _explain_option(key, [text for other, text in found if other == key], choices)


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
        if text:
            yield ".".join(key for _, key in opened), text


def _explain_option(key: str, texts: list[str], choices: Choices) -> str:
    """What is wrong with an option, given the lines about it."""
    name = key.rpartition(".")[2]
    known, shown = choices.get(name, {}), next(_found(_GIVEN, texts), "")
    given = "null" if shown.strip("'") == "None" else shown
    base = next(_found((_BASE,), texts), "")
    paths = [*_PATH.findall(" ".join(texts)), *([given] if (known or base) and _is_name(given) else ())]
    for path in paths:
        check_import(path)
    for text in texts:
        if wrong := _NO_OPTION.search(text):
            owners = [class_name(owner) for owner in _CLASS.findall(" ".join(texts))]
            return _unknown_option(key, wrong[1] or wrong[2], owners[0] if owners and wrong[1] else "", known)
    if key and (missing := next(_found((_MISSING,), texts), "")):
        owner = class_name(next(_found((_CLASS,), texts), ""))
        return f"{key}.{missing}: a value is missing; see --{key}.help {owner}"
    if reason := _reason(texts):
        return f"{key}: {reason}" if key else reason
    if any("Expected an instantiatable class" in text for text in texts):
        return f"{key}: the name of the class is missing; allowed: {_listed(known)}"
    alternatives = [words for text in texts if (words := _allowed(text))]
    takes_class = any(_NO_CLASS.search(text) for text in texts) and not {"a number", "a word"} & {*alternatives}
    if takes_class:
        kind = f"a subclass of {base}" if base else "a class, such as torch.optim.SGD"
        alternatives[:0] = [_listed(known) or f"the import path of {kind}", *_OTHERS.get(name, ())]
        if paths and not any(map(_ALLOWED.search, texts)):
            wrong = next(
                filter(None, (wrong_class(path, key) for path in paths)),
                f"no such class: {given}{nearest(given, known)}",
            )
            return f"{key}: {wrong}; allowed: {_either(alternatives)}"
    if any(text.startswith("Unable to load config") for text in texts):
        alternatives = ["the options below this key"]
    if alternatives and given:
        return f"{key}: {given} is not possible; allowed: {_either(alternatives)}"
    return f"{key}: {' '.join(texts)}" if key else " ".join(texts)


def _is_name(given: str) -> bool:
    """Whether a value may be meant as the name of a class, or of its file."""
    return given != "null" and (given[:1].isalpha() or "/" in given)


def _reason(texts: list[str]) -> str:
    """What a class says itself when it is made; empty if it is the parser that says something."""
    for before, text in pairwise(texts):
        known = (_EXPECTED, _ALLOWED, _LITERAL, _NO_CLASS, _SUBTYPES)
        if (owner := _CLASS.match(before)) and not any(pattern.search(text) for pattern in known):
            return f"{class_name(owner[1])}: {text}"
    return ""


def _allowed(text: str) -> str:
    """What a line says would be possible, in words; empty if it says nothing of it."""
    if said := _ALLOWED.search(text) or _LITERAL.match(text):
        return said[1]
    if said := _EXPECTED.match(text):
        name, length = said[1] or said[2] or said[3], said[4]
        return f"a list of {length}" if length else _WORDS.get(name, "")
    return ""


def _either(alternatives: Iterable[str]) -> str:
    """Alternatives in words, each of them once, null last."""
    once = sorted(dict.fromkeys(alternatives), key=lambda words: words == "null")
    return ", or ".join(once)


def _found(patterns: Iterable[re.Pattern[str]], texts: list[str]) -> Iterator[str]:
    """What the patterns capture in the lines, the first pattern first."""
    for pattern in patterns:
        for text in texts:
            if captured := pattern.search(text):
                yield next(filter(None, captured.groups()), "")


def _unknown_key(key: str, keys: list[str]) -> str:
    """A key that no option has."""
    section, sections = key.partition(".")[0], {known.partition(".")[0] for known in keys}
    return f"{key}: no such option{nearest(key, keys) if section in sections else nearest(section, sections)}"


def _unknown_option(key: str, option: str, owner: str, known: Mapping[str, type]) -> str:
    """An option that a class does not have."""
    if not owner:  # an option of an unknown option
        return f"{key}.{option}: no such option; see --{key}.help"
    near = nearest(option, _arguments(known[owner]) if owner in known else [])
    return f"{key}.{option}: {owner} has no such option{near}; see --{key}.help {owner}"


def _listed(known: Mapping[str, type]) -> str:
    return ", ".join(sorted(known))


def nearest(name: str, known: Iterable[str]) -> str:
    """A question for the known name that is most like a wrong one; empty if none is."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _arguments(kind: type) -> list[str]:
    """Names of the options that a class offers, those of its bases included."""
    return list(ArgumentParser().add_class_arguments(kind))
