import numpy as np
import pandas as pd
import pytest
from fakes.methods import small
from lightning.pytorch.loggers import CSVLogger
from torch.nn import functional as F

from pfl_lightning.callbacks import PercentileErrors


def lowest_mean(scores, share):
    """Mean of the lowest share of some scores, one per sample; part of a sample may be in it."""
    sums = np.concatenate([[0], np.cumsum(np.sort(scores))])
    return np.interp(share * len(scores), range(len(sums)), sums) / (share * len(scores))


@pytest.mark.parametrize("name", ["accuracy", "error", "loss"])
def test_weighted_percentiles_and_tails_are_those_of_all_samples(name, ragged_data, fit, tmp_path):
    split, column = ("train", "loss") if name == "loss" else ("test", "correct")
    data = ragged_data(eval_train=True, val_fraction=0.0)
    callback = PercentileErrors(percentiles=(10, 40, 50, 60), tails=(0.1, 0.3, 0.9), errors=True)
    metrics = fit(small(eval_epochs=0), data, 3, callbacks=[callback], logger=CSVLogger(tmp_path)).callback_metrics
    rows = pd.read_csv(next(tmp_path.rglob("clients.csv"))).query("round == 3 and split == @split")
    scores = rows[column] / (rows.samples if column == "correct" else 1)
    scores = 1 - scores if name == "error" else scores
    every = np.repeat(scores, rows.samples)  # each sample has its client's score
    sign = 1 if name == "accuracy" else -1  # the worst are the lowest accuracies, but the highest errors and losses
    expected = {"mean": scores.mean(), **{f"p{place}": np.percentile(scores, place) for place in (10, 40, 50, 60)}}
    expected |= {f"weighted_p{place}": np.percentile(every, place, method="inverted_cdf") for place in (10, 40, 50, 60)}
    expected |= {f"superquantile_{tail}": sign * lowest_mean(sign * every, tail / 100) for tail in (10, 30, 90)}
    logged = {key: float(metrics[f"{split}/global/{name}/{key}"]) for key in expected}
    assert logged == pytest.approx(expected, abs=1e-6)
    assert scores.nunique() >= 4, "clients that are alike would tell nothing"


def test_the_table_has_every_clients_own_mean_loss_and_correct_predictions(ragged_data, fit, tmp_path):
    method, data = small(eval_epochs=0), ragged_data()
    logged = fit(method, data, 2, callbacks=[PercentileErrors()], logger=CSVLogger(tmp_path)).callback_metrics
    assert not [name for name in logged if "/error/" in name], "errors are not logged unless they are wanted"
    table = pd.read_csv(next(tmp_path.rglob("clients.csv")))
    assert set(table["round"]) == {0, 2}
    # the smallest of the six clients has no sample to spare for validation
    for split, clients in (("test", range(6)), ("val", range(1, 6))):
        rows = table.query("round == 2 and split == @split").set_index("client")
        assert list(rows.index) == list(clients)
        for client, row in rows.iterrows():
            ((inputs, targets),) = data.client_dataloader(client, split, batch_size=100)
            outputs = method.network(inputs)
            assert row["samples"] == len(targets)
            assert row["correct"] == (outputs.argmax(1) == targets).sum()
            assert row["loss"] == pytest.approx(F.cross_entropy(outputs, targets).item(), rel=1e-5)


def test_an_evaluation_after_the_run_leaves_the_table_as_it_was(ragged_data, fit, tmp_path):
    method, data = small(eval_epochs=0), ragged_data()
    trainer = fit(method, data, 3, callbacks=[PercentileErrors()], logger=CSVLogger(tmp_path))
    table = next(tmp_path.rglob("clients.csv"))
    before = table.read_bytes()
    trainer.test(method, data, verbose=False)
    trainer.validate(method, data, verbose=False)
    assert table.read_bytes() == before


@pytest.mark.parametrize(
    ("table", "has_logger", "trial"), [(False, True, False), (True, False, False), (True, True, True)]
)
def test_there_is_no_table_unless_it_is_wanted_in_a_run_that_is_logged(
    table, has_logger, trial, ragged_data, fit, tmp_path
):
    options = {"logger": CSVLogger(tmp_path) if has_logger else False, "fast_dev_run": trial}
    fit(small(), ragged_data(), 1, callbacks=[PercentileErrors(table=table)], **options)
    assert not list(tmp_path.rglob("clients.csv"))
