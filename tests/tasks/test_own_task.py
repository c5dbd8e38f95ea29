"""A task of the user's own, whose score no part of the library has heard of."""

from functools import partial
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
import torch
from fakes.tasks import Copies
from torchmetrics import MeanAbsoluteError
from torchmetrics.classification import MulticlassAccuracy

from pfl_lightning import Experiment, load_method
from pfl_lightning.callbacks import ClientMetrics, RoundCheckpoint
from pfl_lightning.data import Digits
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import MLP
from pfl_lightning.report import read_run
from pfl_lightning.report.compare_curves import curves_of
from pfl_lightning.report.compare_tables import final_table
from pfl_lightning.tasks import Classification, try_task


class Zeros(Digits):
    """Digits of which only the zeros count; most clients have none."""

    task = Copies().sized(10)

    def load(self):
        for split in super().load():
            yield split and split._replace(targets=torch.stack([split.targets, (split.targets == 0).long()], 1))


def test_its_score_is_shown_logged_and_reported_and_clients_without_it_are_left_out(in_an_empty_folder):
    data = Zeros()
    data.setup()
    run = Experiment(FedAvg(network=partial(MLP, hidden=(4,))), data, rounds=2).fit()
    test = data.tables["test"].examples(torch.arange(20))
    amounts = (test.targets(test.positions)[..., 1] * test.present).sum(1)
    defined = amounts.nonzero()[:, 0].tolist()
    assert 0 < len(defined) < 20
    record = read_run(run.folder)
    assert record.score_kind == Copies.score
    clients = record.clients["test", "global", 2]
    assert clients["client"].tolist() == defined
    logged = pd.read_csv(run.folder / "metrics.csv").set_index("round").loc[2]
    assert logged["test/global/hits/left_out"] == 20 - len(defined)
    assert abs(logged["test/global/hits/mean"] - clients["hits"].mean()) < 1e-6
    assert logged["test/hits"] == logged["test/global/hits/mean"]
    assert logged["test/global/hits/worst"] == clients["hits"].min()
    assert abs(logged["test/global/hits/p50"] - clients["hits"].median()) < 1e-6
    assert "Clients' test hits (of 10) at the last evaluation" in final_table(curves_of([record])).text


@pytest.mark.parametrize("monitor", [None, "val/mean_absolute_error"])
def test_a_task_in_place_of_that_of_the_data_selects_is_monitored_and_measured(
    monitor, in_an_empty_folder, monkeypatch
):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs/own")
    ordinal_regression = import_module("my_task").OrdinalRegression

    method = FedAvg(network=partial(MLP, hidden=(4,)), task=ordinal_regression())
    metrics = [ClientMetrics(MeanAbsoluteError), ClientMetrics(MulticlassAccuracy, name="share")]
    metrics[0].name = "distance"
    experiment = Experiment(method, Digits(), rounds=2, callbacks=metrics, checkpoint=RoundCheckpoint(monitor=monitor))
    run = experiment.fit()
    task = load_method(run.folder / "checkpoints/best.ckpt").task
    assert (task.classes, task.outputs) == (10, 9)
    logged = pd.read_csv(run.folder / "metrics.csv").set_index("round").loc[2]
    assert logged["test/global/distance/mean"] == pytest.approx(
        logged["test/global/mean_absolute_error/mean"], rel=1e-5
    )
    assert 0 < logged["test/global/share/mean"] < 1
    assert read_run(run.folder).score_kind == ordinal_regression.score


class Wrong(Classification):
    """Returns what is given instead of one of its results."""

    def __init__(self, name, value):
        super().__init__()
        self.__dict__[name] = lambda *_: value


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "usual_losses",
            torch.ones(()),
            r"Wrong.usual_losses must return a row for each of 6 samples, got the shape \[\]",
        ),
        ("statistics", {"n": torch.ones(3)}, r"Wrong.statistics must return a row .*, got the shape \[3\] as n"),
        ("scores", {"mean": torch.ones(1)}, "Wrong.scores must have accuracy, got mean"),
    ],
)
def test_a_task_that_returns_something_else_is_one_line(name, value, line):
    with pytest.raises(PflError, match=f"^model.task: {line}$"):
        try_task(Wrong(name, value).sized(3))
