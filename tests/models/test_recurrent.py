import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils.rnn import pack_padded_sequence

from pfl_lightning.models.recurrent import GRU, LSTM

CLIENTS, BATCH, TIME, FEATURES, HIDDEN = 3, 5, 6, 4, 3
PRESENT = torch.arange(TIME) < torch.tensor([6, 1, 4, 6, 2])[:, None]
pytestmark = pytest.mark.usefixtures("float64")
of_both_kinds = pytest.mark.parametrize("kind", [LSTM, GRU])


def seeded(kind, *args, **kwargs):
    torch.manual_seed(1)
    return kind(*args, **kwargs)


def torchs_last(layer, inputs, present):
    """The last hidden state of torch's own layer, forward beside backward."""
    if present is not None:
        inputs = pack_padded_sequence(inputs, present.sum(1), batch_first=True, enforce_sorted=False)
    state = layer(inputs)[1]
    hidden = state[0] if isinstance(state, tuple) else state
    return torch.cat(list(hidden[-2:] if layer.bidirectional else hidden[-1:]), -1)


def close(result, expected):
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "torchs"), [(LSTM, nn.LSTM), (GRU, nn.GRU)])
@pytest.mark.parametrize(
    ("layers", "bidirectional", "present"),
    [(1, False, None), (1, True, PRESENT), (2, False, PRESENT), (2, True, PRESENT)],
)
def test_parameters_outputs_and_gradients_are_those_of_torch(kind, torchs, layers, bidirectional, present):
    layer = seeded(kind, FEATURES, HIDDEN, layers, bidirectional=bidirectional)
    reference = seeded(torchs, FEATURES, HIDDEN, layers, batch_first=True, bidirectional=bidirectional)
    assert list(layer.state_dict()) == list(reference.state_dict())
    assert all(map(torch.equal, layer.parameters(), reference.parameters()))

    inputs = torch.randn(BATCH, TIME, FEATURES).requires_grad_()
    last = layer(inputs, present)
    expected = torchs_last(reference, inputs, present)
    close(last, expected)

    scales = torch.randn_like(last)
    gradients = torch.autograd.grad((scales * last).sum(), [inputs, *layer.parameters()])
    references = torch.autograd.grad((scales * expected).sum(), [inputs, *reference.parameters()])
    assert all(gradient.abs().max() > 1e-3 for gradient in references)
    close(gradients, references)


@pytest.mark.parametrize(("kind", "torchs"), [(LSTM, nn.LSTM), (GRU, nn.GRU)])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, True)])
def test_states_after_every_step_are_those_of_torch(kind, torchs, layers, bidirectional):
    layer = seeded(kind, FEATURES, HIDDEN, layers, bidirectional=bidirectional, every_step=True)
    reference = seeded(torchs, FEATURES, HIDDEN, layers, batch_first=True, bidirectional=bidirectional)
    inputs = torch.randn(BATCH, TIME, FEATURES)
    close(layer(inputs), reference(inputs)[0])


@of_both_kinds
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_is_ignored_where_it_is_marked(kind, bidirectional):
    layer = kind(FEATURES, HIDDEN, 2, bidirectional=bidirectional)
    inputs = torch.randn(BATCH, TIME, FEATURES)
    other = torch.where(PRESENT[..., None], inputs, torch.randn_like(inputs))
    close(layer(other, PRESENT), layer(inputs, PRESENT))
    assert not torch.allclose(layer(other), layer(inputs))
    close(layer(inputs, torch.ones_like(PRESENT)), layer(inputs))
    assert torch.equal(layer(inputs, torch.zeros_like(PRESENT)), torch.zeros(BATCH, HIDDEN * (1 + bidirectional)))


def clients_of(kind, dropout=0.0):
    """Layers of some clients, their stacked parameters and inputs."""
    layers = [kind(FEATURES, HIDDEN, 2, dropout=dropout, bidirectional=True) for _ in range(CLIENTS)]
    return layers, stack_module_state(layers)[0], torch.randn(CLIENTS, BATCH, TIME, FEATURES)


@of_both_kinds
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_vmap_over_clients_evaluates_as_a_loop(kind, mode):
    layers, stacked, inputs = clients_of(kind, dropout=0.5)
    layers = [layer.eval() for layer in layers]
    with mode():
        run = vmap(lambda tree, *arguments: functional_call(layers[0], tree, arguments))
        outputs = run(stacked, inputs, PRESENT.expand(CLIENTS, -1, -1))
        for row, layer in enumerate(layers):
            close(outputs[row], layer(inputs[row], PRESENT))


@of_both_kinds
def test_dropout_is_between_the_layers_in_training_alone(kind):
    layer = kind(FEATURES, HIDDEN, 2, dropout=1.0)  # the second layer receives zeros
    inputs = torch.randn(BATCH, TIME, FEATURES)
    second = kind(HIDDEN, HIDDEN)
    tensors = {name.replace("_l1", "_l0"): tensor for name, tensor in layer.state_dict().items() if "_l1" in name}
    second.load_state_dict(tensors)
    close(layer(inputs), second(torch.zeros(BATCH, TIME, HIDDEN)))
    plain = kind(FEATURES, HIDDEN, 2)
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer.eval()(inputs), plain(inputs))


@of_both_kinds
def test_mixed_precision(kind):
    layer = kind(FEATURES, HIDDEN, 2, bidirectional=True).float()
    inputs = torch.randn(BATCH, TIME, FEATURES, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = layer(inputs, PRESENT)
    assert outputs.dtype == torch.bfloat16
    torch.testing.assert_close(outputs.float(), layer(inputs, PRESENT), rtol=0, atol=0.05)
