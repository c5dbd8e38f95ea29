import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import lightning.pytorch as pl
import pytest
import torch
from fakes.cohorts import Identity
from fakes.folders import content
from fakes.hugging_face import write_language_models, write_networks
from fakes.methods import built
from hypothesis import settings
from lightning.fabric.utilities import registry
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric
from torch.utils.tensorboard import SummaryWriter

from pfl_lightning.cli import main
from pfl_lightning.contract import subject as contract
from pfl_lightning.contract.clients import UnequalClients

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")


# the tests' tensors are tiny: more threads only disturb each other, in processes that a test starts too
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

# a tenth of the time: looking through all that was imported for garbage, and waiting for the disk
gc.set_threshold(20_000)
os.fsync = lambda descriptor: None

# a fifth of the time of short runs: for each trainer Lightning asks all installed packages for callbacks, and for each
# logged number it looks for tensors to move in all that belongs to it
registry.entry_points = cache(registry.entry_points)
if not torch.cuda.is_available():
    _ResultMetric.to = lambda metric, *_: metric


@pytest.fixture(autouse=True)
def environment_and_users_modules_end_with_their_test(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    with mock.patch.dict(os.environ):  # libraries leave words there, MLflow where its store is
        yield
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path_factory.getbasetemp())):
            del sys.modules[name]


@pytest.fixture
def pictures():
    """For tests that look at TensorBoard's pictures."""


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    if "pictures" not in request.fixturenames:  # drawing takes a third of a short run
        monkeypatch.setattr(SummaryWriter, "add_figure", lambda *_, **__: None)


@pytest.fixture(autouse=True)
def float32_by_default():
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def refused(capsys, monkeypatch) -> Callable[..., tuple[int, str]]:
    """Runs a command that must fail, say one line and change nothing; returns the exit code and the line."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of a user's own file

    def run(*words: str) -> tuple[int, str]:
        before = content()
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([*words])
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("pfl: error: ")
        assert content() == before
        return stop.value.code, line.removeprefix("pfl: error: ")

    return run


@pytest.fixture
def float64(float32_by_default):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)


@pytest.fixture(params=["sequential", "batched"])
def backend(request) -> str:
    """How clients are run, in either way."""
    return request.param


@pytest.fixture(scope="session")
def real_data(tmp_path_factory) -> Path:
    """The folder with the real data sets, unpacked once; skips where the archives are absent."""
    archives = Path(__file__).parents[2] / "shared" / "data"
    if not (archives / "unpack").is_file():
        pytest.skip("the archives of the real data sets are absent")
    folder = tmp_path_factory.getbasetemp().parent / "real-data"
    subprocess.run([archives / "unpack", folder], check=True)
    cinic10 = folder / "cinic10"
    if not (cinic10 / "CINIC-10").exists():  # the archive there is a sample, and not the official one
        part = tempfile.mkdtemp(dir=cinic10)
        shutil.unpack_archive(cinic10 / "CINIC-10.tar.gz", part, filter="data")
        with suppress(OSError):  # another process was first
            Path(part).rename(cinic10 / "CINIC-10")
    return folder


@pytest.fixture(scope="session")
def hugging_face(tmp_path_factory) -> Path:
    """A folder with tiny networks of transformers; skips where that is not installed."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("hugging_face")
    write_networks(folder)
    return folder


@pytest.fixture(scope="session")
def language_models(tmp_path_factory) -> Path:
    """A folder with tiny language models of transformers; skips where that is not installed."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("language_models")
    write_language_models(folder)
    return folder


class RaggedData(UnequalClients):
    """Random, learnable data of very unequal clients, which no transform casts to the precision of a run."""

    def transform(self):
        return Identity()


@pytest.fixture
def ragged_data() -> type[RaggedData]:
    return RaggedData


@pytest.fixture
def fit(tmp_path) -> Callable[..., pl.Trainer]:
    """Trains a method for some rounds in a folder and returns the trainer; ``bare``: nothing is evaluated or saved."""

    return lambda method, data, rounds, folder="run", *given, **options: contract.fit(
        method, data, rounds, tmp_path / folder, *given, **options
    )


@pytest.fixture
def train(ragged_data, fit) -> Callable[..., Any]:
    """Builds a method with a small network and trains it, on ragged data by default; nothing is evaluated or saved."""

    def run(make, rounds: int, data=None, callbacks=(), **options: Any):
        data = data or ragged_data()
        method = built(make, data, **options)
        fit(method, data, rounds, callbacks=callbacks, bare=True)
        return method

    return run
