import numpy as np
import pytest
import torch

from pfl_lightning.data import Arrays
from pfl_lightning.data.own.inputs import encode_inputs
from pfl_lightning.errors import PflError

RANDOM = np.random.default_rng(0)
N = 40


def floats(*shape):
    return RANDOM.normal(size=(N, *shape)).astype(np.float32)


def pixels(*shape):
    return RANDOM.integers(0, 256, (N, *shape), np.uint8)


@pytest.mark.parametrize(
    ("inputs", "words", "shape"),
    [
        (floats(3, 32, 32), "images of 32 x 32 pixels, 3 channels first", (3, 32, 32)),
        (floats(32, 32, 3), "images of 32 x 32 pixels, 3 channels last", (3, 32, 32)),
        (floats(13, 8, 8), "images of 8 x 8 pixels, 13 channels first", (13, 8, 8)),
        (floats(8, 8, 13), "images of 8 x 8 pixels, 13 channels last", (13, 8, 8)),
        (floats(1, 4, 4), "images of 4 x 4 pixels, 1 channels first", (1, 4, 4)),
        (pixels(12, 16, 4), "images of 12 x 16 pixels, 4 channels last", (4, 12, 16)),
        (pixels(5, 6), "grey images of 5 x 6 pixels", (1, 5, 6)),
        (pixels(64), "rows of 64 pixels", (64,)),
        (pixels(3 * 64), "rows of 192 pixels", (192,)),
        (pixels(65), "features", (65,)),
        (pixels(3), "features", (3,)),
        (floats(5), "features", (5,)),
        (RANDOM.integers(-9, 9, (N, 5)), "features", (5,)),
        (RANDOM.integers(0, 9, (N, 5)), "tokens", (5,)),
        (floats(2, 3, 4, 5), "numbers", (2, 3, 4, 5)),
    ],
)
def test_a_layout_that_alone_is_possible_is_taken_and_named(inputs, words, shape):
    encoded = encode_inputs([inputs], standardize=True)
    assert encoded.understood.startswith(f"{words} ({inputs.dtype} ")
    assert encoded.splits[0].shape[1:] == shape


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (floats(3, 3, 3), "NCHW or NHWC"),
        (floats(3, 28, 4), "NCHW or NHWC"),
        (floats(3, 3, 32), "NCHW or NHWC"),
        (floats(13, 8, 10), "NCHW or NHWC"),
        (floats(32, 32), "NHW, NCL or NLC"),
        (RANDOM.integers(0, 9, (N, 5, 6)), "NHW, NCL or NLC"),
    ],
)
def test_two_possible_layouts_are_refused_with_the_option_that_decides(inputs, options):
    kind = f"{inputs.dtype} {list(inputs.shape[1:])}"
    with pytest.raises(PflError) as refused:
        Arrays(inputs, np.arange(N) % 2).setup()
    assert str(refused.value).startswith(f"data: Arrays: inputs {kind} can ")
    assert str(refused.value).endswith(f"; data.layout must be {options}")


def test_a_layout_has_a_letter_for_each_axis():
    with pytest.raises(ValueError, match=r"^data\.layout must have 3 letters for inputs float32 \[9, 128\], got NCHW$"):
        encode_inputs([floats(9, 128)], True, "NCHW")


@pytest.mark.parametrize(("layout", "axis"), [("NCL", 1), ("NLC", 2)])
def test_each_channel_of_a_series_is_standardized_and_stays_where_it_is(layout, axis):
    inputs = floats(4, 6)
    inputs *= np.array([1, 10, 100, 5, 3, 2])[:4].reshape(4, 1) if axis == 1 else np.array([1, 10, 100, 5, 3, 2])
    (found,) = encode_inputs([inputs], True, layout).splits
    others = tuple({0, 1, 2} - {axis})
    assert found.shape == (N, 4, 6)
    torch.testing.assert_close(found.mean(others), torch.zeros(found.shape[axis]), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std(others, correction=0), torch.ones(found.shape[axis]))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_whole_numbers_are_features_if_asked(dtype):
    inputs = RANDOM.integers(0, 200, (N, 64)).astype(dtype)
    encoded = encode_inputs([inputs], True, "NF")
    expected = (inputs - inputs.mean(0)) / inputs.std(0)
    assert encoded.kind == "numbers"
    np.testing.assert_allclose(encoded.transform(encoded.splits[0]), expected, atol=1e-5)


def test_large_whole_numbers_keep_their_spread():
    inputs = 1_700_000_000_000 + np.arange(N)[:, None] * 5000
    (found,) = encode_inputs([inputs], True, "NF").splits
    assert found.std(correction=0).item() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (floats(9, 20) * (1 + 9999 * (np.arange(9) == 0))[:, None], {"layout": "NLC", "standardize": True}),
        (floats(3) * [1, 1, 1000], {"standardize": False}),
    ],
)
def test_features_of_very_different_scales_are_told(inputs, options):
    with pytest.warns(
        match=r"^data: inputs have ranges from .* along axis 1; data\.standardize or another data\.layout"
    ):
        encode_inputs([inputs], **options)


def test_samples_that_are_all_alike_are_told():
    with pytest.warns(match="^data: the inputs of all 40 training samples are alike$"):
        encode_inputs([np.ones((N, 3))], True)
