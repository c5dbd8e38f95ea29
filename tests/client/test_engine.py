from dataclasses import replace
from functools import partial

import pytest
import torch
from fakes.cohorts import COUNTS, Identity, deal_out, examples_of, params_of, samples_of
from fakes.methods import distance
from fakes.networks import pooled
from fakes.tasks import Copies
from fakes.torch_sgd import KEY, by_torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from pfl_lightning.client import Engine, Phase, Proximity, Samples, engine, join_outputs
from pfl_lightning.client.backends import Batched
from pfl_lightning.client.layers import frozen_layers, with_streams
from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP, LeNet5, Network
from pfl_lightning.tasks import Classification, Regression
from pfl_lightning.tree import Params


class Shift:
    """Adds noise that depends on the random bits: a stand-in for augmentation."""

    random = True

    def __call__(self, raw, bits=None):
        return raw if bits is None else raw + (bits % 1000)[:, None, None, None] / 1000


SMALL = partial(MLP, hidden=(5,))
DEEP = partial(MLP, hidden=(6, 5))
CONVOLUTIONAL = partial(LeNet5, channels=(2, 3), hidden=(6, 5))
every_backend = pytest.mark.parametrize("backend", ["sequential", "batched"])


def names(network, part):
    return network.parts(1)[part] if part else ()


def cohort(make=SMALL, transform=None, own="", **options):
    """A network, examples of several clients, and their tensors, of which a part is each client's own."""
    network, examples = make((1, 16, 16), 3), examples_of(transform, **options)
    return network, examples, params_of(network, names(network, own), len(examples))


