from pathlib import Path

import pytest

from pfl_lightning.cli import main
from pfl_lightning.cli.check import CHECKED
from pfl_lightning.settings.registry import KINDS

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

METHOD = """
from pfl_lightning.methods import FedAvg

class Mine(FedAvg):
    def local_update(self, cohort, received, key):
        return super().local_update(cohort, received, (*key, 1 / (cohort.counts.min().item() - 1)))
"""
PARTITION = """
import numpy as np
from pfl_lightning.data import Partition

class Mine(Partition):
    def __init__(self, offset: int = 0):
        self.offset = offset

    def split(self, splits, num_classes, population, rng):
        order = [rng.permutation(len(split.classes)) + self.offset for split in splits]
        return [np.array_split(rows, population.num_clients) for rows in order]
"""


def test_a_method_that_does_not_train_is_said_with_its_place(capsys):
    Path("mine.py").write_text(METHOD)
    with pytest.raises(SystemExit) as stop:
        main(["check", "mine.Mine"])
    assert stop.value.code == 1
    assert capsys.readouterr().out.splitlines() == [
        "broken  Clients with 1, 4, 9 and more samples train, and all numbers stay finite",
        "        ZeroDivisionError: division by zero (mine.py, line 6)",
        "0 of 1 rules hold; see docs/own/method.md, Is it right?",
    ]


def test_options_are_those_of_fit(capsys):
    Path("mine.py").write_text(PARTITION)
    main(["check", "mine.Mine"])
    *rules, end = capsys.readouterr().out.splitlines()
    assert [line[:6] for line in rules] == ["holds "] * 2
    assert end == "2 of 2 rules hold"
    with pytest.raises(SystemExit):
        main(["check", "mine.Mine", "--data.partition.offset", "1"])
    assert "must return samples from 0 to 2399, got 2400" in capsys.readouterr().out


def test_every_kind_is_found_by_the_names_of_lists(capsys):
    assert {*CHECKED} <= {*KINDS}
    main(["check", "Regression"])
    assert capsys.readouterr().out.endswith("4 of 4 rules hold\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "check: the class is missing, such as pfl check my_method.MyMethod"),
        (["--model", "FedRep"], "check: the class is missing, such as pfl check my_method.MyMethod"),
        (["Digits"], "check: Digits is not possible; allowed: a class of a method, a partition, a task, a poison, an"),
        (["FedRep", "--model.lrr=3"], "model.lrr: FedRep has no such option"),
    ],
)
def test_wrong_words_are_a_line(words, line, refused):
    code, said = refused("check", *words)
    assert code == 2
    assert said.startswith(line)
