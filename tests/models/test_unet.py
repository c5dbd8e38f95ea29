import pytest
import torch
from torch.nn import functional as F

from pfl_lightning.errors import PflError
from pfl_lightning.models import UNet


def convolved(weights, path, values):
    """Two convolutions, each with GroupNorm of up to four groups and ReLU, written out."""
    for number in (0, 3):
        values = F.conv2d(values, weights[f"{path}.{number}.weight"], padding=1)
        groups = values.unflatten(1, (2 if values.shape[1] == 6 else 4, -1))
        variance, mean = torch.var_mean(groups, (2, 3, 4), unbiased=False, keepdim=True)
        scale, shift = (weights[f"{path}.{number + 1}.{name}"][:, None, None] for name in ("weight", "bias"))
        values = (((groups - mean) / (variance + 1e-5).sqrt()).flatten(1, 2) * scale + shift).clamp(min=0)
    return values


def raised(weights, path, values, size):
    """Each pixel as 2 x 2 pixels; the last row or column of an odd size has the bias alone."""
    weight, bias = weights[f"{path}.weight"], weights[f"{path}.bias"]
    pixels = torch.einsum("bchw,cdij->bdhiwj", values, weight).flatten(4).flatten(2, 3)
    missing = (0, size[1] - pixels.shape[3], 0, size[0] - pixels.shape[2])
    return F.pad(pixels, missing) + bias[:, None, None]


@pytest.mark.parametrize("size", [(8, 12), (7, 9)])
def test_output_is_the_papers_layers_and_has_a_number_for_each_pixel(size):
    network = UNet((2, *size), 5, channels=[4, 6, 8]).double()
    for tensor in network.state_dict().values():
        tensor.add_(torch.randn_like(tensor) / 10)  # norms start with weight 1 and bias 0
    weights = network.state_dict()
    inputs = torch.randn(3, 2, *size, dtype=torch.float64)
    first = convolved(weights, "levels.encoder", inputs)
    second = convolved(weights, "levels.below.levels.encoder", F.max_pool2d(first, 2))
    third = convolved(weights, "levels.below.levels.below.bottom", F.max_pool2d(second, 2))
    up = torch.cat([second, raised(weights, "levels.below.levels.up", third, second.shape[2:])], 1)
    up = raised(weights, "levels.up", convolved(weights, "levels.below.decoder", up), size)
    features = convolved(weights, "decoder", torch.cat([first, up], 1))
    head = torch.einsum("bchw,kc->bkhw", features, weights["head.weight"][:, :, 0, 0])
    outputs = network(inputs)
    assert outputs.shape == (3, 5, *size)
    torch.testing.assert_close(outputs, head + weights["head.bias"][:, None, None])


def test_the_head_is_the_last_convolution_and_then_those_on_the_way_up_to_it():
    network = UNet((1, 16, 16), 4)
    assert network.trainable_layers == ["levels", "decoder", "head"]
    assert network.cut(1)[1] == {"head.weight", "head.bias"}
    assert {name.partition(".")[0] for name in network.cut(2)[1]} == {"decoder", "head"}


def test_too_small_images_are_refused():
    with pytest.raises(PflError, match=r"UNet takes images of at least 4 x 4, got inputs of \(1, 3, 8\)$"):
        UNet((1, 3, 8), 4)