def test_the_sum_of_many_losses_in_bfloat16_has_the_digits_of_float32(monkeypatch):
    monkeypatch.setattr(engine, "SAMPLES_AT_ONCE", 20)
    torch.set_default_dtype(torch.bfloat16)
    network, examples, params = cohort(partial(MLP, hidden=()), counts=(300,) * 4)
    outputs = network(examples.gather(examples.positions).flatten(0, 1))
    expected = F.cross_entropy(outputs, examples.targets(examples.positions).flatten(), reduction="none")
    losses = Engine(network).sums(examples, params)["loss"]
    torch.testing.assert_close(losses.double(), expected.double().view(4, 300).sum(1), rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", ["logistic", "regression"])
def test_a_network_of_one_output_takes_labels_of_two_classes_or_numbers(kind, backend):
    network, examples = MLP((1, 16, 16), 1, hidden=(5,)), examples_of(counts=(3,))
    samples = examples.samples
    samples.targets = torch.randn(3) if kind == "regression" else torch.tensor([1, 0, 1])
    loss = nn.MSELoss() if kind == "regression" else nn.BCEWithLogitsLoss()
    params = params_of(network)
    tensors = {name: tensor.clone().requires_grad_() for name, tensor in params.shared.items()}
    outputs = functional_call(network, tensors, samples.inputs)[:, 0]
    value = loss(outputs, samples.targets.double()) / (2 if kind == "regression" else 1)
    value.backward()
    task = Regression() if kind == "regression" else Classification()
    engine = Engine(network, backend, task=task.sized(1))
    trained, losses = engine.train(examples, params, Phase(names(network, "all"), 1, batch_size=3, lr=0.1), KEY)
    assert losses[0] == pytest.approx(value.item(), abs=1e-12)
    moved = {name: tensor.detach() - 0.1 * tensor.grad for name, tensor in tensors.items()}
    assert distance(moved, trained.client(0)) < 1e-12
    sums = engine.sums(examples, params)
    assert sums["loss"][0] == pytest.approx(3 * value.item(), abs=1e-5)
    if kind == "logistic":
        assert sums["correct"][0] == ((outputs > 0) == samples.targets).sum()


def copied(copies, counts=COUNTS):
    """The same samples as ``Copies`` of so many each, and as samples that are there so many times."""
    once = examples_of(counts=counts)
    inputs, classes = once.samples.inputs, once.samples.targets
    repeated = Samples(inputs.repeat_interleave(copies, 0), classes.repeat_interleave(copies), Identity())
    once.samples.targets = torch.stack([classes, copies], 1)
    return once, deal_out(repeated, [int(part.sum()) for part in copies.split(list(counts))])


@pytest.mark.parametrize("make", [SMALL, partial(MLP, hidden=(12, 5)), CONVOLUTIONAL])
def test_a_sample_counts_as_often_as_its_amount_says(backend, make):
    once, repeated = copied(torch.arange(sum(COUNTS)) % 3)
    network = make((1, 16, 16), 3)
    params = params_of(network)
    phase = Phase(names(network, "all"), epochs=3, batch_size=100, lr=0.1, momentum=0.5, weight_decay=0.1)
    counting, plain = (Engine(network, backend, task=task) for task in (Copies().sized(3), None))
    trained, losses = counting.train(once, params, phase, KEY)
    expected, expected_losses = plain.train(repeated, params, phase, KEY)
    assert distance(trained.own, expected.own) < 1e-12
    torch.testing.assert_close(losses, expected_losses, rtol=0, atol=1e-12)
    gradient, expected_gradient = (
        engine.gradient(examples, params, phase.trainable) for engine, examples in ((counting, once), (plain, repeated))
    )
    assert distance(gradient, expected_gradient) < 1e-12
    before, expected_before = counting.mean_losses(once, params), plain.mean_losses(repeated, params)
    torch.testing.assert_close(before, expected_before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [SMALL, partial(MLP, hidden=(12, 5)), CONVOLUTIONAL])
def test_a_mini_batch_of_amount_0_has_no_gradient(backend, make):
    once, _ = copied(torch.zeros(sum(COUNTS), dtype=torch.int64))
    network = make((1, 16, 16), 3)
    params = params_of(network)
    engine = Engine(network, backend, task=Copies().sized(3))
    trained, losses = engine.train(once, params, Phase(names(network, "all"), epochs=2, batch_size=4, lr=0.1), KEY)
    assert losses.tolist() == engine.mean_losses(once, params).tolist() == [0.0] * len(COUNTS)
    for client in range(len(COUNTS)):
        assert distance(trained.client(client), params.client(client)) == 0


@pytest.mark.parametrize("part", ["head", "body", "all"])
@pytest.mark.parametrize(("transform", "own"), [(Identity(), ""), (Shift(), ""), (Shift(), "all")])
@pytest.mark.parametrize("make", [DEEP, partial(MLP, hidden=(12, 5)), partial(pooled, hidden=(6, 7)), CONVOLUTIONAL])
def test_a_phase_is_what_torch_sgd_does_at_each_client(backend, part, transform, own, make):
    network, examples, params = cohort(make, transform, own)
    phase = Phase(names(network, part), epochs=2, batch_size=4, lr=0.1, momentum=0.5, weight_decay=0.01)
    trained, losses = Engine(network, backend).train(examples, params, phase, KEY)
    assert losses.shape == (len(COUNTS),)
    for client in range(len(COUNTS)):
        reference, _ = by_torch(network, examples, params, phase, client)
        update = distance(reference, params.client(client))
        assert update > 1e-3
        assert distance(reference, trained.client(client)) < 1e-10 * update


@pytest.mark.parametrize("rule", ["sample_weights", "sample_rows"])
@pytest.mark.parametrize(("transform", "epochs"), [(Identity(), 2), (Identity(), 1), (Shift(), 2)])
@pytest.mark.parametrize("make", [DEEP, partial(MLP, hidden=(12, 5)), CONVOLUTIONAL])
def test_rows_and_weights_go_with_their_samples(backend, rule, transform, epochs, make):
    network, examples, params = cohort(make, transform)
    rows = 2 * torch.rand(len(COUNTS), max(COUNTS))
    params = params.with_own({"own": rows})
    phase = Phase(names(network, "all"), epochs, batch_size=4, lr=0.1, momentum=0.5)
    if rule == "sample_weights":
        phase = replace(phase, sample_weights="own")
    else:
        phase = replace(phase, sample_rows=("own",), feature_loss=losses_times_own)
    engine = Engine(network, backend, chunk_size=2)
    engine.head = names(network, "head")
    trained, losses = engine.train(examples, params, phase, KEY)
    for client, count in enumerate(COUNTS):
        reference, loss = by_torch(network, examples, params, phase, client, factors=rows[client, :count])
        assert losses[client].item() == pytest.approx(loss, abs=1e-12)
        assert distance(reference, trained.client(client)) < 1e-12


def losses_times_own(outputs, features, targets, extras):
    return F.cross_entropy(outputs, targets, reduction="none") * extras["own"]


@pytest.mark.parametrize("part", ["head", "all"])
def test_a_ragged_cohort_in_several_tiles_is_what_the_sequential_backend_does(part):
    counts = (*[40] * 10, 19, *[8] * 10, 3)
    tiles = [len(tile) for _, tile in examples_of(counts=counts).split(len(counts), even=True)]
    assert tiles == [10, 10, 2], "each but the last has enough clients"
    network, examples, params = cohort(counts=counts)
    phase = Phase(names(network, part), epochs=2, batch_size=4, lr=0.1, momentum=0.5)
    expected, losses = Engine(network, "sequential").train(examples, params, phase, KEY)
    trained, tile_losses = Engine(network).train(examples, params, phase, KEY)
    torch.testing.assert_close(tile_losses, losses)
    torch.testing.assert_close(trained.own, expected.own, rtol=0, atol=1e-12)


def test_arguments_and_network_stay_as_they_are():
    network, examples, params = cohort()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    trained, _ = Engine(network).train(examples, params, Phase(names(network, "all"), 1, 4, lr=0.1), KEY)
    for name, tensor in before.items():
        assert torch.equal(params.shared[name], tensor)
        assert torch.equal(network.state_dict()[name], tensor)
        assert not torch.equal(trained.own[name][0], tensor)


@pytest.mark.parametrize(("backend", "at_once"), [("sequential", 4), ("sequential", 1024), ("batched", 4)])
def test_score_counts_each_clients_correct_predictions(backend, at_once, monkeypatch):
    monkeypatch.setattr("pfl_lightning.client.engine.SAMPLES_AT_ONCE", at_once)
    network, examples, params = cohort(counts=(5, 3, 0))
    for case in (params, params.owned(params.shared, 3)):
        check_scores(Engine(network, backend), examples, case)


def check_scores(engine, examples, params):
    sums = engine.sums(examples, params)
    engine.network.eval()
    for client in range(len(examples)):
        inputs, targets = samples_of(examples, client)
        logits = functional_call(engine.network, params.client(client), inputs)
        assert sums["correct"][client] == (logits.argmax(1) == targets).sum()
        torch.testing.assert_close(sums["loss"][client], F.cross_entropy(logits, targets, reduction="sum"))


@pytest.mark.parametrize(("shape", "outputs", "at_once"), [((2, 3), (5,), 7), ((4, 5), (5,), 3), ((2, 3), (30,), 2)])
def test_large_inputs_and_outputs_go_through_the_network_few_at_a_time(shape, outputs, at_once, monkeypatch):
    # at most 256 bytes of float32 inputs or outputs: 64 numbers
    monkeypatch.setattr(engine, "SAMPLES_AT_ONCE", 7)
    monkeypatch.setattr(engine, "KEPT_BYTES", 256)
    assert engine.samples_at_once(shape, outputs) == at_once
    assert engine.samples_at_once((100,)) == 1


def test_rows_of_samples_are_joined_over_windows(monkeypatch):
    monkeypatch.setattr("pfl_lightning.client.engine.SAMPLES_AT_ONCE", 4)
    network, examples, params = cohort(counts=(2, 5, 0))
    outputs = join_outputs(Engine(network).predictions(examples, params), 3)
    expected = functional_call(network, params.shared, examples.gather(examples.positions).flatten(0, 1)).view(3, 5, 3)
    torch.testing.assert_close(outputs[examples.present], expected[examples.present])
    assert outputs.shape == (3, 5, 3)
    assert not outputs[2].any()


def test_padding_is_no_correct_prediction(backend):
    network, examples, params = cohort(counts=(5, 3, 0))
    samples = examples.samples
    samples.targets = functional_call(network, params.shared, samples.inputs).argmax(1)  # so padding would be correct
    assert Engine(network, backend).sums(examples, params)["correct"].tolist() == [5, 3, 0]


def test_each_maps_a_function_of_one_client(backend):
    """The gradient of every client's loss, here a rule that is no phase."""
    network = SMALL((4,), 3)
    params = params_of(network, names(network, "head"))
    inputs, targets = torch.randn(len(COUNTS), 6, 4), torch.randint(3, (len(COUNTS), 6))

    def gradient(tree, x, y):
        return grad(lambda tensors: F.cross_entropy(functional_call(network, tensors, x), y))(tree)

    result = Engine(network, backend).each(gradient, params, inputs, targets)
    for client in range(len(COUNTS)):
        expected = gradient(params.client(client), inputs[client], targets[client])
        torch.testing.assert_close({name: rows[client] for name, rows in result.items()}, expected)


@pytest.mark.parametrize(
    ("backend", "chunk_size", "kind"),
    [
        ("sequential", None, nn.Dropout),
        ("batched", None, nn.Dropout),
        ("batched", 1, nn.Dropout),
        ("auto", None, nn.AlphaDropout),
    ],
)
def test_dropout_has_other_masks_in_each_epoch_of_each_client(backend, chunk_size, kind):
    # with inputs of 1 and weights of 0 a step moves the weights that the mask lets through, all by the same
    examples = deal_out(Samples(torch.ones(2, 64), torch.ones(2), Identity()), (1, 1))
    network = Network({"dropout": kind(0.5), "fc": nn.Linear(64, 1, bias=False)})
    engine, start = Engine(network, backend, chunk_size), Params({"fc.weight": torch.zeros(1, 64)}, {})

    def weights(epochs, key):
        phase = Phase(frozenset(["fc.weight"]), epochs, batch_size=1, lr=0.001)
        return engine.train(examples, start, phase, key)[0].own["fc.weight"][:, 0]

    first, second = weights(1, KEY), weights(2, KEY)
    masks = [*(first > 0), *(second > first), *(weights(1, (1, "train", 1)) > 0)]
    assert all(16 < mask.sum() < 48 for mask in masks)
    assert len({tuple(mask.tolist()) for mask in masks}) == 6


class TwiceDropped(Network):
    """The same layer twice in a step, in a block, and in place."""

    def __init__(self, input_shape, num_classes):
        dropout = nn.Dropout(0.3)
        block = nn.Sequential(dropout, nn.Linear(8, 8), dropout, nn.Dropout(0.5, inplace=True), nn.ReLU())
        super().__init__(
            {"flatten": nn.Flatten(), "fc1": nn.Linear(256, 8), "block": block, "fc2": nn.Linear(8, num_classes)}
        )


@pytest.mark.parametrize(
    "make",
    [
        TwiceDropped,
        partial(MLP, hidden=(8, 6), dropouts=(0.3, 0.5)),
        partial(pooled, hidden=(8, 6), dropouts=(0.3, 0.5)),
    ],
)
@pytest.mark.parametrize(
    "rules", [{}, {"feature_loss": losses_times_own, "sample_rows": ("own",)}, {"inner_steps": 2}, {"clip_norm": 0.5}]
)
def test_dropout_has_the_same_masks_on_each_backend_and_in_chunks_of_any_size(rules, make):
    network, examples, params = cohort(make)
    if "sample_rows" in rules:
        params = params.with_own({"own": torch.rand(len(COUNTS), max(COUNTS))})
    phase = Phase(names(network, "all"), 2, 4, lr=0.1, momentum=0.5, **rules)

    def trained(*options):
        engine = Engine(network, *options)
        engine.head = names(network, "head")
        return engine.train(examples, params, phase, KEY)[0].own

    expected = trained("sequential")
    for options in ((), ("batched", 2), ("batched", 1)):
        torch.testing.assert_close(trained(*options), expected, rtol=0, atol=1e-12)


def test_auto_makes_dropout_independent_of_the_chunk():
    network, examples, params = cohort(AlphaDropping)
    phase = Phase(names(network, "all"), 2, 4, lr=0.1)
    expected, _ = Engine(network).train(examples, params, phase, KEY)
    for start, chunk in examples.split(2):
        trained, _ = Engine(network).train(chunk, params, phase, KEY)
        torch.testing.assert_close(trained.own, expected.rows(start, start + 2).own)


def test_a_stream_drops_each_number_with_the_layers_probability_and_anew_in_each_call():
    inputs = torch.randn(1001, 7)
    for p in (0.02, 0.5, 0.9):
        layer = with_streams(Network({"dropout": nn.Dropout(p)}))[0]
        first, second = (layer(inputs) for _ in range(2))
        for outputs in (first, second):
            survives = outputs != 0
            assert abs(survives.double().mean() - (1 - p)) < 4 * (p * (1 - p) / inputs.numel()) ** 0.5
            torch.testing.assert_close(outputs[survives], (inputs / (1 - p))[survives])
        twice = ((first != 0) & (second != 0)).double().mean()
        assert abs(twice - (1 - p) ** 2) < 4 * ((1 - p) ** 2 / inputs.numel()) ** 0.5
        layer.eval()
        assert torch.equal(layer(inputs), inputs)
    assert not with_streams(Network({"dropout": nn.Dropout(1.0)}))[0](inputs).any()


def test_the_frozen_layers_end_before_what_moves_and_before_dropout():
    plain, dropping = LeNet5((1, 16, 16), 3), LeNet5((1, 16, 16), 3, dropout=0.5)
    layers = [name for name, _ in dropping.named_children()]
    assert layers[frozen_layers(dropping, names(dropping, "head"))] == "dropout3"
    assert frozen_layers(plain, names(plain, "head")) == len(plain) - 1
    assert frozen_layers(plain, names(plain, "body")) == 0
    assert frozen_layers(plain, names(plain, "all")) == 0


class Normed(Network):
    def __init__(self, input_shape, num_classes):
        super().__init__(
            {"flatten": nn.Flatten(), "fc1": nn.Linear(256, 6), "norm": nn.BatchNorm1d(6), "fc2": nn.Linear(6, 3)}
        )


class AlphaDropping(Network):
    def __init__(self, input_shape, num_classes):
        super().__init__({"flatten": nn.Flatten(), "dropout": nn.AlphaDropout(0.5), "fc": nn.Linear(256, num_classes)})


class Dropping(Network):
    def __init__(self, input_shape, num_classes):
        super().__init__(
            {
                "flatten": nn.Flatten(),
                "norm": nn.BatchNorm1d(256),
                "dropout": nn.Dropout(0.5),
                "fc": nn.Linear(256, num_classes),
            }
        )


def test_batched_refuses_batch_norm():
    with pytest.raises(PflError, match="BatchNorm"):
        Engine(Normed((1, 16, 16), 3), "batched")


def test_batch_norm_statistics_move_with_their_layer_only():
    network, examples, params = cohort(Normed, counts=(8, 6, 4))
    body, _ = Engine(network).train(examples, params, Phase(names(network, "body"), 1, 2, lr=0.1), KEY)
    assert body.own["norm.num_batches_tracked"].tolist() == [4, 3, 2]
    assert not torch.equal(body.own["norm.running_mean"][0], params.shared["norm.running_mean"])


@pytest.mark.parametrize("moves", [["fc2.weight", "fc2.bias"], ["fc1.weight", "fc2.weight"]], ids=str)
def test_frozen_batch_norm_uses_its_statistics_and_leaves_them_alone(moves):
    network, examples, params = cohort(Normed)
    network.norm.running_mean.normal_()
    network.norm.running_var.uniform_(0.5, 2.0)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    phase = Phase(frozenset(moves), epochs=2, batch_size=4, lr=0.1, momentum=0.5)
    trained, _ = Engine(network).train(examples, params, phase, KEY)
    assert trained.own.keys() == phase.trainable
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.shared.items())
    network.eval()
    for client in range(len(COUNTS)):
        assert distance(by_torch(network, examples, params, phase, client)[0], trained.client(client)) < 1e-10


