from dataclasses import replace
from functools import partial

import pytest


@pytest.fixture
def bench(monkeypatch):
    """The benchmark with a small peak; what it sets for the whole process is taken back."""
    import benchmark
    from benchmarks import timing

    monkeypatch.setattr(timing, "PEAK_SIZE", 64)
    monkeypatch.setattr(benchmark, "keep_freed_memory", lambda: None)  # it would hold for all tests
    return benchmark


@pytest.fixture
def tiny():
    """A small workload of FedRep."""
    from benchmarks.workloads import WORKLOADS

    from pfl_lightning.models import MLP

    small = replace(WORKLOADS["fedrep-mlp"], network=partial(MLP, hidden=(8,)), input_shape=(1, 4, 4))
    return replace(small, cohort=3, samples=20).with_options(head_epochs=2)
