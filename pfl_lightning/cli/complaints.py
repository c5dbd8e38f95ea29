"""Rewords the parser's errors: one line with the key, the value, what is allowed, and the closest valid name."""

import difflib
import re
from collections.abc import Iterable, Mapping

from jsonargparse import ArgumentParser

from pfl_lightning.settings import class_name

_NOISE = re.compile(
    r"^(Does not validate against|Subtypes:|Errors:|Given value|Expected a <class 'NoneType'>|"
    r"Expected a dot import path|Not a valid subclass|Subclass types expect|a class path|a dict with|$)"
)
_KEY = re.compile(r'^Parser key "(.+?)"(?: element \d+)?:\s*(.*)$')
_CLASS = re.compile(r"(?:Problem with given class_path |class_path=)'([\w.]+)'")
_REWRITES = (
    (
        r"Not of type \w+: (.+) does not conform to restriction (.+?)(?:\. Got value.*)?$",
        r"\1 is not possible; allowed: a number v with \2",
    ),
    (r"Not of type (\w+): could not convert string to float: (.+)", r"\2 is not possible; allowed: a number (\1)"),
    (r"Not of type (\w+): invalid literal for int\(\) .*: (.+)", r"\2 is not possible; allowed: a whole number (\1)"),
    (r"Expected a (?:typing\.)?Literal\[(.+)\]\. Got value: (.+)", r"\2 is not possible; allowed: \1"),
    (r"Expected a <class '(\w+)'>\. Got value: (.+)", r"\2 is not possible; allowed: \1"),
    (r"^Unable to load config '(\w+)'", r"\1 is not possible; allowed: the options below this key"),
)


def explain(message: str, options: Iterable[str], choices: Mapping[str, Mapping[str, type]]) -> str:
    """Reword a message of the parser.

    Args:
        message: What the parser says, possibly a tree of many lines.
        options: The options that it knows, such as ``--trainer.max_steps``.
        choices: For the last part of a key, the classes that it takes, by name.

    Returns:
        One line that names the key, the value and what is allowed.
    """
    if wrong := re.match(r"unrecognized arguments: (\S+?)(?:[\s=]|$)", message):
        return f"{wrong[1]}: no such option{_nearest(wrong[1], options)}"
    if wrong := re.search(r"does not accept option '([\w.]+)'", message):  # a key in a file
        keys = [option.removeprefix("--") for option in options]
        sections = {key.partition(".")[0] for key in keys}
        section = wrong[1].partition(".")[0]
        near = _nearest(wrong[1], keys) if section in sections else _nearest(section, sections)
        return f"{wrong[1]}: no such option{near}"
    if wrong := re.match(r"Call to compute_fn of link .* failed: (.*)", message):
        return wrong[1]
    given = re.search(r"Given value: (.+)", message)  # the parser names it once, after all types that were tried
    keys, lines = [], []
    for line in (part.strip(" -") for part in message.splitlines()):
        while opened := _KEY.match(line):
            if opened[1] not in keys[-1:]:  # an option with options of its own is named twice
                keys.append(opened[1])
            line = opened[2]
        if not _NOISE.match(line) and not _CLASS.match(line) and line not in lines:
            lines.append(line)
    key, text = ".".join(keys), " ".join(lines)
    known = choices.get(key.rpartition(".")[2], {})
    for line in lines:
        for pattern, replacement in _REWRITES:
            if wrong := re.search(pattern, line):
                return f"{key}: {wrong.expand(replacement)}"
    if given and (wrong := re.search(r"Not of type \w+: does not conform to restriction (\S+)", text)):
        return f"{key}: {given[1]} is not possible; allowed: a number v with {wrong[1]}, or null"
    if wrong := re.search(r"Option '([\w.]+)' is not accepted", text):
        owner = class_name((_CLASS.findall(message) or ["it"])[-1])
        near = _nearest(wrong[1], _arguments(known[owner]) if owner in known else [])
        return f"{key}.{wrong[1]}: {owner} has no such option{near}; see --{key}.help {owner}"
    if wrong := re.search(r"[uU]nrecognized arguments: --([\w.]+)", text):  # an option of an unknown option
        return f"{key}.{wrong[1]}: no such option; see --{key}.help"
    if "Expected an instantiatable class" in text:
        return f"{key}: the name of the class is missing; allowed: {', '.join(sorted(known))}"
    if wrong := re.search(r"Expected a path but (\S+) either", text):
        allowed = ", ".join(sorted(known)) or "the import path of a class, such as torch.optim.SGD"
        return f"{key}: no such class: {wrong[1]}{_nearest(wrong[1], known)}; allowed: {allowed}"
    return f"{key}: {text}" if key else text


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _arguments(kind: type) -> list[str]:
    """Names of the options that a class offers, those of its bases included."""
    return list(ArgumentParser().add_class_arguments(kind))