@pytest.mark.parametrize("backend", ["sequential", "auto"])
def test_a_score_has_no_dropout_and_neither_uses_nor_moves_a_batchs_statistics(backend):
    network, examples, params = cohort(Dropping)  # in training mode
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    check_scores(Engine(network, backend), examples, params)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("part", ["head", "body", "all"])
@pytest.mark.parametrize(
    ("transform", "epochs", "rules"),
    [(Identity(), 2, {}), (Shift(), 1, {"penalty": Proximity(0.1), "steps": 1}), (Identity(), 1, {"clip_norm": 1.0})],
)
@pytest.mark.parametrize("make", [partial(MLP, hidden=(16, 5)), CONVOLUTIONAL])
def test_nothing_waits_for_an_accelerator(make, transform, epochs, part, rules):
    """Stands in for one: the meta device, whose tensors have no numbers, so that reading one is an error."""
    network, examples = make((1, 16, 16), 3), examples_of(transform).to(torch.device("meta"))
    params = Params({name: tensor.detach().to("meta") for name, tensor in network.state_dict().items()}, {})
    phase = Phase(names(network, part), epochs, batch_size=4, lr=0.1, momentum=0.5, **rules)
    trained, losses = Engine(network).train(examples, params.beside("anchor", params), phase, KEY)
    correct = Engine(network).sums(examples, trained.select(params.shared))["correct"]
    Engine(network).gradient(examples, params, names(network, part))
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        float(losses.sum() + correct.sum())


