"""Shard that take their memory one by one must hold, train, save and load what rows of one block do."""

import resource
from functools import partial
from pathlib import Path

import pytest
import torch

from pfl_lightning import load_method
from pfl_lightning.federation import client_states
from pfl_lightning.federation.client_states import ClientStates, Shard
from pfl_lightning.methods import Ditto, FedRep, FedRoD
from pfl_lightning.models import MLP
from pfl_lightning.system import Participation

STATE = Path("/proc/self/statm")
START = torch.tensor([7.0, 8.0, 9.0])


@pytest.fixture
def growing(monkeypatch):
    """Have all rows, however few, take their memory one by one."""
    monkeypatch.setattr(client_states, "LARGEST_AT_ONCE", 0)


@pytest.fixture
def unset(monkeypatch, growing):
    """The same in memory where all that is not written is nan, so that whoever reads it finds out."""

    def new_empty(self, shape, **_):
        return torch.full(shape, torch.nan, dtype=self.dtype)

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)


def six_rows():
    return Shard({"w": START.expand(6, 3), "b": torch.ones(()).expand(6)})


def test_rows_that_have_not_changed_read_as_the_start(unset):
    clients, ids = six_rows(), torch.tensor([4, 0])
    assert torch.equal(clients.read("w", ids), START.expand(2, 3))
    clients.write({"w": torch.zeros(1, 3), "b": torch.zeros(1)}, torch.tensor([4]))
    assert clients.changed.tolist() == [False, False, False, False, True, False]
    assert clients.read("w", ids).tolist() == [[0, 0, 0], [7, 8, 9]]
    assert clients.read("b", torch.arange(6)).tolist() == [1, 1, 1, 1, 0, 1]


def test_what_is_read_is_a_copy(unset):
    clients, ids = six_rows(), torch.tensor([1])
    for _ in range(2):
        clients.read("w", ids).zero_()
        assert torch.equal(clients.read("w", ids), START[None])
        clients.write({"w": START[None], "b": torch.ones(1)}, ids)


def test_filled_rows_are_those_that_were_read(unset):
    clients, ids = six_rows(), torch.arange(6)
    clients.write({"w": torch.eye(3)[:2], "b": torch.zeros(2)}, torch.tensor([5, 2]))
    before = {name: clients.read(name, ids) for name in clients.names}
    assert all(torch.equal(clients.fill()[name], stack) for name, stack in before.items())
    assert clients.changed is None
    assert all(torch.equal(clients.read(name, ids), stack) for name, stack in before.items())


def test_only_rows_that_have_changed_are_kept_apart(unset):
    clients = six_rows()
    clients.write({"w": torch.eye(3)[:2], "b": torch.zeros(2)}, torch.tensor([5, 2]))
    ids, changed = clients.changed_rows()
    assert ids.tolist() == [2, 5]
    assert changed["w"].tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("begun", [False, True])
def test_rows_can_change_their_type_at_any_time(begun, unset):
    clients, ids = six_rows(), torch.arange(6)
    if begun:
        clients.write({"w": START.flip(0)[None], "b": torch.zeros(1)}, torch.tensor([3]))
    before = clients.read("w", ids)
    clients.apply(torch.Tensor.double)
    assert torch.equal(clients.read("w", ids), before.double())
    clients.write({"w": torch.zeros(1, 3).double(), "b": torch.zeros(1).double()}, torch.tensor([0]))
    assert torch.equal(clients.read("w", ids)[1:], before[1:].double())


def test_a_process_has_the_rows_of_its_clients(unset, monkeypatch):
    monkeypatch.setattr(client_states.processes, "count", lambda: 3)
    monkeypatch.setattr(client_states.processes, "rank", lambda: 1)
    clients = Shard({"w": START.expand(8, 3)})  # of which it has 1, 4 and 7
    clients.write({"w": torch.eye(3)[:2]}, torch.tensor([7, 1]))
    assert clients.read("w", torch.tensor([1, 4, 7])).tolist() == [[0, 1, 0], START.tolist(), [1, 0, 0]]
    ids, changed = clients.changed_rows()
    assert ids.tolist() == [1, 7]
    assert changed["w"].tolist() == [[0, 1, 0], [1, 0, 0]]
    assert clients.fill()["w"].tolist() == [[0, 1, 0], START.tolist(), [1, 0, 0]]


def test_rows_that_differ_from_the_start_on_take_their_memory_at_once(unset):
    clients = Shard({"w": torch.eye(3)})
    clients.begin()
    assert clients.changed is None
    assert torch.equal(clients.own["w"], torch.eye(3))


