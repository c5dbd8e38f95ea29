import re
import shutil
import subprocess

import pytest

from pfl_lightning.cli import main
from pfl_lightning.cli.compare import compare_parser
from pfl_lightning.cli.completion import options_of
from pfl_lightning.cli.export import export_parser
from pfl_lightning.cli.sweep import sweep_parser

PARSERS = {"compare": compare_parser, "export": export_parser, "sweep": sweep_parser}


pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "pfl.bash"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        main(["completion", "bash"])
    return path


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("pfl co", ["compare", "completion"]),
        ("pfl fit --model FedR", ["FedRep", "FedRoD"]),
        ("pfl fit --method FedR", ["FedRep", "FedRoD"]),
        ("pfl fit --data Digits --rou", ["--rounds"]),
        ("pfl fit --trainer.max", ["--trainer.max_steps"]),
        ("pfl fit --trainer.callbacks+ Stage", ["StageDoubling"]),
        ("pfl fit --model.help Dit", ["Ditto"]),
        ("pfl list me", ["methods"]),
        ("pfl data prepare CINIC", ["CINIC10"]),
        ("pfl sweep --se", ["--seeds", "--search"]),
        ("pfl compare ru", ["runs"]),
        ("pfl fit --config my", ["my.yaml"]),
    ],
)
def test_bash_completes(line, offered, script, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "my.yaml").touch()
    ask = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_pfl; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", ask, script, *line.split(" ")], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == offered


def test_bash_is_told_to_ask_the_script(script):
    assert re.search(r"^complete .*-F _shtab_pfl pfl$", script.read_text(), re.MULTILINE)


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh_can_read_its_script(capsys, tmp_path):
    main(["completion", "zsh"])
    (tmp_path / "_pfl").write_text(capsys.readouterr().out)
    assert (tmp_path / "_pfl").read_text().startswith("#compdef pfl\n")
    subprocess.run(["zsh", "-n", "_pfl"], check=True)


@pytest.mark.parametrize("command", PARSERS)
def test_the_options_of_commands_with_parsers_of_their_own_are_those_of_the_parsers(command):
    known = {option for option in PARSERS[command]().options() if option.startswith("--")}
    assert {option for option in known if not option.startswith(("--help", "--print_"))} == {*options_of(command)}


def test_an_unknown_shell_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["completion", "fish"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "pfl: error: completion: fish is not possible; allowed: bash or zsh\n"
