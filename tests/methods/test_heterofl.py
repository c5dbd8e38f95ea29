from functools import partial

import pytest
import torch
from fakes.loops import participants
from fakes.loops import trained as trained_alone
from fakes.methods import built, distance, tensors
from fakes.networks import Nested
from torch import nn
from torch.func import functional_call

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, HeteroFL
from pfl_lightning.methods.heterofl import step_of_holders
from pfl_lightning.models import MLP, VGG, CharGRU, LeNet5, Network, UNet, ViT, WideResNet, narrow_shapes
from pfl_lightning.server import DPAggregator, SecureAggregator

pytestmark = pytest.mark.usefixtures("float64")
RATES = [1.0, 0.5, 0.3]
IMAGES = (1, 16, 16)
# networks by their width, and what a width of one half makes of it
PAIRS = {
    "mlp": (partial(MLP, hidden=(8, 5)), partial(MLP, hidden=(4, 3))),
    "lenet": (partial(LeNet5, channels=(3, 5), hidden=(8, 5)), partial(LeNet5, channels=(2, 3), hidden=(4, 3))),
    "vgg": (
        partial(VGG, convolutions=(3, "M", 4, "M"), hidden=(5,), dropout=0.0, batch_norm=True),
        partial(VGG, convolutions=(2, "M", 2, "M"), hidden=(3,), dropout=0.0, batch_norm=True),
    ),
}
pairs = pytest.mark.parametrize(("full", "half"), PAIRS.values(), ids=PAIRS)


def corner(tree, shapes):
    """The first entries of each tensor."""
    return {name: tree[name][tuple(map(slice, shape))].clone() for name, shape in shapes.items()}


def shapes_of(module):
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def personal(method, client):
    ids = torch.tensor([client])

    class Train:
        pass

    Train.ids = ids
    return method.eval_model("personal", Train, method.received(ids), ()).client(0)


# Which entries a client holds


@pairs
def test_the_corner_of_a_network_has_the_shapes_of_the_narrow_one(full, half):
    assert narrow_shapes(full(IMAGES, 3), 0.5) == shapes_of(half(IMAGES, 3))
    assert narrow_shapes(full(IMAGES, 3), 1.0) == shapes_of(full(IMAGES, 3))


def test_units_are_rounded_up_and_there_is_always_one():
    network = MLP((4,), 3, hidden=(10, 2))
    assert [narrow_shapes(network, rate)["fc2.weight"] for rate in (0.7, 0.71, 1e-3)] == [(2, 7), (2, 8), (1, 1)]


def test_residual_networks_are_narrow_in_both_branches():
    shapes = narrow_shapes(WideResNet((3, 8, 8), 4, depth=10, width=1), 0.5)
    assert shapes["conv1.weight"] == (8, 3, 3, 3)
    assert shapes["block2_1.shortcut.weight"] == (16, 8, 1, 1)
    assert shapes["norm1.running_var"] == (32,)
    assert shapes["fc.weight"] == (4, 32)


@pytest.mark.parametrize("training", [True, False])
@pairs
def test_the_masked_network_computes_what_the_narrow_one_computes(full, half, training, ragged_data):
    method = built(HeteroFL, ragged_data(), network=full, rates=[1.0, 0.5])
    for name, tensor in method.network.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape) + 0.1 if "running_var" in name else torch.randn(tensor.shape))
    narrow = half(IMAGES, 3)
    narrow.load_state_dict(corner(tensors(method.network), shapes_of(narrow)))
    inputs = torch.randn(5, *IMAGES)
    outputs = functional_call(method.network.train(training), personal(method, 1), inputs)
    torch.testing.assert_close(outputs, narrow.train(training)(inputs))
    assert distance(personal(method, 0), method.network) == 0


def with_branches(input_shape, num_classes):
    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(16, 3), nn.Linear(16, 4)

        def forward(self, inputs):
            return torch.cat([self.one(inputs), self.other(inputs)], -1)

    return Network({"joined": Joined(), "flat": nn.Flatten(), "head": nn.Linear(7 * 16, num_classes)})


def grouped(input_shape, num_classes):
    layers = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(4 * 144, num_classes)
    return Network({f"layer{number}": layer for number, layer in enumerate(layers)})


@pytest.mark.parametrize(
    ("network", "layer"),
    [
        (ViT, r"block1.norm1 \(LayerNorm\)"),
        (Nested, r"Nested.features.0 \(Linear\)"),
        (with_branches, r"joined.other \(Linear\)"),
        (grouped, r"layer1 \(Conv2d\)"),
    ],
)
def test_a_network_without_narrower_ones_inside_is_one_line(network, layer, ragged_data):
    line = rf"^model.network: \w+ has no narrower networks inside, because of {layer}; allowed: linear layers, [^\n]*$"
    with pytest.raises(PflError, match=line):
        built(HeteroFL, ragged_data(), network=network)


@pytest.mark.parametrize(
    ("network", "layer"),
    [(CharGRU((6, 5), 5), r"gru \(GRU\)"), (UNet(IMAGES, 3), r"levels.encoder.1 \(GroupNorm\)")],
    ids=["recurrent", "normalised over channels"],
)
def test_other_layers_are_one_line(network, layer):
    with pytest.raises(PflError, match=f"because of {layer}; allowed"):
        narrow_shapes(network, 0.5)


def test_no_rate_is_one_line():
    with pytest.raises(PflError, match=r"^model.rates must be one number or more, got none$"):
        HeteroFL(rates=[])


