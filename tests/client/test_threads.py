import threading
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from fakes.cohorts import examples_of
from fakes.torch_sgd import KEY
from torch import nn

from pfl_lightning.client import Engine, Phase, Proximity, engine
from pfl_lightning.errors import PflError
from pfl_lightning.models import LeNet5, Network
from pfl_lightning.threads import map_in_threads
from pfl_lightning.tree import Params


@pytest.fixture
def several_threads():
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def spreads(monkeypatch):
    """The calls of ``map_in_threads`` by engines."""
    calls = []
    monkeypatch.setattr(engine, "map_in_threads", lambda *words: calls.append(words) or map_in_threads(*words))
    return calls


def test_results_are_in_the_order_of_the_items_and_each_thread_has_its_own(several_threads):
    made = []
    results = list(map_in_threads(lambda local, item: (local, item), range(100), lambda: made.append(0) or object(), 3))
    assert [item for _, item in results] == [*range(100)]
    assert len({local for local, _ in results}) == len(made) <= 3
    assert torch.get_num_threads() == 3


def test_as_many_items_as_threads_are_at_work_together_each_with_one_thread_of_torch(several_threads):
    together = threading.Barrier(3)

    def work(local, item):
        together.wait(10)
        return torch.get_num_threads()

    assert [*map_in_threads(work, range(3), object, 3)] == [1, 1, 1]


def test_an_error_is_raised(several_threads):
    with pytest.raises(ZeroDivisionError):
        list(map_in_threads(lambda local, item: local // item, [1, 0, 2], lambda: 1, 3))


def test_after_an_error_nothing_is_still_at_work(several_threads):
    begun, ended = [], []
    both = threading.Barrier(2)

    def work(local, item):
        begun.append(item)
        if item < 2:
            both.wait(10)
        if item == 0:
            raise PflError("of the first")
        time.sleep(0.1)
        ended.append(item)

    with pytest.raises(PflError, match="of the first"):
        list(map_in_threads(work, range(50), object, 2))
    assert sorted(ended) == sorted(begun)[1:]
    assert 1 in ended
    assert len(begun) < 10


def lenet(**options) -> LeNet5:
    return LeNet5((1, 16, 16), 3, channels=(3, 4), hidden=(8, 5), **options)


def with_layers(**layers: nn.Module) -> Network:
    return Network({"flatten": nn.Flatten(), "fc1": nn.Linear(256, 5), **layers, "fc2": nn.Linear(5, 3)})


PHASE = Phase(frozenset({"all"}), epochs=3, batch_size=4, lr=0.1, momentum=0.5)
DRAWN = {"feature_loss": lambda outputs, features, targets, extras: outputs.square().mean(1)}


@pytest.mark.parametrize(
    ("make", "rules", "is_spread"),
    [
        (lenet, {"penalty": Proximity(0.1, "anchor")}, True),
        (lenet, {"clip_norm": 0.5, "gradient_transform": lambda w, g, gradient, extras: gradient(w)}, True),
        (lambda: with_layers(norm=nn.BatchNorm1d(5)), {}, True),
        (partial(lenet, dropout=0.3), {}, True),
        (
            lambda: with_layers(
                inner=nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(0.3, inplace=True)), all=nn.Dropout(1)
            ),
            {},
            True,
        ),
        # torch's stream of random numbers; a loss that may use modules of others
        (lambda: with_layers(dropout=nn.AlphaDropout(0.5)), {}, False),
        (lenet, DRAWN, False),
    ],
    ids=["penalty", "gradient", "BatchNorm", "dropout", "dropout in a block", "other dropout", "features"],
)
def test_clients_train_in_threads_and_the_numbers_are_those_of_one_thread(make, rules, is_spread, spreads):
    network, examples, visits = make(), examples_of(counts=(11, 7, 7, 3, 2)), []
    tensors = {name: tensor.detach() for name, tensor in network.state_dict().items()}
    params = Params({**tensors, **{f"anchor.{name}": tensor + 0.1 for name, tensor in tensors.items()}}, {})
    phase = replace(PHASE, trainable=frozenset(tensors), **rules)

    def run(threads):
        torch.set_num_threads(threads)
        ours = Engine(network, report=lambda *numbers: visits.append(numbers))
        ours.head = frozenset(name for name in tensors if name.startswith(("fc2", "fc3")))
        trained, losses = ours.train(examples, params, phase, KEY)
        torch.set_num_threads(1)
        return {**trained.own, "losses": losses}

    expected, threaded = run(1), run(3)
    assert bool(spreads) == is_spread
    assert sorted(visits[: len(visits) // 2]) == sorted(visits[len(visits) // 2 :])
    if is_spread:
        assert expected.keys() == threaded.keys() >= tensors.keys()
        assert all(torch.equal(tensor, threaded[name]) for name, tensor in expected.items())
        assert all(torch.equal(network.state_dict()[name], tensors[name]) for name in tensors), "only copies have run"


def test_clients_with_much_to_train_have_all_threads_in_turn(several_threads, spreads, monkeypatch):
    tensors = {name: tensor.detach() for name, tensor in lenet().state_dict().items()}
    phase = replace(PHASE, trainable=frozenset(tensors), epochs=1)
    for limit in (0, -1):
        monkeypatch.setattr(engine, "TILE_BYTES", sum(tensor.nbytes for tensor in tensors.values()) + limit)
        Engine(lenet()).train(examples_of(counts=(3, 2)), Params(tensors, {}), phase, KEY)
    assert len(spreads) == 1


@pytest.mark.parametrize(("backend", "mixed"), [("auto", True), ("sequential", False)])
def test_mixed_precision_and_a_requested_backend_are_not_spread(backend, mixed, several_threads, spreads):
    tensors = {name: tensor.detach() for name, tensor in lenet().state_dict().items()}
    with torch.autocast("cpu", torch.bfloat16, mixed):
        phase = replace(PHASE, trainable=frozenset(tensors))
        Engine(lenet(), backend).train(examples_of(counts=(3, 2)), Params(tensors, {}), phase, KEY)
    assert not spreads
