"""What the benchmark does on a GPU: timing, waits and variants, tried on the CPU and on the meta device."""

import json
import warnings
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from benchmarks import evaluation, loading, timing, training, variants
from benchmarks.device import device_of, name_of
from benchmarks.training import contestants
from benchmarks.variants import VARIANTS
from benchmarks.waits import WARNING, waits
from benchmarks.workloads import WORKLOADS, RandomClients
from fakes.meta_device import listening
from torch import nn

from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP, LeNet5, Network


class Normed(Network):
    def __init__(self, input_shape, num_classes):
        layers = {"conv": nn.Conv2d(input_shape[0], 2, 3, stride=2, padding=1, bias=False), "norm": nn.BatchNorm2d(2)}
        super().__init__({**layers, "relu": nn.ReLU(), "flatten": nn.Flatten(), "fc": nn.Linear(128, num_classes)})


META, CPU = torch.device("meta"), torch.device("cpu")
IMAGES = {"input_shape": (1, 16, 16), "cohort": 3}
RAGGED = (8, 5, 3)
SMALL_LENET = partial(LeNet5, channels=(2, 3), hidden=(6, 5))


def like(name, samples=RAGGED, network=None):
    """A workload of the benchmark on small images."""
    network = network or (partial(MLP, hidden=(8,)) if name.endswith("mlp") else SMALL_LENET)
    epochs = {"head_epochs": 2} if "head_epochs" in WORKLOADS[name].options else {}
    small = replace(WORKLOADS[name], **IMAGES, samples=samples, network=network)
    return small.with_options(batch_size=4, **epochs)


LENET = like("fedrep-lenet", samples=8)
PERCEPTRON = like("fedrep-mlp", samples=8)
NORMED = like("fedrep-lenet", samples=8, network=Normed)


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    monkeypatch.setattr(variants, "COMPILER", "aot_eager")  # the same without minutes of compiling


@pytest.mark.parametrize(
    "workload",
    [
        *map(like, ("fedavg-mlp", "fedrep-mlp", "fedprox-mlp", "ditto-mlp", "pfedme-mlp", "fedrep-lenet")),
        like("fedavg-mlp", samples=8),
        replace(LENET, network=partial(SMALL_LENET, dropout=0.5)),
        NORMED,
    ],
)
def test_a_round_waits_nowhere_for_the_device(workload):
    plain, ours = contestants(workload, ["auto"], META)
    for one in [*ours.values(), *([plain] if workload not in (NORMED,) else [])]:
        waits(one.turn, META)  # in the first round the samples are moved there
        assert waits(one.turn, META) == {}


def test_evaluation_and_the_batches_of_a_round_wait_nowhere():
    ragged = replace(PERCEPTRON, samples=RAGGED)
    _, scores = evaluation.contestants(ragged, ["auto", "sequential"], META)
    batches = loading.OurBatches(ragged, META)
    for action in (*(one.turn for one in scores.values()), lambda: loading.exhaust(batches.batches())):
        waits(action, META)
        assert waits(action, META) == {}


def test_a_round_that_chooses_clients_by_their_losses_waits_where_it_reads_them():
    _, ours = contestants(like("deltafl-mlp", samples=8), ["auto"], META)
    files = {place.rpartition(":")[0] for place in waits(ours["auto"].turn, META)}
    assert "pfl_lightning/methods/delta_fl.py" in files


@pytest.mark.parametrize(
    ("action", "times"),
    [
        (lambda there, here: there.sum().item(), 1),
        (lambda there, here: there.cpu(), 1),
        (lambda there, here: here.copy_(there), 1),
        (lambda there, here: there.copy_(here), 1),
        (lambda there, here: here.to(META), 1),
        (lambda there, here: there.nonzero(), 1),
        (lambda there, here: there[there > 0], 1),
        (lambda there, here: there.index_put_((there > 0,), there.sum()), 1),
        (lambda there, here: torch.equal(there, there), 1),
        (lambda there, here: here.to(META, non_blocking=True), 0),
        (lambda there, here: there.copy_(here, non_blocking=True), 0),
        (lambda there, here: there.where(there > 0, 0)[torch.arange(2, device=META)], 0),
        (lambda there, here: [here.sum().item(), here[here > 0], here.nonzero(), here.double()], 0),
    ],
)
def test_what_would_wait_for_a_gpu_is_noticed(action, times):
    there, here = torch.ones(3, device=META), torch.ones(3)
    found = waits(lambda: action(there, here), META)
    assert sum(found.values()) == times


