import numpy as np
import pytest
import torch

from pfl_lightning.data.transforms import ImageTransform

PADDING = 2
EVERY_CROP = 2 * (2 * PADDING + 1) ** 2


def images(count, channels=3, height=3, width=5):
    random = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (count, channels, height, width), dtype=torch.uint8, generator=random)


def crops(image):
    """All crops of one image padded with black, each plain and mirrored, pixel by pixel."""
    channels, height, width = image.shape
    for top in range(2 * PADDING + 1):
        for left in range(2 * PADDING + 1):
            crop = np.zeros((channels, height, width), dtype=int)
            for y in range(height):
                for x in range(width):
                    row, column = y + top - PADDING, x + left - PADDING
                    if 0 <= row < height and 0 <= column < width:
                        crop[:, y, x] = image[:, row, column]
            yield crop
            yield np.array([[line[::-1] for line in channel] for channel in crop])


def augmented(raw, bits):
    """What the transform makes of the images, as grey values again."""
    transform = ImageTransform([0.0] * raw.shape[1], [1.0] * raw.shape[1], PADDING)
    return (transform(raw, bits) * 255).round().int().numpy()


def as_pixels(pictures):
    return sorted(tuple(np.ravel(picture).tolist()) for picture in pictures)


def test_bits_choose_every_crop_and_mirror_image_once():
    raw = images(1)
    outputs = augmented(raw.expand(EVERY_CROP, *raw.shape[1:]), torch.arange(EVERY_CROP))
    assert as_pixels(outputs) == as_pixels(crops(raw[0].numpy()))


def test_each_image_of_a_batch_has_a_crop_of_its_own():
    raw = images(6)
    bits = torch.randint(0, (1 << 63) - 1, (6,), generator=torch.Generator().manual_seed(1))
    outputs = augmented(raw, bits)
    for row, output in enumerate(outputs):
        np.testing.assert_array_equal(output, augmented(raw[row : row + 1], bits[row : row + 1])[0])
        assert as_pixels([output])[0] in as_pixels(crops(raw[row].numpy()))


def test_large_bits_choose_all_crops_equally_often():
    random = torch.Generator().manual_seed(2)
    raw = images(1, 1).expand(200 * EVERY_CROP, 1, 3, 5)
    outputs = augmented(raw, torch.randint(0, (1 << 63) - 1, (len(raw),), generator=random))
    _, frequencies = np.unique(outputs.reshape(len(raw), -1), axis=0, return_counts=True)
    assert len(frequencies) == EVERY_CROP
    # chi-squared with 49 degrees of freedom: 85.4 is its 99.9th percentile
    assert ((frequencies - 200) ** 2 / 200).sum() < 85.4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalisation_is_per_channel_in_the_default_float_type(dtype):
    torch.set_default_dtype(dtype)
    raw, mean, std = images(4), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    before = raw.clone()
    outputs = ImageTransform(mean, std, PADDING)(raw)
    assert outputs.dtype == dtype
    for channel in range(3):
        expected = (raw[:, channel].numpy() / 255 - mean[channel]) / std[channel]
        np.testing.assert_allclose(outputs[:, channel].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(raw, before)


def test_nothing_is_random_without_bits_or_padding():
    raw, bits = images(4), torch.tensor([1, 3, 5, 7])
    plain, random = (ImageTransform([0.0] * 3, [1.0] * 3, padding) for padding in (0, PADDING))
    assert (plain.random, random.random) == (False, True)
    assert torch.equal(plain(raw, bits), random(raw))
    assert not torch.equal(random(raw, bits), random(raw))
