"""Methods on modules that are none of ours; tests/methods/test_contract.py has that backends agree on them."""

from functools import partial

import pytest
import torch
from fakes.methods import built, distance, make_method
from fakes.networks import (
    Evaluating,
    Masked,
    Nested,
    Noisy,
    Normed,
    Opaque,
    Plain,
    frozen_and_tied,
    hooked,
    normalised_weights,
    pruned,
    spectral,
    twice_the_same,
    without_statistics,
)
from torch import nn

from pfl_lightning import load_method
from pfl_lightning.client import LocalTraining
from pfl_lightning.errors import PflError
from pfl_lightning.methods import (
    APPLE,
    DPSGD,
    IFCA,
    SCAFFOLD,
    DePRL,
    DisPFL,
    Ditto,
    FedALA,
    FedAvg,
    FedRep,
    LGFedAvg,
)
from pfl_lightning.models import MLP, LoRA
from pfl_lightning.server import SecureAggregator


class ByName(nn.Module):
    """A network that names the arguments of its layers, one of which is linear."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.fc, self.norm, self.dropout = nn.Linear(256, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.head = nn.Linear(8, num_classes)

    def forward(self, inputs):
        found = self.dropout(input=self.norm(input=self.fc(input=inputs.flatten(1))))
        return self.head(torch.where(found > 0, found, 0.0))


METHODS = {
    "DePRL": partial(DePRL, head_epochs=2),
    "Ditto": Ditto,
    "FedAvg": FedAvg,
    "FedRep": partial(FedRep, head_epochs=2),
    "LGFedAvg": partial(LGFedAvg, head=1),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "batch_norm"), [(FedAvg, "local"), (DePRL, "average"), (Ditto, "local")])
def test_resume_is_exact_with_dropout_and_batch_norm_inside_of_a_module(make, batch_norm, pool_of, resumed):
    draws = iter(range(3))

    def made():
        torch.rand(next(draws))  # torch's own generator must not matter
        return make_method(make, network=Normed, batch_size=4, batch_norm=batch_norm)

    straight, method, last = resumed(made, partial(pool_of, 3))
    assert distance(straight, method) == 0
    assert distance(load_method(last, network=Normed), method) == 0
    kept = {name for name in straight.clients.names if "running_mean" in name and not name.startswith("personal")}
    assert bool(kept) == (batch_norm == "local" or make is DePRL)


@pytest.mark.parametrize(
    ("make", "network", "backend"),
    [
        *((make, Plain, "batched") for make in METHODS.values()),
        (METHODS["FedRep"], Plain, "sequential"),
        (METHODS["FedRep"], Opaque, "batched"),
        (METHODS["FedRep"], Opaque, "sequential"),
    ],
)
def test_a_module_trains_as_our_own_network_with_the_same_layers(make, network, backend, float64, train):
    theirs, ours = (train(make, 2, network=each, backend=backend) for each in (network, partial(MLP, hidden=(6,))))
    own = theirs.network.module_with(theirs.network.state_dict())
    assert distance(ours.network, own) < 1e-10


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_a_parameter_that_nothing_uses_stays(make, ragged_data, train):
    method, again = train(make, 2, network=Nested, weight_decay=0.0), built(make, ragged_data(), network=Nested)
    module, start = (each.network.module_with(each.network.state_dict()) for each in (method, again))
    torch.testing.assert_close(module.unused.weight, start.unused.weight)
    assert not torch.equal(module.features[0].weight, start.features[0].weight) or make is METHODS["LGFedAvg"]


FROZEN = {
    **METHODS,
    "DPSGD": DPSGD,
    "FedALA": partial(FedALA, weight_lr=5.0),
    "FedAvg over secure sums": lambda **kwargs: FedAvg(aggregator=SecureAggregator(), **kwargs),
    "SCAFFOLD": SCAFFOLD,
}
each_frozen = pytest.mark.parametrize("make", FROZEN.values(), ids=FROZEN)


@each_frozen
def test_frozen_tensors_stay_and_tied_ones_move_as_one_on_every_backend(make, float64, ragged_data, train):
    start, one, many = (
        built(make, ragged_data(), network=frozen_and_tied),
        *(train(make, 2, network=frozen_and_tied, backend=backend) for backend in ("sequential", "batched")),
    )
    update = distance(one, start)
    assert update > 1e-3
    assert distance(one, many) < 1e-10 * update
    for method in (one, many):
        network, names = method.network, [*method.clients.names, *method.server.tree]
        assert distance(network[1], start.network[1]) == 0
        assert network[3].second.weight is network[3].first.weight
        assert not any(word in name for name in names for word in ("1.weight", "1.bias", "second.weight"))


@each_frozen
@pytest.mark.slow
def test_resume_with_frozen_and_tied_tensors_is_exact(make, pool_of, resumed):
    straight, method, last = resumed(partial(make, network=frozen_and_tied, batch_size=4), partial(pool_of, 3))
    assert distance(straight, method) == 0

    def with_others(input_shape, num_classes):
        module = frozen_and_tied(input_shape, num_classes)
        module[1].weight.fill_(3.0)
        return module

    loaded = load_method(last, network=with_others)
    assert distance(loaded, method) == 0, "the checkpoint has the frozen ones"
    module = loaded.client(0)
    assert module[3].second.weight is module[3].first.weight


def test_a_round_of_one_client_is_plain_training_of_what_trains(float64, ragged_data, train):
    data = ragged_data(num_clients=1)
    method = train(FedAvg, 3, data, network=frozen_and_tied, batch_size=1000, lr=0.1, weight_decay=0.0)
    module = built(FedAvg, ragged_data(num_clients=1), network=frozen_and_tied).client(0, "global")
    ((inputs, targets),) = data.client_dataloader(0, "train", batch_size=1000)
    optimizer = torch.optim.SGD([each for each in module.parameters() if each.requires_grad], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    assert distance(method.client(0, "global"), module) < 1e-12


def test_layers_before_the_first_that_trains_run_once_a_phase(train):
    assert list(train(FedAvg, 1, network=frozen_and_tied).engine.choices) == ["3, 4"]


def test_an_opaque_module_says_what_it_costs(train):
    plain, opaque = (", ".join(train(FedRep, 1, network=network).engine.choices) for network in (Plain, Opaque))
    assert "computed again" not in plain
    assert "Opaque (the rest of Opaque is computed again in every step)" in opaque


@pytest.mark.filterwarnings("ignore:Found 1 module.* in eval mode")
def test_what_a_module_does_in_training_alone_is_done_and_what_it_evaluates_stays_so(float64, train):
    calm, noisy = (train(FedAvg, 2, network=partial(Noisy, noise=noise)) for noise in (0.0, 1.0))
    assert distance(calm, noisy) > 1e-3
    one, other = (train(FedAvg, 2, network=partial(Evaluating, probability=p)) for p in (0.0, 0.5))
    assert distance(one, other) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("make", [FedAvg, DPSGD, IFCA, partial(FedAvg, aggregator=SecureAggregator())])
def test_buffers_that_nothing_moves_are_neither_trained_nor_sent(make, ragged_data, resumed):
    straight, method, last = resumed(partial(make, network=Masked, batch_size=4), ragged_data, rounds=2)
    start, constants = built(make, ragged_data(), network=Masked), {"Masked.scales", "Masked.mask", "Masked.places"}
    assert constants.isdisjoint({*method.parts["all"], *method.clients.names})
    for name, tensor in start.network.state_dict().items():
        assert torch.equal(straight.network.state_dict()[name], method.network.state_dict()[name])
        assert torch.equal(tensor, method.network.state_dict()[name]) == (name in constants)
    assert distance(load_method(last, network=Masked).network[0].proj, method.network[0].proj) == 0


@pytest.mark.slow
@pytest.mark.parametrize("network", [spectral, Normed])
def test_state_of_layers_that_do_not_train_stays_as_it_is(network, ragged_data, train):
    few, many = (train(FedRep, 2, network=network, chunk_size=size) for size in (1, None))
    assert distance(few, many) < 1e-5
    method, data = train(FedRep, 1, network=network), ragged_data()
    before = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    method.trainer.test(method, data, verbose=False)
    assert distance(before, method.network) == 0


@pytest.mark.parametrize("network", [hooked, pruned])
def test_linear_layers_with_hooks_are_run_by_torch(network, float64, train):
    alone, auto = (train(FedAvg, 2, network=network, backend=backend) for backend in ("sequential", "auto"))
    assert distance(alone, auto) < 1e-12


def test_tensors_that_a_layers_weight_is_made_of_are_of_its_layer(ragged_data):
    head = built(FedRep, ragged_data(), network=normalised_weights).parts["head"]
    assert head == {"3.bias", *(f"3.parametrizations.weight.original{number}" for number in (0, 1))}


def test_a_layer_that_our_own_network_uses_twice_runs_twice(float64, train):
    one, two = (train(FedAvg, 2, network=partial(twice_the_same, apart=apart)) for apart in (False, True))
    assert distance(one, two) == 0
    assert [name for name, _ in one.network.named_children()] == ["flat", "fc1", "act1", "fc2", "act2", "fc3"]


def test_outputs_that_depend_on_other_samples_are_refused(ragged_data):
    with pytest.raises(PflError) as refused:
        built(FedAvg, ragged_data(), network=without_statistics)
    assert str(refused.value) == (
        "model.network: Sequential returns in evaluation what depends on the other samples of a batch, as BatchNorm "
        "without running statistics does; a sample's outputs must depend on that sample alone"
    )


def test_clients_that_never_train_have_no_statistics_of_their_own(ragged_data, fit):
    method = FedAvg(network=Normed, local=LocalTraining(batch_size=4), batch_norm="local", eval_epochs=0)
    with pytest.raises(PflError, match=r"^data\.test_clients: 0\.5 is not possible with model\.batch_norm: local"):
        fit(method, ragged_data(test_clients=0.5), 1)


@pytest.mark.parametrize("options", [{}, {"adapter": LoRA(2, targets="fc")}], ids=["whole", "adapted"])
def test_layers_may_be_called_with_named_arguments(options, train):
    method = train(FedAvg, 1, network=ByName, **options)
    assert all(tensor.isfinite().all() for tensor in method.network.state_dict().values())


class Looking(nn.Module):
    """A network that uses what its attention looks at, which an adapted one does not return."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(16, 1, batch_first=True), nn.Linear(16, num_classes)

    def forward(self, inputs):
        found, weights = self.attention(*[inputs[:, 0]] * 3)
        return self.head(found[:, 0] * weights.mean())


def test_a_network_that_does_not_run_with_its_adapter_is_refused(ragged_data):
    with pytest.raises(
        PflError, match=r"^model\.network: .*Looking does not run with the adapters or layers added to it"
    ):
        built(FedAvg, ragged_data(), network=Looking, adapter=LoRA(2))


class Scaled(nn.Module):
    """A network with a parameter that is a single number."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.tensor(2.0)), nn.Linear(256, num_classes)

    def forward(self, inputs):
        return self.head(self.scale * inputs.flatten(1))


@pytest.mark.parametrize("make", [APPLE, DisPFL, FedAvg])
def test_a_parameter_may_be_a_single_number(make, train):
    scale = train(make, 2, network=Scaled).network.state_dict()["Scaled.scale"]
    assert 1e-6 < (scale - 2).abs() < 1
