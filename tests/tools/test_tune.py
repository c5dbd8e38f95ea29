import platform
from pathlib import Path

import pytest
import torch
import tune
from benchmarks.device import forget_peak, peak_mebibytes
from fakes.methods import make_method
from torch import nn
from tune import Choice, Rounds, Trial, tune_command

from pfl_lightning.data import Digits
from pfl_lightning.methods import FedAvg, FedRep
from pfl_lightning.models import Network

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
OPTIONS = {"accelerator": "cpu", "precision": None, "deterministic": None, "benchmark": None}


class Normed(Network):
    def __init__(self, input_shape, num_classes):
        layers = {"flatten": nn.Flatten(), "norm": nn.BatchNorm1d(64), "fc": nn.Linear(64, num_classes)}
        super().__init__(layers)


@pytest.fixture
def rounds():
    """Rounds of a method on some digits, and the methods that have taken them."""

    def make(kind, **settings):
        def method(choice):
            options = {"backend": choice.backend, "chunk_size": choice.chunk_size, **settings}
            taken.append(make_method(kind, lr=0.1, **options))
            return taken[-1]

        data, taken = Digits(num_clients=4, val_fraction=0.0), []
        data.setup()
        return Rounds(method, data, OPTIONS), taken

    return make


def test_the_choices_for_a_run_are_measured_and_advice_is_given(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "CHUNK_SIZES", (2, 20, 50))
    options = "--data.num_clients 4 --model.network LogisticRegression --model FedAvg --model.chunk_size 3"
    tune.run(tune_command, ["--config", str(QUICKSTART), *options.split(), "--repeats=2"])
    *lines, advice = capsys.readouterr().out.splitlines()
    assert lines[0] == "| backend | chunk size | seconds | spread | peak MiB |"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    expected = {(backend, size) for backend in ("auto", "sequential", "batched") for size in ("default", "2")}
    assert {tuple(row[:2]) for row in rows} == expected | {("auto", "3")}
    seconds = [float(row[2]) for row in rows]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert advice.startswith(("Add: --model.", "Nothing need be set: what is set is within 5 % of the best."))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--nope 1", 2),
        ("--repeats nope", 2),
        ("--data.num_clients 2 --data.partition ClassShards --data.partition.classes_per_client 1", 1),
    ],
)
def test_a_wrong_command_line_is_one_line(options, code, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        tune.run(tune_command, options.split())
    assert stop.value.code == code
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert not list(tmp_path.iterdir())


def test_choices_go_up_to_the_cohort_and_hold_what_is_set():
    every = tune.choices(12, Choice("batched", 7))
    assert [choice.chunk_size for choice in every if choice.backend == "auto"] == [None, 1, 2, 5, 10]
    assert every[-1] == Choice("batched", 7)
    assert len(tune.choices(12, Choice())) == 15


def test_every_choice_takes_the_same_round(rounds):
    trial, taken = rounds(FedRep)
    assert trial.cohort == 4
    seconds, peak = trial.take(Choice("sequential", 3))
    assert seconds > 0
    assert peak is None  # it was not asked for
    trial.take(Choice())
    first, second = taken
    assert (first.engine.requested, first.chunk_size, second.engine.requested) == ("sequential", 3, "auto")
    heads = [method.clients.gather(torch.arange(4)) for method in taken]
    tensors = [{**method.network.state_dict(), **own} for method, own in zip(taken, heads, strict=True)]
    for name, tensor in tensors[0].items():
        torch.testing.assert_close(tensors[1][name], tensor, rtol=0, atol=1e-5)
    assert (heads[0]["fc4.weight"][0] - heads[0]["fc4.weight"][1]).norm() > 1e-3  # they have trained


def test_what_is_not_possible_is_shown_with_its_reason(rounds):
    trial, _ = rounds(FedAvg, network=Normed)
    trials = tune.tune(trial.take, [Choice(), Choice("batched", None), Choice("batched", 2)], 1)
    lines = tune.table(trials).splitlines()
    assert len(trials[Choice()].seconds) == 1
    assert len(lines) == 4
    assert lines[2].startswith("| auto | default | ")
    assert lines[3].startswith("| batched | default, 2 | not possible: model.backend: batched is not possible with")
    assert tune.advice(trials, Choice()).startswith("Nothing need be set: the default")
    wrong = tune.advice(trials, Choice("batched", 2))
    assert wrong.startswith("Add: --model.backend auto --model.chunk_size null (what is set is not possible")


def test_too_little_memory_is_not_possible(rounds, monkeypatch):
    fit = tune.pl.Trainer.fit

    def halving(trainer, method, **data):
        fit(trainer, method, **data)
        method.cohort.limit = 2 if method.chunk_size == 4 else None  # as after a device ran out of memory

    monkeypatch.setattr(tune.pl.Trainer, "fit", halving)
    trial, _ = rounds(FedAvg)
    assert tune.first(trial.take, Choice("auto", 4)).reason == "the memory of the device suffices for 2 clients at once"
    assert tune.first(trial.take, Choice("auto", 2)).reason is None


DEFAULT, FIVE, BATCHED = Choice(), Choice("auto", 5), Choice("batched", 10)


@pytest.mark.parametrize(
    ("seconds", "current", "expected"),
    [
        ({DEFAULT: [2.0], BATCHED: [1.0]}, DEFAULT, "Add: --model.backend batched --model.chunk_size 10 (2.00"),
        ({DEFAULT: [1.04], BATCHED: [1.0]}, DEFAULT, "Nothing need be set: the default is within 5 %"),
        # slower only when it was disturbed
        ({DEFAULT: [2.0, 2.0, 1.0], BATCHED: [1.0, 1.0, 1.0]}, DEFAULT, "Nothing need be set: the default"),
        # as good with fewer options
        ({DEFAULT: [2.0], BATCHED: [1.0], FIVE: [1.02]}, DEFAULT, "Add: --model.chunk_size 5 (1.96 times as fast as"),
        ({DEFAULT: [1.0], FIVE: [3.0]}, FIVE, "Add: --model.chunk_size null (3.00 times as fast as what is set"),
        ({DEFAULT: [1.0], FIVE: [1.0]}, FIVE, "Nothing need be set: what is set is within 5 %"),
        ({}, DEFAULT, "No choice is possible."),
    ],
)
def test_advice(seconds, current, expected):
    trials = {choice: Trial(times) for choice, times in seconds.items()}
    assert tune.advice({**trials, Choice("sequential"): Trial(reason="no")}, current).startswith(expected)


@pytest.mark.skipif(platform.system() != "Linux", reason="only Linux tells")
def test_the_peak_of_memory_starts_again():
    cpu = torch.device("cpu")
    block = torch.ones(50_000_000)  # 200 MB
    before = peak_mebibytes()
    del block
    if not forget_peak(cpu):
        pytest.skip("this system does not let a process start it again")
    assert peak_mebibytes() < before - 100
