"""Rows of clients: mixed, averaged, saved, and the same whether they take their memory at once or one by one."""

import resource
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes.methods import distance

from pfl_lightning import load_method
from pfl_lightning.client import LocalTraining
from pfl_lightning.federation import client_states
from pfl_lightning.federation.client_states import ClientStates, Shard
from pfl_lightning.methods import Ditto, FedRep, FedRoD
from pfl_lightning.models import MLP
from pfl_lightning.system import Participation

STATE = Path("/proc/self/statm")
START = torch.tensor([7.0, 8.0, 9.0])

# Mixing, over all clients and over some


def filled():
    shapes = {"fc.weight": (2, 3), "scale": (), "cloud.fc.weight": (2, 3)}
    clients = ClientStates({name: torch.zeros(5, *shape) for name, shape in shapes.items()})
    torch.manual_seed(0)
    for name in clients.names:
        clients.stack(name).copy_(torch.randn_like(clients.stack(name)))
    return clients


def chosen(ids):
    return None if ids is None else torch.tensor(ids)


def in_a_row(clients, ids):
    """All entries of some clients, or of all, ``[clients, entries]``."""
    stacks = [clients.stack(name).reshape(5, -1) for name in ("fc.weight", "scale")]
    return torch.cat(stacks, dim=1)[ids or range(5)]


@pytest.fixture
def two_columns(monkeypatch):
    """Blocks of two columns of five floats."""
    monkeypatch.setattr(client_states, "CPU_BLOCK_BYTES", 5 * 4 * 2)


@pytest.mark.parametrize("mixed_precision", [False, True])
@pytest.mark.parametrize(
    ("names", "into", "ids"),
    [(["fc.weight", "scale"], "", None), (["fc.weight"], "cloud", None), (["fc.weight", "scale"], "", [3, 1])],
)
def test_mixing_is_a_product_on_the_client_axis(names, into, ids, mixed_precision, two_columns):
    clients = filled()
    chosen_rows = ids or list(range(5))
    matrix = torch.rand(len(chosen_rows), len(chosen_rows))
    before = {name: clients.stack(name).clone() for name in clients.names}
    mixed = {f"{into}.{name}".lstrip("."): before[name].clone() for name in names}
    for stack, name in zip(mixed.values(), names, strict=True):
        stack[chosen_rows] = torch.einsum("rs,s...->r...", matrix, before[name][chosen_rows])
    with torch.autocast("cpu", torch.bfloat16, mixed_precision):  # it does not apply to mixes
        clients.mix(matrix, names, into, chosen(ids))
    for name, stack in mixed.items():
        torch.testing.assert_close(clients.stack(name), stack)
    assert all(torch.equal(clients.stack(name), before[name]) for name in before.keys() - mixed.keys())


@pytest.mark.parametrize("ids", [None, [3, 0, 1]])
def test_the_spread_is_the_mean_squared_distance_to_the_mean(ids, two_columns):
    clients = filled()
    models = in_a_row(clients, ids)
    expected = np.mean([torch.dist(model, models.mean(0)).item() ** 2 for model in models])
    found = clients.spread(["fc.weight", "scale"], chosen(ids))
    assert found.item() == pytest.approx(expected, rel=1e-6)
    assert found.dtype == torch.float64
    clients.stack("fc.weight")[ids or range(5)] = 3.0
    assert clients.spread(["fc.weight"], chosen(ids)) == 0


@pytest.mark.parametrize("ids", [None, [4, 1]])
def test_the_mean_is_over_all_clients_or_over_some(ids, two_columns):
    clients = filled()
    expected = {name: clients.stack(name)[ids or range(5)].mean(0) for name in clients.names}
    assert distance(expected, clients.mean(clients.names, chosen(ids))) < 1e-6


@pytest.mark.parametrize("ids", [None, [1, 3, 4]])
def test_inner_products_are_those_of_all_entries_in_float64(ids, monkeypatch):
    monkeypatch.setattr(client_states, "CPU_BLOCK_BYTES", 5 * 4 * 4)  # four columns of five floats, and a rest of two
    clients = filled()
    clients.stack("fc.weight").add_(1e4)  # squares of which float32 would lose the last digits
    rows = in_a_row(clients, ids).double()
    found = clients.inner_products(["fc.weight", "scale"], chosen(ids))
    torch.testing.assert_close(found, rows @ rows.T, atol=0, rtol=1e-14)


