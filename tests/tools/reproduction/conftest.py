from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from reproduction.items import Item
from reproduction.kinds import claims_of
from reproduction.results import Results
from reproduction.runs import Place

from pfl_lightning.report import RunRecord
from pfl_lightning.report.run_files import Label
from pfl_lightning.runs.run_settings import parse_words, plain_settings, run_parser
from pfl_lightning.score_kind import ACCURACY
from pfl_lightning.settings.parser import strict_parsing


@pytest.fixture
def place(tmp_path):
    """The place of runs of two seeds."""
    return Place(tmp_path, [1, 2])


@pytest.fixture
def part(tmp_path):
    """Makes a part of a table or figure with some settings of its own; its paper's are DePRL's."""

    def make(scale="small", paper="deprl", item="table1", title="fashion_mnist", seeds=(1, 2), **block):
        made = Item(paper, item)
        made.block = replace(made.block, **block)
        part = made.part(title, scale, Path("files"), tmp_path, seeds)
        part.place.folder.mkdir(parents=True, exist_ok=True)
        return part

    return make


@pytest.fixture
def results(part, monkeypatch):
    """Makes results with made-up values ``[seeds]`` of runs by their names, whatever is measured.

    A function instead of values gets the name of the measure and its options.
    """

    def make(values, printed=None, numbers=None, **settings):
        runs = {name.partition(" ")[0]: [name.partition(" ")[0]] * 2 for name in values}
        made = Results(part(**settings), runs, numbers=numbers)
        made.printed = printed or made.printed
        made.values_by_name = values

        def runs_of(name):
            found = values.get(name, values.get(name.partition(" ")[0]))
            return [SimpleNamespace(value=found, seed=seed) for seed in range(2)], ""

        def of_seed(measure, runs, models, **options):
            numbers = [
                np.atleast_1d(run.value(measure, **options) if callable(run.value) else run.value) for run in runs
            ]
            return float(np.divide(*([each[runs[0].seed % len(each)] for each in numbers] + [1.0])[:2]))

        monkeypatch.setattr(made, "runs_of", runs_of)
        monkeypatch.setattr("reproduction.results.of_seed", of_seed)
        return made

    return make


@pytest.fixture
def claims_about():
    """The claims of a part about numbers that were computed."""
    return lambda part, numbers: [
        claim for _, claim in claims_of(part.item.block.claims, Results(part, {}, numbers=numbers))
    ]


@pytest.fixture(scope="session")
def settings_of():
    """Reads the options of ``pfl fit``, the same ones once, by one parser, which takes a while to make."""
    with strict_parsing():
        parser = run_parser()

    @cache
    @strict_parsing()
    def read(words):
        return plain_settings(parser, parse_words(parser, words))

    return lambda words: deepcopy(read(tuple(words)))


@pytest.fixture
def run():
    """Makes a run: what it has logged, and of each model and evaluation how many of 30 and 10 samples are correct."""

    def make(rounds=3, split="test", **models):
        samples = np.array([30, 10])
        logged = pd.DataFrame(index=range(rounds))
        clients = {}
        for model, rows in models.items():
            scores = np.array(rows) / samples
            logged[f"test/{model}/accuracy/mean"] = scores.mean(1)
            for at, score in enumerate(scores):
                columns = {"samples": samples, "correct": rows[at], "score": score, "error": 1 - score}
                clients[split, model, at] = pd.DataFrame(columns)
        label = Label("FedRep", "FedRep", None, {}, is_baseline=False)
        settings = {"trainer.max_steps": 2}
        evaluated = ACCURACY, list(models), np.arange(rounds)
        return RunRecord(Path(), label, 1, settings, *evaluated, logged, clients)

    return make