DUAL = "batched by hand, the first layer in dual form"
FREE = "no layer needs or prefers one client at a time"
SLOW = "convolutions and fused recurrent layers are faster one client at a time on a CPU"
LOOP = "sequential by autograd"


@pytest.mark.parametrize(
    ("make", "part", "backend", "choice"),
    [
        (DEEP, "all", "auto", f"{DUAL} ({FREE})"),
        (partial(pooled, hidden=(6, 7)), "all", "auto", f"{DUAL} ({FREE})"),
        (DEEP, "all", "batched", f"{DUAL} (requested by model.backend)"),
        (DEEP, "all", "sequential", f"{LOOP} (requested by model.backend)"),
        (LeNet5, "head", "auto", f"{DUAL} ({FREE})"),
        (LeNet5, "body", "auto", f"{LOOP} ({SLOW})"),
        (partial(LeNet5, dropout=0.5), "head", "auto", f"batched by autograd ({FREE})"),
        (AlphaDropping, "all", "auto", f"{LOOP} (random layers other than nn.Dropout would depend on the chunk)"),
        (Normed, "body", "auto", f"{LOOP} (BatchNorm would count the padding of ragged clients)"),
        (Normed, "head", "auto", f"{DUAL} ({FREE})"),
    ],
)
def test_the_engine_keeps_note_of_what_it_chose_and_why(make, part, backend, choice):
    network, examples, params = cohort(make, counts=(4, 2))
    engine = Engine(network, backend)
    engine.train(examples, params, Phase(names(network, part), 1, 2, lr=0.1), KEY)
    assert list(engine.choices.values()) == [choice]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_client_trains_on_images_with_channels_last(channels):
    network, shapes = LeNet5((channels, 16, 16), 3, channels=(2, 3), hidden=(6, 5)), []
    for layer in network.children():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            layer.register_forward_hook(lambda layer, inputs, outputs: shapes.append((outputs.shape, outputs.stride())))
    Engine(network).train(
        examples_of(shape=(channels, 16, 16)), params_of(network), Phase(names(network, "all"), 1, 4, lr=0.1), KEY
    )
    assert shapes
    for (_, depth, _, width), strides in shapes:
        assert strides[1:] == (1, width * depth, depth)


