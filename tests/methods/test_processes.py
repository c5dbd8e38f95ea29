"""Runs over several processes, which must give what one process gives; most of them are in the contract of a method."""

import csv

import pytest
import torch
from fakes.process import main, run_together
from methods.test_contract import FIRST

from pfl_lightning.federation import client_states
from pfl_lightning.methods import Method
from pfl_lightning.system import Asynchronous

pytestmark = pytest.mark.slow
QUICK = ("DeltaFL over secure sums", "DPSGD on random graphs", "FedRep", "FedProto with two networks")
SUMS = ("FedAvg over secure sums", "FedRep over private sums", "FedYogi", "LGFedAvg with two networks")
# the rounds of other methods are sums of what clients upload, which those in SUMS show
HOOKS = ("build", "select_clients", "server_update")
OWN = [name for kind, name in FIRST.items() if any(getattr(kind, hook) is not getattr(Method, hook) for hook in HOOKS)]
EVERY = sorted({*OWN, *SUMS, *QUICK, "Ditto", "FedAvgM"})
EXACT, USUAL = torch.float64, torch.float32
TOLERANCE = {EXACT: 1e-12, USUAL: 1e-6}  # of what the last round has changed; in float32 also of the number


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """What ``main`` sets in this process is set back."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(client_states, "DEVICE_BLOCK_BYTES", client_states.DEVICE_BLOCK_BYTES)


def content(folder, name, file="last.ckpt"):
    return torch.load(folder / name / "checkpoints" / file, weights_only=True)


def numbers(checkpoint):
    """All tensors of a checkpoint; packed ones as they are packed."""
    state = checkpoint["state_dict"]
    parts = {name: entry[:2] if isinstance(entry, tuple) else (entry,) for name, entry in state.items()}
    return {(name, place): part for name, own in parts.items() for place, part in enumerate(own)}


def movement(before, after):
    """The largest change of a number; of tensors without their zeros, those of as many numbers."""
    pairs = [(tensor, after[key]) for key, tensor in before.items() if tensor.is_floating_point()]
    return max(float((new - old).abs().max()) for old, new in pairs if old.shape == new.shape and old.numel())


def table(folder, name, file):
    with (folder / name / file).open() as lines:
        return [[float(cell or "nan") for cell in row] for row in list(csv.reader(lines))[1:]]


def assert_equal_runs(one, other, name, dtype):
    straight, shared = (content(folder, name) for folder in (one, other))
    assert straight["accounting"] == shared["accounting"], name
    expected, found, exact = numbers(straight), numbers(shared), dtype == EXACT
    assert expected.keys() == found.keys()
    atol = TOLERANCE[dtype] * movement(numbers(content(one, name, "previous.ckpt")), expected)
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, atol=atol, rtol=0 if exact else TOLERANCE[dtype])
    assert (one / name / "clients.csv").read_text() == (other / name / "clients.csv").read_text() or not exact
    for cells, row in zip(table(one, name, "metrics.csv"), table(other, name, "metrics.csv"), strict=True):
        assert row == pytest.approx(cells, rel=1e-9 if exact else 1e-4, nan_ok=True), name


@pytest.mark.parametrize(
    ("count", "clients", "dtype", "names"),
    [
        *[(2, 6, EXACT, EVERY[part::3]) for part in range(3)],
        (2, 6, USUAL, QUICK),
        (3, 7, EXACT, QUICK),
        (3, 2, EXACT, ("DPSGD on random graphs", "DisPFL", "Ditto", "FedRep")),
    ],
    ids=[*(f"every rule {part}" for part in range(3)), "float32", "three", "fewer clients than processes"],
)
def test_several_processes_give_what_one_gives(count, clients, dtype, names, tmp_path):
    main(tmp_path / "one", 2, clients, dtype, None, [*names])
    run_together(count, tmp_path / "several", 2, clients, dtype, None, [*names])
    for name in names:
        assert_equal_runs(tmp_path / "one", tmp_path / "several", name, dtype)


@pytest.mark.parametrize("buffer", [1, 3])
def test_several_processes_take_the_uploads_that_one_takes(buffer, tmp_path):
    arguments = 5, 6, EXACT, None, ["FedRep", "Ditto"], Asynchronous(5, buffer, dropout=0.1)
    main(tmp_path / "one", *arguments)
    run_together(2, tmp_path / "several", *arguments)
    for name in arguments[4]:
        assert_equal_runs(tmp_path / "one", tmp_path / "several", name, EXACT)


def test_a_run_continues_on_another_number_of_processes(tmp_path):
    main(tmp_path / "straight", 4, 6, EXACT, None, QUICK)
    main(tmp_path / "resumed", 2, 6, EXACT, None, QUICK)
    for rounds, count in enumerate((3, 2), start=3):
        run_together(count, tmp_path / "resumed", rounds, 6, EXACT, tmp_path / "resumed", QUICK)
    for name in QUICK:
        assert_equal_runs(tmp_path / "straight", tmp_path / "resumed", name, EXACT)