# Rounds


def test_an_entry_is_the_mean_over_its_holders():
    """One client holds ((1, 2), (3, 4)), another one only the first entry, a 5."""
    before = torch.full((2, 2), 7.0)
    uploads = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 7.0], [7.0, 7.0]]])
    share = torch.tensor([[1.0, 0.5], [0.5, 0.5]])
    assert step_of_holders(before, uploads.mean(0), share).tolist() == [[3.0, 2.0], [3.0, 4.0]]
    nobody = torch.tensor([[0.5, 0.0], [0.0, 0.0]])
    assert step_of_holders(before, uploads.mean(0), nobody)[0, 1] == 7.0


@pytest.mark.parametrize("aggregator", [None, SecureAggregator(limit=1000.0)], ids=["clear", "secure"])
def test_rounds_of_most_clients_are_a_plain_loop(aggregator, pool_of, fit, backend):
    data = pool_of(4)
    options = {"epochs": 2, "momentum": 0.5, "weight_decay": 0.01}
    method = built(HeteroFL, data, rates=RATES, aggregator=aggregator, backend=backend, **options)
    common = tensors(method.network)
    shapes = [narrow_shapes(method.network, rate) for rate in RATES]
    fit(method, data, 3, bare=True)
    lonely = 0
    for index in range(3):
        total = {name: torch.zeros_like(tensor) for name, tensor in common.items()}
        holders = {name: torch.zeros_like(tensor) for name, tensor in common.items()}
        for client, own in participants(data, index):
            held = shapes[client % 3]
            network = MLP(data.input_shape, 3, hidden=(held["fc1.bias"][0], held["fc2.bias"][0]))
            key = (1, "train", index, "all")
            model, _ = trained_alone(network, corner(common, held), own, key, epochs=2, momentum=0.5, decay=0.01)
            for name, tensor in model.items():
                place = tuple(map(slice, held[name]))
                total[name][place] += tensor
                holders[name][place] += 1
        lonely += sum(int((count == 0).sum()) for count in holders.values())
        common = {
            name: torch.where(holders[name] > 0, total[name] / holders[name].clamp(min=1), tensor)
            for name, tensor in common.items()
        }
    assert lonely > 0, "there are entries that nobody holds"
    assert distance(common, method.network) < (1e-10 if aggregator is None else 1e-6)
    for client in range(6):
        own = personal(method, client)
        held = shapes[client % 3]
        assert distance(corner(own, held), corner(common, held)) < 1e-6
        assert all(own[name].count_nonzero() <= corner(common, held)[name].numel() for name in held)


@pytest.mark.parametrize("batch_norm", ["average", "local"])
def test_if_all_rates_are_one_it_is_fedavg_with_uniform_weights(batch_norm, pool_of, fit):
    found = []
    for make in (partial(FedAvg, weighting="uniform"), partial(HeteroFL, rates=[1.0])):
        method = built(make, data := pool_of(4), network=PAIRS["vgg"][0], batch_norm=batch_norm)
        fit(method, data, 3, bare=True)
        found.append(method)
    assert distance(*found) < 1e-12
    assert found[0].accounting.ledger.up == found[1].accounting.ledger.up
    assert found[0].accounting.ledger.down == found[1].accounting.ledger.down


@pairs
def test_if_all_rates_are_one_half_it_is_fedavg_of_the_narrow_network(full, half, pool_of, fit):
    data = pool_of(4)
    options = {"momentum": 0.9, "weight_decay": 0.01, "clip_norm": 1.0, "epochs": 2}
    method = built(partial(HeteroFL, rates=[0.5]), data, network=full, **options)
    narrow = built(partial(FedAvg, weighting="uniform"), data, network=half, **options)
    start = tensors(method.network)
    shapes = narrow_shapes(method.network, 0.5)
    narrow.network.load_state_dict(corner(start, shapes))
    for each in (method, narrow):
        fit(each, data, 3, bare=True)
    after = tensors(method.network)
    assert distance(narrow.network, corner(after, shapes)) < 1e-12
    for name, shape in shapes.items():
        if shape:
            after[name][tuple(map(slice, shape))] = start[name][tuple(map(slice, shape))]
            assert torch.equal(after[name], start[name]), "what nobody holds stays, bit for bit"
    assert method.accounting.ledger.up == narrow.accounting.ledger.up
    assert method.accounting.ledger.down == narrow.accounting.ledger.down


def test_clients_send_and_receive_what_they_hold(train):
    """Two clients of each rate; of 256 inputs, 8 and 5 units, and 3 classes."""
    ledger = train(HeteroFL, 1, rates=RATES).accounting.ledger
    sizes = [(256 + 1) * one + (one + 1) * two + (two + 1) * 3 for one, two in ((8, 5), (4, 3), (3, 2))]
    assert ledger.down == 2 * 64 * sum(sizes)
    assert ledger.up == 2 * 64 * sum(sizes) + 6 * 64, "and a loss each"


def test_private_sums_clip_what_a_client_holds(pool_of, fit):
    """With a large norm and no noise nothing is clipped."""
    found = []
    for aggregator in (None, DPAggregator(1e6, 0.0), DPAggregator(1e-3, 0.0)):
        method = built(HeteroFL, data := pool_of(4), rates=RATES, aggregator=aggregator)
        start = tensors(method.network)
        fit(method, data, 1, bare=True)
        found.append(method)
    assert distance(*found[:2]) < 1e-12
    assert 0 < distance(start, found[2].network) < 4e-3
