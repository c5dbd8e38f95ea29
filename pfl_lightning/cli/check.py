"""``pfl check``: whether a class of one's own keeps the contract of its kind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pfl_lightning.cli.console import show
from pfl_lightning.contract import Finding, check
from pfl_lightning.errors import SettingsError
from pfl_lightning.runs.run_settings import RunParts, make_parts, parse_words, run_parser
from pfl_lightning.settings.parser import strict_parsing
from pfl_lightning.settings.registry import KINDS, package_classes, user_classes

PAGE = "docs/own/method.md, Is it right?"
CHECKED: dict[str, Callable[[RunParts], Any]] = {  # the kinds, and where a run has an object of each
    "methods": lambda parts: parts.method,
    "partitions": lambda parts: parts.data.partition,
    "tasks": lambda parts: parts.method.task,
    "poisons": lambda parts: parts.data.poison,
    "aggregators": lambda parts: parts.method.aggregator,
    "uplink": lambda parts: parts.method.uplink[0],
}


def check_command(args: list[str]) -> None:
    """Run ``pfl check``.

    Args:
        args: What follows ``check``.

    Raises:
        PflError: If the class is none that can be checked, or its options are wrong.
        SystemExit: With code 1 if a rule does not hold.
    """
    if not args or args[0].startswith("-"):
        raise SettingsError("check: the class is missing, such as pfl check my_method.MyMethod")
    findings = []
    for finding in check(part_of(args[0], args[1:])):
        show(line_of(finding))
        findings.append(finding)
    broken = sum(bool(finding.broken) for finding in findings)
    show(f"{len(findings) - broken} of {len(findings)} rules hold" + f"; see {PAGE}" * bool(broken))
    if broken:
        raise SystemExit(1)


@strict_parsing()
def part_of(name: str, options: list[str]) -> Any:
    """The part of a run that a class and its options make.

    Args:
        name: A class as ``pfl list`` shows it: of the package, or of a file in this folder.
        options: Options of ``pfl fit``.

    Raises:
        PflError: If there is no such class, or the options are wrong.
    """
    for kind, find in CHECKED.items():
        classes = [*package_classes(KINDS[kind]), *user_classes(KINDS[kind], Path())]
        if name in [choice.name for choice in classes]:
            parser = run_parser()
            return find(make_parts(parser, parse_words(parser, [f"{KINDS[kind].option}={name}", *options])))
    raise SettingsError(
        f"check: {name} is not possible; allowed: a class of a method, a partition, a task, a poison, an aggregator or "
        "a step of uploads, as pfl list methods shows them"
    )


def line_of(finding: Finding) -> str:
    """What came out of a check, in one line, or in two if it says what to change."""
    if finding.broken:
        return f"broken  {finding.rule}\n        {finding.broken}"
    return f"holds   {finding.rule} ({finding.seconds:.1f} s)"
