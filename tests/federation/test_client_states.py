import numpy as np
import pytest
import torch

from pfl_lightning.federation import client_states
from pfl_lightning.federation.client_states import ClientStates


def filled():
    shapes = {"fc.weight": (2, 3), "scale": (), "cloud.fc.weight": (2, 3)}
    clients = ClientStates({name: torch.zeros(5, *shape) for name, shape in shapes.items()})
    torch.manual_seed(0)
    for name in clients.names:
        clients.stack(name).copy_(torch.randn_like(clients.stack(name)))
    return clients


def test_mixing_is_a_product_on_the_client_axis(monkeypatch):
    monkeypatch.setattr(client_states, "CPU_BLOCK_BYTES", 5 * 4 * 2)  # two columns of five floats
    clients, matrix = filled(), torch.rand(5, 5)
    before = {name: clients.stack(name).clone() for name in clients.names}
    clients.mix(matrix, ["fc.weight", "scale"])
    torch.testing.assert_close(clients.stack("fc.weight"), torch.einsum("rs,sij->rij", matrix, before["fc.weight"]))
    torch.testing.assert_close(clients.stack("scale"), matrix @ before["scale"])
    assert torch.equal(clients.stack("cloud.fc.weight"), before["cloud.fc.weight"])


def test_a_mix_can_go_into_other_tensors():
    clients, matrix = filled(), torch.rand(5, 5)
    before = clients.stack("fc.weight").clone()
    clients.mix(matrix, ["fc.weight"], into="cloud")
    assert torch.equal(clients.stack("fc.weight"), before)
    torch.testing.assert_close(clients.stack("cloud.fc.weight"), torch.einsum("rs,sij->rij", matrix, before))


def test_a_ring_of_five_smooths_its_numbers():
    # thirds of oneself and both neighbours: (5 + 1 + 2) / 3, 2, 3, 4, (4 + 5 + 1) / 3
    clients, eye = ClientStates({"x": torch.zeros(5)}), torch.eye(5)
    clients.stack("x").copy_(torch.tensor([1.0, 2, 3, 4, 5]))
    clients.mix((eye + eye.roll(1, 0) + eye.roll(-1, 0)) / 3, ["x"])
    torch.testing.assert_close(clients.stack("x"), torch.tensor([8 / 3, 2, 3, 4, 10 / 3]))
    assert clients.mean(["x"])["x"].item() == 3


def test_the_mean_is_over_all_clients():
    clients = filled()
    torch.testing.assert_close(clients.mean(["fc.weight"])["fc.weight"], clients.stack("fc.weight").mean(0))


@pytest.mark.parametrize("ids", [None, [3, 0, 1]])
def test_the_spread_is_the_mean_squared_distance_to_the_mean(ids, monkeypatch):
    monkeypatch.setattr(client_states, "CPU_BLOCK_BYTES", 5 * 4 * 2)  # two columns of five floats
    clients, rows = filled(), slice(None) if ids is None else ids
    models = torch.cat([clients.stack(name).reshape(5, -1) for name in ("fc.weight", "scale")], dim=1)[rows]
    expected = np.mean([torch.dist(model, models.mean(0)).item() ** 2 for model in models])
    found = clients.spread(["fc.weight", "scale"], None if ids is None else torch.tensor(ids))
    assert found.item() == pytest.approx(expected, rel=1e-6)
    assert found.dtype == torch.float64
    with torch.no_grad():
        clients.stack("fc.weight")[rows] = 3.0
    assert clients.spread(["fc.weight"], None if ids is None else torch.tensor(ids)) == 0


def test_the_mean_can_be_over_some_clients(monkeypatch):
    monkeypatch.setattr(client_states, "CPU_BLOCK_BYTES", 5 * 4 * 2)
    clients, ids = filled(), torch.tensor([4, 1])
    for name, mean in clients.mean(clients.names, ids).items():
        torch.testing.assert_close(mean, (clients.stack(name)[4] + clients.stack(name)[1]) / 2)