def test_some_clients_can_mix_among_themselves():
    clients, ids = filled(), torch.tensor([3, 1])
    before = clients.stack("fc.weight").clone()
    clients.mix(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), ["fc.weight"], ids=ids)
    after = clients.stack("fc.weight")
    torch.testing.assert_close(after[3], (before[3] + before[1]) / 2)
    assert torch.equal(after[[0, 1, 2, 4]], before[[0, 1, 2, 4]])


def test_counters_are_not_mixed_and_have_a_mean_in_floats():
    clients = ClientStates({"steps": torch.tensor([4, 7])})
    clients.mix(torch.full((2, 2), 0.5), ["steps"])
    assert clients.stack("steps").tolist() == [4, 7]
    assert clients.mean(["steps"])["steps"].item() == 5.5


def test_rows_are_stored_one_behind_another():
    stack = ClientStates({"w": torch.ones(3).expand(4, 3)}).stack("w")
    stack[0] = 0
    assert stack.sum() == 9


THIRDS, HALVES = [[1 / 3] * 3] * 3, [[0.5] * 2] * 2


@pytest.mark.parametrize("width", [1, 3, 4])
@pytest.mark.parametrize(
    ("matrix", "ids", "before", "after"),
    [
        # (1 + 3 + 5) / 3, (2 + 4) / 2, 5 and 0, and of these what a client holds
        (THIRDS, None, [[1, 2, 0, 0], [3, 0, 5, 0], [5, 4, 0, 0]], [[3, 3, 0, 0], [3, 0, 5, 0], [3, 3, 0, 0]]),
        # the weights of those that do not hold an entry go to the others: (.5 * 8 + .25 * 2) / .75 and so on
        (
            [[0.5, 0.25, 0.25], [0.5, 0.0, 0.5], [0.25, 0.5, 0.25]],
            None,
            [[8, 1, 1, 0], [0, 7, 0, 4], [2, 0, 1, 6]],
            [[6, 3, 1, 0], [0, 1, 0, 6], [5, 0, 1, 4 + 2 / 3]],
        ),
        # entries that only their owners hold, who have no weight
        ([[0.0, 1.0], [1.0, 0.0]], None, [[4, 0, 0, 0], [0, 3, 0, 0]], [[0, 0, 0, 0], [0, 0, 0, 0]]),
        # one is away
        (HALVES, [0, 2], [[4, 0, 0, 0], [2, 2, 0, 0], [6, 8, 0, 0]], [[5, 0, 0, 0], [2, 2, 0, 0], [5, 8, 0, 0]]),
    ],
)
def test_entries_are_mixed_among_those_that_hold_them(matrix, ids, before, after, width, monkeypatch):
    monkeypatch.setattr(client_states, "CPU_BLOCK_BYTES", 3 * 4 * width)
    rows = torch.tensor(before, dtype=torch.float32)
    clients = ClientStates({"w": rows, "mask.w": rows != 0})
    clients.mix(torch.tensor(matrix), ["w"], ids=chosen(ids), masks="mask")
    torch.testing.assert_close(clients.stack("w"), torch.tensor(after, dtype=torch.float32))


# Rows that take their memory one by one


@pytest.fixture
def unset(monkeypatch):
    """All rows, however few, take their memory one by one; what is not written is nan, to be found out."""
    monkeypatch.setattr(client_states, "LARGEST_AT_ONCE", 0)

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


def test_filled_rows_are_those_that_were_read_and_those_that_changed_are_known(unset):
    clients, ids = six_rows(), torch.arange(6)
    clients.write({"w": torch.eye(3)[:2], "b": torch.zeros(2)}, torch.tensor([5, 2]))
    known, changed = clients.changed_rows()
    assert known.tolist() == [2, 5]
    assert changed["w"].tolist() == [[0, 1, 0], [1, 0, 0]]
    before = {name: clients.read(name, ids) for name in clients.own}
    assert distance(before, clients.fill()) == 0
    assert clients.changed is None
    assert distance(before, {name: clients.read(name, ids) for name in clients.own}) == 0


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


# Checkpoints


def saved(clients):
    checkpoint = {"state_dict": {}, "shape": {"num_clients": 6}}
    clients.save(checkpoint)
    return checkpoint


