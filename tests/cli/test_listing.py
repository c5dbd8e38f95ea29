from pathlib import Path

import pytest

from pfl_lightning.cli import main
from pfl_lightning.cli.listing import LISTED, table
from pfl_lightning.settings.registry import Choice, choices
from pfl_lightning.settings.shipped_files import configs

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def listed(kind: str, capsys) -> dict[str, str]:
    main(["list", kind])
    rows = (line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    return dict(rows)


@pytest.mark.parametrize("kind", LISTED)
def test_every_kind_is_listed_with_a_line_of_each(kind, capsys):
    rows = listed(kind, capsys)
    assert rows
    assert all(rows.values())


def test_a_line_is_the_first_of_the_docstring(capsys):
    assert listed("methods", capsys)["FedRep"] == choices()["model"]["FedRep"].__doc__.splitlines()[0]


def test_a_base_that_can_be_chosen_itself_is_listed(capsys):
    assert "Participation" in listed("participations", capsys)
    assert "Aggregator" in listed("aggregators", capsys)
    assert "Method" not in listed("methods", capsys)


def test_settings_files_are_listed_by_the_names_that_find_them(capsys):
    assert listed("configs", capsys).keys() == configs().keys()


def test_names_that_cannot_be_read_are_left_out(capsys):
    Path("gone.py").symlink_to("nowhere.py")
    Path("results.py").mkdir()
    assert listed("methods", capsys)


def test_a_terminal_obeys_nothing_that_a_file_says(capsys):
    Path("mine.py").write_text('import pfl_lightning.methods as m\nclass Mine(m.FedAvg):\n    "\\x1b[2JMine."\n')
    assert listed("methods", capsys)["mine.Mine"] == r"[mine.py] \x1b[2JMine."


def test_classes_of_the_working_folder_are_read_and_not_run(capsys):
    Path("mine.py").write_text(
        '''
from pfl_lightning import methods
open("was_run", "w")
class Base(methods.FedRep):
    "A base."
class Mine(Base):
    """Mine.

    More.
    """
class FedProx(methods.FedProx):
    "One with a name of the package."
class _Hidden(Base): ...
class Other: ...
'''
    )
    Path("broken.py").write_text("def f(:\n")
    main(["list", "methods"])
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines() if "." in line.split()[0]]
    assert rows == [
        ["mine.Base", "[mine.py]", "A base."],
        ["mine.Mine", "[mine.py]", "Mine."],
        ["mine.FedProx", "[mine.py]", "One with a name of the package."],
    ]
    assert not Path("was_run").exists()


def test_a_class_that_leaves_a_function_to_its_subclasses_is_not_listed(capsys):
    Path("mine.py").write_text(
        "from abc import abstractmethod\nfrom pfl_lightning.data import Partition\nclass Half(Partition):\n"
        "    @abstractmethod\n    def split(self): ...\nclass Whole(Half):\n    'All.'\n    def split(self): ...\n"
    )
    assert [name for name in listed("partitions", capsys) if "." in name] == ["mine.Whole"]


def test_lines_are_cut_to_the_terminal():
    assert table([Choice("A", "x" * 100), Choice("Long", "y")], 20) == [f"A     {'x' * 13}…", "Long  y"]
    assert table([Choice("A", "x" * 100)], None) == [f"A  {'x' * 100}"]


def test_an_unknown_kind_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["list", "method"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("pfl: error: list: method is not possible; allowed: one of methods, data")
