import os
import re
import subprocess
import sys
from errno import ENOSPC
from os import strerror

import pytest
import yaml

from pfl_lightning.cli import main
from pfl_lightning.cli.main import COMMANDS, help_text, load
from pfl_lightning.runs.run_settings import ALIASES, settings_of
from pfl_lightning.settings.values import class_name, flat

QUICK = [
    [],
    ["--help"],
    ["--version"],
    ["fitt"],
    ["fit", "--help"],
    ["test", "runs/x", "-h"],
    ["list", "methods"],
    ["list", "nothing"],
]


def test_help_names_every_command_in_a_line_of_80_columns(capsys):
    main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for name, (_, line) in COMMANDS.items():
        assert f"  {name:<12}{line}" in lines


@pytest.mark.slow
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


@pytest.mark.slow
def test_commands_import_no_library_that_they_do_not_use(tmp_path):
    code = f"""
import gc, sys
gc.disable()  # as the command does while it imports
from pfl_lightning.cli import main
try:
    main(["compare", "nothing"])
except SystemExit:
    pass
assert "matplotlib" in sys.modules and not {{"torch", "lightning", "pandas"}} & sys.modules.keys()
quick = ["--data.max_samples=9", "--trainer.max_steps=1"]
main(["fit", "--data=Synthetic", *quick, "--trainer.default_root_dir={tmp_path}"])
assert "torch" in sys.modules and not {{"pandas", "sklearn", "networkx", "requests"}} & sys.modules.keys()
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


@pytest.mark.slow
@pytest.mark.parametrize("place", [">/dev/full", ">&-"])
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [
        ("list methods", "1"),
        ("fit --print_config", ""),
        ("fit --print_config", "1"),
        ("fit --help", ""),
    ],
)
def test_an_answer_that_nobody_can_read_ends_with_a_line(words, unbuffered, place):
    shell = f"{sys.executable} -m pfl_lightning {words} {place}"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, env=environment)
    reason = "closed" if place == ">&-" else strerror(ENOSPC)
    assert (done.returncode, done.stderr) == (1, f"pfl: error: stdout: cannot be written ({reason})\n")


@pytest.mark.slow
def test_an_answer_whose_reader_ends_says_nothing():
    done = subprocess.run(
        f"{sys.executable} -m pfl_lightning list methods | head -1", shell=True, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_backend_that_matplotlib_lacks_is_named():
    command = [sys.executable, "-m", "pfl_lightning", "compare", "nowhere"]
    done = subprocess.run(command, env={**os.environ, "MPLBACKEND": "canvas"}, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert line.startswith("pfl: error: MPLBACKEND: Key backend: 'canvas' is not a valid value for backend; ")
    assert done.returncode == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded(name):
    assert callable(load(name))


@pytest.fixture(scope="module")
def known():
    """Every setting of a run with a callback that has options."""
    words = ["--trainer.callbacks+=StageDoubling", "--data.participation.class_path=Participation"]
    return {f"--{key}": value for key, value in flat(settings_of(words))}


@pytest.mark.parametrize("command", ["fit", "validate", "test"])
def test_the_short_help_is_short_and_names_options_that_exist_with_their_defaults(command, known, capsys):
    main([command, "--help"])
    text = capsys.readouterr().out
    assert text == help_text(command)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith(f"usage: pfl {command} ")
    actions = {
        "--print_config",
        "--verbose",
        "--config",
        "--ckpt_path",
        "--trainer.callbacks+",
        "--trainer.callbacks.n0",
    }
    helps = {"--model.help", "--data.help", "--help.all"}
    found = re.findall(r"^  (--\S+?)(?:, (--\w+))?(?: \S+)?(?: {2,}|\n)(.+\n(?: {34}.+\n)*)", text, re.MULTILINE)
    assert len(found) == len(re.findall("^  --", text, re.MULTILINE))
    for option, short, line in found:
        assert option in known.keys() | actions | helps
        assert not short or ALIASES[short[2:]] == option[2:]
        if default := re.search(r"\(default:\s+(\S+)\)", line):
            value = known[option]
            assert yaml.safe_load(default[1]) == (class_name(value) if isinstance(value, str) else value)
    assert {short[2:] for _, short, _ in found if short} == ({*ALIASES} if command == "fit" else set())


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--help.all"], "--trainer.reload_dataloaders_every_n_epochs"),
        (["--model.help", "FedRep", "--rounds", "1"], "--model.head_epochs"),
        (["--data.help", "Digits", "--model=FedRep"], "--data.num_clients"),
        (["--model.network.help=MLP", "--rounds=1"], "--network.hidden"),
        (["--trainer.callbacks.help", "StageDoubling", "-c", "quickstart"], "--trainer.callbacks.n0"),
        (["--model.task=Regression", "--rounds=1", "--model.task.loss.help", "HuberLoss"], "--loss.delta"),
    ],
)
def test_all_options_are_a_word_away(words, option, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fit", *words])
    told = capsys.readouterr()
    assert (ended.value.code, told.err) == (0, "")
    assert option in told.out
    assert told.out.startswith("usage: pfl ")
    assert "torch.nn.Identity" not in told.out, "of all modules that torch has, losses alone"
