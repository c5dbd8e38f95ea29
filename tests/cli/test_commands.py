import subprocess
import sys

import pytest

from pfl_lightning.cli import main
from pfl_lightning.cli.commands import COMMANDS

QUICK = [
    [],
    ["--help"],
    ["--version"],
    ["fitt"],
    ["fit", "--help"],
    ["test", "runs/x", "-h"],
    ["list", "methods"],
    ["list", "nothing"],
    ["completion", "bash"],
]


def test_help_names_every_command_in_a_line_of_80_columns(capsys):
    main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for name, command in COMMANDS.items():
        assert f"  {name:<12}{command.line}" in lines


def test_quick_answers_import_neither_torch_nor_lightning():
    code = f"""
import sys
from pfl_lightning.cli import main
for words in {QUICK}:
    try:
        main(words)
    except SystemExit:
        pass
    assert not {{"torch", "lightning", "jsonargparse", "numpy"}} & sys.modules.keys(), words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["fitt"], "pfl: error: fitt: no such command; did you mean fit?\n"),
        (["xyz"], f"pfl: error: xyz: no such command; allowed: {', '.join(COMMANDS)}\n"),
        (
            ["--model", "FedRep"],
            f"pfl: error: --model: the command before it is missing; allowed: {', '.join(COMMANDS)}\n",
        ),
    ],
)
def test_a_wrong_command_ends_with_a_line_and_code_2(words, line, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err == line


def test_pfl_alone_shows_the_commands_and_fails(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "commands:" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded(name):
    assert callable(COMMANDS[name].load())