def test_numbers_that_are_not_there_are_made_up():
    there, found = torch.ones(2, 3, device=META), []
    waits(lambda: found.extend([there.sum().item(), bool(there.any()), there.cpu(), there.nonzero()]), META)
    assert found[:2] == [1.0, True]
    assert torch.equal(found[2], torch.ones(2, 3))
    assert found[3].shape == (6, 2)


def test_on_a_gpu_torch_tells_where_it_waits(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def action():
        for message in (WARNING, WARNING, "something else"):
            training.flat([])
            warnings.warn(message, stacklevel=1)

    assert waits(action, torch.device("cuda")) == Counter({"elsewhere": 2})
    assert modes == ["warn", 0]


def test_seconds_end_when_the_gpu_is_done(monkeypatch):
    order = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: order.append("wait"))
    timing.seconds_of(lambda: order.append("work"), torch.device("cuda"))
    timing.seconds_of(lambda: order.append("work"), CPU)
    assert order == ["wait", "work", "wait", "work"]


def test_the_command_measures_and_counts_on_another_device(bench, monkeypatch, tmp_path, capsys):
    """The meta device stands in for a GPU; it has no numbers that could be compared."""
    monkeypatch.setattr(bench, "device_of", lambda accelerator: {"cpu": CPU, "gpu": META}[accelerator])
    monkeypatch.setitem(WORKLOADS, "fedavg-mlp", like("fedavg-mlp", samples=8))
    monkeypatch.setitem(WORKLOADS, "deltafl-mlp", like("deltafl-mlp", samples=8))
    written = tmp_path / "records.json"
    chosen = "--workloads [fedavg-mlp,deltafl-mlp] --backends auto --variants [vmapped,graphs]"
    with listening(Counter()):  # makes numbers up, so that all work is the same
        bench.run(f"{chosen} --accelerator gpu --repeats 1 --threads 1 --json {written}".split())
    records = json.loads(written.read_text())
    assert [row["backend"] for row in records] == 2 * ["plain", "auto", "vmapped"]
    assert {row["device"] for row in records} == {"meta"}
    assert all(row["waits"] == {} for row in records[:3])
    assert all(row["waits"] for row in records[3:])
    output = capsys.readouterr()
    header, _, _, titles, _, *rows = output.out.splitlines()
    assert header.startswith(f"1 repeats, 1 thread, meta, torch {torch.__version__}.")
    assert titles == "| workload | backend | seconds | ratio | spread | share of peak | peak MiB | waits |"
    assert rows[1].endswith("| 0 |")
    assert any(row.startswith("deltafl-mlp, auto: waits at pfl_lightning/") for row in rows)
    assert "fedavg-mlp: graphs is left out: variants: graphs is not possible" in output.err


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("bf16", LENET),
        ("vmapped", replace(LENET, samples=RAGGED)),
        ("compiled", like("fedavg-mlp", samples=8)),
        *((name, NORMED) for name in ("bf16", "vmapped")),
    ],
)
def test_a_variant_takes_the_same_steps_as_our_round(name, workload):
    torch.set_default_dtype(torch.float64)  # which mixed precision leaves alone
    _, ours = contestants(workload, ["sequential", name])
    for one in ours.values():
        one.turn()
    torch.testing.assert_close(ours[name].state(), ours["sequential"].state(), rtol=0, atol=1e-12)


def test_a_variant_that_does_other_work_is_not_timed(monkeypatch):
    lazy = LENET.with_options(lr=0.01)
    monkeypatch.setitem(training.MAKERS, "lazy", lambda _, data: VARIANTS["vmapped"](lazy, data))
    with pytest.raises(RuntimeError, match="lazy moves"):
        training.check_same_work(LENET, ["lazy"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", VARIANTS)
def test_on_a_gpu_a_variant_does_the_same_work_too(name):
    training.check_same_work(LENET, ["auto", name], torch.device("cuda"))


@pytest.mark.parametrize(
    ("name", "workload", "why"),
    [
        ("vmapped", replace(NORMED, samples=RAGGED), "of one size"),
        ("graphs", LENET, "with --accelerator gpu"),
    ],
)
def test_a_variant_that_is_not_possible_says_why(name, workload, why):
    with pytest.raises(PflError, match=rf"^variants: .* is not possible .*; allowed: .*{why}"):
        VARIANTS[name](workload, RandomClients(workload))


def test_without_a_gpu_one_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert name_of(device_of("cpu")) == "cpu"
    with pytest.raises(PflError, match=r"accelerator: gpu is not possible .*; allowed: cpu"):
        device_of("gpu")