def test_shared_convolutions_of_many_clients_get_channels_last_too():
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            if "convolution" in str(function):
                seen.append(arguments[0].is_contiguous(memory_format=torch.channels_last))
            return function(*arguments, **(options or {}))

    seen, layers = [], [nn.Conv2d(3, 2, 3), nn.MaxPool2d(2), nn.Conv2d(2, 2, 1), nn.Flatten(), nn.Linear(8, 2)]
    network = nn.Sequential(*layers)
    tensors = {name: tensor.detach() for name, tensor in network.state_dict().items()}
    heads = {name: torch.stack([tensors.pop(name)] * 3) for name in ("4.weight", "4.bias")}
    images = torch.randn(3, 5, 3, 6, 6)
    with Seen():
        found = Batched().forward(network, Params(tensors, heads), images)
    assert seen == [True, True]
    torch.testing.assert_close(found, network(images.flatten(0, 1)).unflatten(0, (3, 5)))


def test_a_rule_for_whole_gradients_leaves_the_backward_pass_by_hand():
    network, examples, params = cohort(DEEP, counts=(4, 2))
    engine = Engine(network)
    engine.train(examples, params, Phase(names(network, "all"), 1, 2, lr=0.1, clip_norm=1.0), KEY)
    assert list(engine.choices.values()) == [f"batched by hand, with whole gradients ({FREE})"]


