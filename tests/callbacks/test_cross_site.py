"""Every client's model on every client's samples, against a loop over plain modules."""

import csv
from functools import partial

import numpy as np
import pytest
import torch

from pfl_lightning.callbacks import CrossSite
from pfl_lightning.methods import DPSGD, FedAvg, FedRep, KNNPer
from pfl_lightning.models import MLP
from pfl_lightning.uplink import SignFlip

SMALL = partial(MLP, hidden=(8, 5))


def accuracy(module, data, site):
    hits = [
        (module(inputs).argmax(1) == targets).double() for inputs, targets in data.client_dataloader(site, "test", 100)
    ]
    return float(torch.cat(hits).mean()) if hits else np.nan


@pytest.mark.parametrize(("make", "chunk_size"), [(FedAvg, None), (FedRep, 2), (DPSGD, 4), (KNNPer, None)])
def test_the_matrix_is_that_of_a_loop_and_its_diagonal_the_usual_scores(make, chunk_size, ragged_data, fit):
    data, callback = ragged_data(), CrossSite()
    method = make(network=SMALL, chunk_size=chunk_size)
    logged = fit(method, data, 2, callbacks=[callback]).callback_metrics
    assert list(callback.matrices) == list(method.eval_models)
    for model, matrix in callback.matrices.items():
        expected = [
            [accuracy(method.client(client, model, data), data, site) for site in range(data.num_clients)]
            for client in range(data.num_clients)
        ]
        np.testing.assert_allclose(matrix, expected, atol=1e-6)
        assert logged[f"cross_site/{model}/own"].item() == pytest.approx(np.diag(matrix).mean())
        assert logged[f"test/{model}/accuracy/mean"].item() == pytest.approx(np.diag(matrix).mean())
        others = matrix[~np.eye(len(matrix), dtype=bool)]
        assert logged[f"cross_site/{model}/others"].item() == pytest.approx(others.mean())


def test_only_the_last_evaluation_has_it_and_its_file_has_names(ragged_data, fit, tmp_path):
    data, callback = ragged_data(), CrossSite()
    seen = []
    callback._show, show = lambda *words: seen.append(words[0].global_step) or show(*words), callback._show
    fit(FedRep(network=SMALL), data, 2, callbacks=[callback], val_check_interval=1)
    assert set(seen) == {2}
    with next(tmp_path.rglob("cross_site_stored.csv")).open() as file:
        header, *rows = csv.reader(file)
    assert header == ["model of", *map(str, range(data.num_clients))]
    assert np.array([row[1:] for row in rows], dtype=float) == pytest.approx(callback.matrices["stored"])


def test_attackers_are_in_it_as_others_are(ragged_data, fit):
    data, callback = ragged_data(), CrossSite()
    fit(FedAvg(network=SMALL, uplink=[SignFlip(0.4)]), data, 1, callbacks=[callback])
    assert not np.isnan(callback.matrices["global"]).any()
