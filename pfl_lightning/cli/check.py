"""``pfl check``: whether a class of one's own keeps the contract of its kind."""

from pfl_lightning.cli.console import show
from pfl_lightning.contract import Finding, check_method
from pfl_lightning.errors import SettingsError
from pfl_lightning.runs.run_settings import make_parts, parse_words, run_parser

PAGE = "docs/own/method.md, Is it right?"


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
    parser = run_parser()
    name, *options = args
    method = make_parts(parser, parse_words(parser, ["--model", name, *options])).method
    findings = []
    for finding in check_method(method):
        show(line_of(finding))
        findings.append(finding)
    broken = sum(bool(finding.broken) for finding in findings)
    show(f"{len(findings) - broken} of {len(findings)} rules hold" + f"; see {PAGE}" * bool(broken))
    if broken:
        raise SystemExit(1)


def line_of(finding: Finding) -> str:
    """What came out of a check, in one line, or in two if it says what to change."""
    if finding.broken:
        return f"broken  {finding.rule}\n        {finding.broken}"
    return f"holds   {finding.rule} ({finding.seconds:.1f} s)"