def test_evaluation_passes_everybodys_samples_through_the_shared_layers_at_once():
    network, examples, params = cohort(CONVOLUTIONAL, own="head")
    batches = []
    network.conv1.register_forward_hook(lambda layer, inputs, outputs: batches.append(len(outputs)))
    Engine(network).sums(examples, params)
    assert batches == [len(COUNTS) * max(COUNTS)]


@pytest.mark.parametrize(("part", "own"), [("all", ""), ("all", "all"), ("head", "")])
@pytest.mark.parametrize("make", [DEEP, CONVOLUTIONAL])
def test_the_gradient_is_that_of_each_clients_mean_loss(backend, part, own, make, monkeypatch):
    monkeypatch.setattr("pfl_lightning.client.engine.SAMPLES_AT_ONCE", 15)  # so that it comes in several batches
    network, examples, params = cohort(make, own=own)
    gradients = Engine(network, backend).gradient(examples, params, names(network, part))
    assert set(gradients) == names(network, part)
    for client in range(len(COUNTS)):
        inputs, targets = samples_of(examples, client)
        tensors = {name: tensor.clone().requires_grad_() for name, tensor in params.client(client).items()}
        F.cross_entropy(functional_call(network, tensors, inputs), targets).backward()
        for name, gradient in gradients.items():
            assert tensors[name].grad.abs().max() > 1e-4
            torch.testing.assert_close(gradient[client], tensors[name].grad, atol=1e-12, rtol=1e-10)


def test_the_gradient_has_no_dropout_and_neither_uses_nor_moves_a_batchs_statistics():
    network, examples, params = cohort(Dropping)
    network.norm.running_mean.normal_()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    parameters = dict(network.named_parameters())
    gradients = Engine(network).gradient(examples, params, frozenset(parameters))
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    network.eval()
    for client in range(len(COUNTS)):
        inputs, targets = samples_of(examples, client)
        expected = torch.autograd.grad(F.cross_entropy(network(inputs), targets), list(parameters.values()))
        for name, gradient in zip(parameters, expected, strict=True):
            torch.testing.assert_close(gradients[name][client], gradient)