def test_mixed_precision_does_not_apply_to_mixes():
    clients, matrix = filled(), torch.rand(5, 5)
    before = clients.stack("fc.weight").clone()
    with torch.autocast("cpu", torch.bfloat16):
        clients.mix(matrix, ["fc.weight"])
    torch.testing.assert_close(clients.stack("fc.weight"), torch.einsum("rs,sij->rij", matrix, before))


def test_inner_products_are_those_of_all_entries_in_float64(monkeypatch):
    monkeypatch.setattr(client_states, "CPU_BLOCK_BYTES", 5 * 4 * 4)  # four columns of five floats, and a rest of two
    clients = filled()
    clients.stack("fc.weight").add_(1e4)  # squares of which float32 would lose the last digits
    rows = torch.cat([clients.stack(name).reshape(5, -1) for name in ("fc.weight", "scale")], dim=1).double()
    torch.testing.assert_close(clients.inner_products(["fc.weight", "scale"]), rows @ rows.T, atol=0, rtol=1e-14)


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


def held(rows, masks):
    clients = ClientStates({"w": torch.zeros(len(rows), 4), "mask.w": torch.zeros(len(rows), 4, dtype=torch.bool)})
    for name, values in (("w", rows), ("mask.w", masks)):
        clients.stack(name).copy_(torch.tensor(values))
    return clients


@pytest.mark.parametrize("width", [1, 3, 4])
def test_entries_are_mixed_among_those_that_hold_them(width, monkeypatch):
    monkeypatch.setattr(client_states, "CPU_BLOCK_BYTES", 3 * 4 * width)
    clients = held([[1, 2, 0, 0], [3, 0, 5, 0], [5, 4, 0, 0]], [[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]])
    clients.mix_held(torch.full((3, 3), 1 / 3), ["w"], "mask")
    # (1 + 3 + 5) / 3, (2 + 4) / 2, 5 and 0, and of these what a client holds
    torch.testing.assert_close(clients.stack("w"), torch.tensor([[3.0, 3, 0, 0], [3.0, 0, 5, 0], [3.0, 3, 0, 0]]))
    mean = clients.mean_held(["w"], "mask")["w"]
    torch.testing.assert_close(mean, torch.tensor([3.0, 3, 5, 0]))


def test_weights_of_those_that_do_not_hold_an_entry_go_to_the_others():
    clients = held([[8, 1, 1, 0], [0, 7, 0, 0], [2, 0, 1, 6]], [[1, 1, 1, 0], [0, 1, 0, 1], [1, 0, 1, 1]])
    matrix = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.0, 0.5], [0.25, 0.5, 0.25]])
    clients.mix_held(matrix, ["w"], "mask")
    # (0.5 * 8 + 0.25 * 2) / 0.75, (0.5 * 1 + 0.25 * 7) / 0.75; client 1 gives itself no weight
    expected = torch.tensor([[6.0, 3, 1, 0], [0.0, 1, 0, 6], [5.0, 0, 1, 2]])
    torch.testing.assert_close(clients.stack("w"), expected)


def test_an_entry_that_only_its_owner_holds_is_0_if_the_owner_has_no_weight():
    clients = held([[4, 0, 0, 0], [0, 3, 0, 0]], [[1, 0, 0, 0], [0, 1, 0, 0]])
    clients.mix_held(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), ["w"], "mask")
    assert not clients.stack("w").any()


def test_clients_that_are_away_neither_mix_nor_count():
    clients = held([[4, 0, 0, 0], [2, 2, 0, 0], [6, 8, 0, 0]], [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]])
    ids = torch.tensor([0, 2])
    assert clients.mean_held(["w"], "mask", ids)["w"].tolist() == [5, 8, 0, 0]
    clients.mix_held(torch.full((2, 2), 0.5), ["w"], "mask", ids)
    assert clients.stack("w").tolist() == [[5, 0, 0, 0], [2, 2, 0, 0], [5, 8, 0, 0]]