def with_two_changed_rows():
    clients = ClientStates({"w": START.expand(6, 3)})
    clients.scatter(torch.tensor([5, 2]), {"w": torch.eye(3)[:2]})
    return clients


def test_a_checkpoint_has_the_rows_that_have_changed(unset):
    checkpoint = saved(with_two_changed_rows())
    assert checkpoint["state_dict"]["clients.w"].tolist() == [[0, 1, 0], [1, 0, 0]]
    assert checkpoint["clients"]["ids"].tolist() == [2, 5]
    assert torch.equal(checkpoint["clients"]["start"]["w"], START)


@pytest.mark.parametrize("limits", [(0, 0), (0, 1 << 30), (1 << 30, 0)], ids=["growing", "to whole", "from whole"])
def test_a_checkpoint_is_read_with_growing_rows_and_without(limits, monkeypatch):
    monkeypatch.setattr(client_states, "LARGEST_AT_ONCE", limits[0])
    clients = with_two_changed_rows()
    monkeypatch.setattr(client_states, "LARGEST_AT_ONCE", limits[1])
    other = ClientStates({"w": torch.zeros(3).expand(6, 3)})
    checkpoint = saved(clients)
    other.load(checkpoint)
    assert not checkpoint["state_dict"]
    assert torch.equal(other.gather(torch.arange(6))["w"], clients.gather(torch.arange(6))["w"])
    other.scatter(torch.tensor([0]), {"w": torch.zeros(1, 3)})
    assert torch.equal(other.stack("w")[1:], clients.stack("w")[1:])


@pytest.mark.parametrize(
    ("rows", "ids", "line"),
    [
        (torch.zeros(2, 3), [5, 6], "clients.ids are not those of 6 clients"),
        (torch.zeros(2, 3), [2, 2], "clients.ids are not those of 6 clients"),
        (torch.zeros(2, 4), [5, 2], r"clients.w has torch.float32 \(2, 4\) instead of torch.float32 \(2, 3\)"),
        (torch.zeros(1, 3), [5, 2], "clients.w has"),
    ],
)
def test_rows_of_other_clients_or_shapes_are_not_loaded(rows, ids, line):
    checkpoint = {"state_dict": {"clients.w": rows}, "clients": {"ids": torch.tensor(ids), "start": {"w": START}}}
    with pytest.raises(ValueError, match=line):
        ClientStates({"w": START.expand(6, 3)}).load(checkpoint)


# Runs


def make(kind=FedRep, **options):
    return kind(network=partial(MLP, hidden=(8, 5)), local=LocalTraining(batch_size=4), **options)


@pytest.fixture
def run(ragged_data, fit, tmp_path, monkeypatch):
    """Trains a method with growing or whole rows, and returns it and its trainer."""

    def train(method, grows, rounds, folder, resumed=False):
        monkeypatch.setattr(client_states, "LARGEST_AT_ONCE", 0 if grows else 1 << 30)
        path = tmp_path / folder / "checkpoints/last.ckpt" if resumed else None
        data = ragged_data(participation=Participation(pool_size=2))
        return method, fit(method, data, rounds, folder, path)

    return train


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "double"), [(FedRep, True), (FedRoD, False), (Ditto, False)])
def test_a_run_with_growing_rows_is_that_with_whole_ones_bit_for_bit(kind, double, run, tmp_path):
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    whole, trainer = run(make(kind), False, 2, "whole")
    growing, other = run(make(kind), True, 2, "growing")
    assert growing.clients.shard.changed is not None
    assert trainer.callback_metrics == other.callback_metrics
    loaded = load_method(tmp_path / "growing/checkpoints/last.ckpt", network=partial(MLP, hidden=(8, 5)))
    assert loaded.clients.shard.changed is not None
    for client in range(6):
        assert distance(growing.client(client), loaded.client(client)) == 0, client
    for method in (growing, loaded):
        method.clients.shard.fill()
        assert distance(whole, method) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_a_run_can_resume_with_other_rows(first, second, run):
    straight, trainer = run(make(), False, 2, "straight")
    run(make(), first, 1, "resumed")
    resumed, other = run(make(), second, 2, "resumed", resumed=True)
    assert trainer.callback_metrics == other.callback_metrics
    resumed.clients.shard.fill()
    assert distance(straight, resumed) == 0