@pytest.mark.skipif(not STATE.exists(), reason="only Linux tells the memory of a process in this way")
def test_a_million_rows_take_the_memory_of_those_that_change():
    clients = Shard({"w": torch.ones(500).expand(1_000_000, 500)})  # 2 GB
    before = resident()
    ids = torch.arange(0, 1_000_000, 10_007)
    clients.write({"w": torch.zeros(len(ids), 500)}, ids)
    assert clients.read("w", torch.arange(10_006, 10_009)).sum(1).tolist() == [500, 0, 500]
    assert resident() - before < 100e6


def resident():
    """Bytes of memory that this process has."""
    return int(STATE.read_text().split()[1]) * resource.getpagesize()


# A bank in a checkpoint


def saved(clients):
    checkpoint = {"state_dict": {}, "shape": {"num_clients": 6}}
    clients.save(checkpoint)
    return checkpoint


def test_a_checkpoint_has_the_rows_that_have_changed(unset):
    clients = ClientStates({"w": START.expand(6, 3)})
    clients.scatter(torch.tensor([5, 2]), {"w": torch.eye(3)[:2]})
    checkpoint = saved(clients)
    assert checkpoint["state_dict"]["clients.w"].tolist() == [[0, 1, 0], [1, 0, 0]]
    assert checkpoint["clients"]["ids"].tolist() == [2, 5]
    assert torch.equal(checkpoint["clients"]["start"]["w"], START)


@pytest.mark.parametrize("limits", [(0, 0), (0, 1 << 30), (1 << 30, 0)], ids=["growing", "to whole", "from whole"])
def test_a_checkpoint_is_read_with_growing_rows_and_without(limits, monkeypatch):
    monkeypatch.setattr(client_states, "LARGEST_AT_ONCE", limits[0])
    clients = ClientStates({"w": START.expand(6, 3)})
    clients.scatter(torch.tensor([5, 2]), {"w": torch.eye(3)[:2]})
    monkeypatch.setattr(client_states, "LARGEST_AT_ONCE", limits[1])
    other = ClientStates({"w": torch.zeros(3).expand(6, 3)})
    checkpoint = saved(clients)
    other.load(checkpoint)
    assert not checkpoint["state_dict"]
    assert torch.equal(other.gather(torch.arange(6))["w"], clients.gather(torch.arange(6))["w"])
    other.scatter(torch.tensor([0]), {"w": torch.zeros(1, 3)})
    assert torch.equal(other.stack("w")[1:], clients.stack("w")[1:])


# A run


def make(kind=FedRep, **options):
    return kind(network=partial(MLP, hidden=(8, 5)), batch_size=4, **options)


def stacks(method):
    return {name: method.clients.stack(name).clone() for name in method.clients.names}


def alike(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def run(ragged_data, fit, tmp_path, monkeypatch):
    """Trains a method with growing or whole rows, and returns it and its trainer."""

    def train(method, grows, rounds, folder, resumed=False):
        monkeypatch.setattr(client_states, "LARGEST_AT_ONCE", 0 if grows else 1 << 30)
        path = tmp_path / folder / "checkpoints/last.ckpt" if resumed else None
        data = ragged_data(participation=Participation(pool_size=2))
        return method, fit(method, data, rounds, folder, path)

    return train


@pytest.mark.parametrize("kind", [FedRep, FedRoD, Ditto])
@pytest.mark.parametrize("double", [False, True])
def test_a_run_with_growing_rows_is_that_with_whole_ones_bit_for_bit(kind, double, run):
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    whole, trainer = run(make(kind), False, 4, "whole")
    growing, other = run(make(kind), True, 4, "growing")
    assert growing.clients.shard.changed is not None
    assert trainer.callback_metrics == other.callback_metrics
    assert alike(stacks(whole), stacks(growing))
    assert alike(whole.network.state_dict(), growing.network.state_dict())


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_a_run_can_resume_with_other_rows(first, second, run):
    straight, trainer = run(make(), False, 4, "straight")
    run(make(), first, 2, "resumed")
    resumed, other = run(make(), second, 4, "resumed", resumed=True)
    assert trainer.callback_metrics == other.callback_metrics
    assert alike(stacks(straight), stacks(resumed))


def test_a_checkpoint_of_a_run_has_no_rows_of_clients_that_were_not_there(run, tmp_path):
    run(make(), True, 1, "run")
    checkpoint = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    assert len(checkpoint["clients"]["ids"]) == 2
    assert len(checkpoint["state_dict"]["clients.fc3.weight"]) == 2


@pytest.mark.parametrize("double", [False, True])
def test_load_method_gives_each_client_its_own_model(double, run, tmp_path):
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    method, _ = run(make(), True, 2, "run")
    loaded = load_method(tmp_path / "run/checkpoints/last.ckpt", network=partial(MLP, hidden=(8, 5)))
    assert loaded.clients.shard.changed is not None
    for client in range(6):
        one, other = (each.client(client, "stored").state_dict() for each in (method, loaded))
        assert alike(one, other), client
    assert alike(stacks(method), stacks(loaded))
