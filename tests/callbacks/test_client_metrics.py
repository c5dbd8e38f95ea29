"""The callback that evaluates clients by torchmetrics' classes too, in whole runs."""

from functools import partial

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from sklearn import metrics as sk
from torchmetrics import ConfusionMatrix, MeanAbsoluteError
from torchmetrics.classification import BinaryF1Score, MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

from pfl_lightning.callbacks import ClientMetrics, MetricsTable, PercentileErrors, RoundCheckpoint
from pfl_lightning.client import LocalTraining
from pfl_lightning.data import Digits, LinearRepresentation
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedRep
from pfl_lightning.models import MLP, LinearNetwork

F1 = partial(MulticlassF1Score, average="macro")
NETWORK = partial(MLP, hidden=(8,))


def expected_f1(method, data, split):
    """Macro F1 of each client's global model by scikit-learn."""
    values = []
    for client in range(data.num_clients):
        loader = data.client_dataloader(client, split, batch_size=1000)
        inputs, targets = next(iter(loader))
        values.append(sk.f1_score(targets, method.network(inputs).argmax(1).detach(), average="macro"))
    return np.array(values)


@pytest.mark.parametrize(("backend", "chunk"), [("auto", None), ("sequential", 2)])
def test_the_summary_is_over_the_clients_and_every_client_has_a_column(backend, chunk, ragged_data, fit, tmp_path):
    method, data = FedAvg(network=NETWORK, eval_epochs=0, backend=backend, chunk_size=chunk), ragged_data()
    callbacks = [ClientMetrics(F1), PercentileErrors(percentiles=(50,))]
    trainer = fit(method, data, 2, callbacks=callbacks, logger=CSVLogger(tmp_path))
    values = expected_f1(method, data, "test")
    expected = {"mean": values.mean(), "std": values.std(), "worst": values.min(), "p50": np.median(values)}
    logged = {name: float(trainer.callback_metrics[f"test/global/f1/{name}"]) for name in (*expected, "left_out")}
    assert logged == pytest.approx({**expected, "left_out": 0}, abs=1e-6)
    rows = pd.read_csv(next(tmp_path.rglob("clients.csv"))).query("round == 2 and split == 'test'")
    assert rows.sort_values("client").f1.tolist() == pytest.approx(values, abs=1e-6)


def test_a_run_with_metrics_trains_and_scores_as_one_without_and_they_have_names_of_their_own(ragged_data, fit):
    several = [ClientMetrics(F1), ClientMetrics(MulticlassAccuracy, name="balanced")]
    plain, scored = (
        fit(FedRep(network=NETWORK), ragged_data(), 2, str(len(callbacks)), callbacks=callbacks)
        for callbacks in ([], several)
    )
    states = [trainer.lightning_module.state_dict() for trainer in (plain, scored)]
    torch.testing.assert_close(*states, rtol=0, atol=0)
    logged = scored.callback_metrics
    assert {"test/finetuned/f1/mean", "test/stored/balanced/mean", "val/stored/balanced/worst"} <= logged.keys()
    scores = {name: value for name, value in logged.items() if not {"f1", "balanced"} & {*name.split("/")}}
    assert scores == plain.callback_metrics


def test_clients_of_few_classes_are_left_out_of_an_area_and_counted(fit):
    def logged(metric):
        data = Digits(num_clients=4)  # three classes each
        return fit(FedAvg(network=NETWORK, eval_epochs=0), data, 1, callbacks=[ClientMetrics(metric)]).callback_metrics

    assert logged(MulticlassAUROC)["test/global/auroc/left_out"] == 4
    per_class = logged(partial(MulticlassAUROC, average="none"))
    assert per_class["test/global/auroc/left_out"] == 0
    assert 0 < per_class["test/global/auroc/mean"] < 1


def test_the_best_checkpoint_may_be_that_of_a_metric_where_lower_is_better(fit, tmp_path):
    monitor = "val/global/mean_absolute_error/mean"
    (tmp_path / "run").mkdir()
    best, table = RoundCheckpoint(monitor=monitor), MetricsTable(tmp_path / "run")
    method = FedAvg(network=partial(LinearNetwork, rank=2), eval_epochs=0, local=LocalTraining(lr=0.3))
    data = LinearRepresentation(num_clients=4, samples=20)
    fit(method, data, 5, callbacks=[ClientMetrics(MeanAbsoluteError), best, table], logger=table, val_check_interval=1)
    errors = pd.read_csv(next(tmp_path.rglob("metrics.csv"))).set_index("round")[monitor]
    assert (best.best_round, -best.best_score) == (errors.idxmin(), pytest.approx(errors.min()))
    assert errors.idxmin() != errors.idxmax()


@pytest.mark.parametrize(
    ("callbacks", "line"),
    [
        ([ClientMetrics(MulticlassAccuracy)], "trainer.callbacks.name: accuracy is taken; give this metric another"),
        ([ClientMetrics(F1), ClientMetrics(F1)], "trainer.callbacks.name: f1 is taken"),
        ([ClientMetrics(F1, name="a/b")], "trainer.callbacks.name must consist of letters, digits and _, got 'a/b'"),
        ([ClientMetrics(BinaryF1Score)], "trainer.callbacks.metric: not possible for RaggedData: "),
        ([ClientMetrics(partial(F1, average="all"))], "trainer.callbacks.metric: not possible for RaggedData: "),
        ([ClientMetrics(partial(ConfusionMatrix, task="multiclass"))], "trainer.callbacks.metric: not possible for"),
        ([ClientMetrics(F1, name="correct")], "trainer.callbacks.name: correct is taken"),  # a column of clients.csv
    ],
)
def test_what_cannot_evaluate_the_clients_is_refused_before_the_first_round(callbacks, line, ragged_data, fit):
    with pytest.raises(PflError) as refused:
        fit(FedAvg(network=NETWORK), ragged_data(), 1, callbacks=callbacks)
    assert str(refused.value).startswith(line)


def test_new_clients_are_evaluated_by_it_too(ragged_data, fit):
    method = FedRep(network=NETWORK)
    fit(method, ragged_data(), 1)
    trainer = pl.Trainer(accelerator="cpu", logger=False, callbacks=[ClientMetrics(F1)], enable_progress_bar=False)
    (scores,) = trainer.test(method, ragged_data(new_clients=4, val_fraction=0.0), verbose=False)
    assert 0 <= scores["test/finetuned/f1/mean"] <= 1
