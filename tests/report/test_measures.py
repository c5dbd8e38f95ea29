import numpy as np
import pytest
import torch
from fakes.curves import curves

from pfl_lightning import metrics
from pfl_lightning.report.measures import reference_of, superquantile, weighted_p90

ONE = {"global": [[0.5]]}


def test_the_superquantile_is_the_mean_of_the_worst_tenth():
    # of 15 clients the worst one counts, and half of the next one
    assert superquantile(np.array([0.9, 0.6, *[0.1] * 13])) == pytest.approx((0.9 + 0.5 * 0.6) / 1.5)
    assert superquantile(np.array([0.2, 0.7])) == pytest.approx(0.7)
    assert superquantile(np.array([np.inf, np.inf, *[0.1] * 8])) == np.inf


@pytest.mark.parametrize("clients", [1, 3, 10, 47])
def test_statistics_of_the_tail_are_those_that_runs_log(clients):
    rng = np.random.default_rng(clients)
    values, weights = rng.integers(0, 9, clients) / 8, rng.integers(1, 6, clients)  # with ties
    tensors = torch.from_numpy(values), torch.from_numpy(weights)
    assert weighted_p90(values, weights) == metrics.weighted_quantile(*tensors, 0.9).item()
    equal = metrics.superquantile(tensors[0], torch.ones(clients), 0.1).item()
    assert superquantile(values) == pytest.approx(equal)


def test_a_weight_of_exactly_90_percent_is_enough():
    assert weighted_p90(np.array([3.0, 1.0, 2.0]), np.array([1, 3, 6])) == 2.0


@pytest.mark.parametrize(
    ("runs", "label"),
    [
        ([("DeltaFL", 0.5), ("DeltaFL", 1.0), ("FedAvg", None)], "Delta-FL, conformity=1.0"),
        ([("FedRep", None), ("DeltaFL", 0.5), ("FedAvg", None)], "FedAvg"),
        ([("DeltaFL", 0.5), ("FedRep", None)], "Delta-FL"),
    ],
)
def test_the_reference_is_the_first_baseline_else_the_first(runs, label, write_run):
    folders = [
        write_run(str(index), ONE, method, model={"conformity": conformity})
        for index, (method, conformity) in enumerate(runs)
    ]
    assert reference_of(curves(*folders)).label == label


def test_a_doubled_baseline_is_no_reference(write_run, doubling):
    folders = [write_run("a", ONE, "FedRep"), write_run("b", ONE, "FedAvg", callbacks=[doubling])]
    assert reference_of(curves(*folders)).label == "FedRep"
