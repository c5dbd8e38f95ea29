import numpy as np
import pytest
import torch
from fakes.leaf import write_femnist, write_json

from pfl_lightning.data.datasets.femnist import FEMNIST


def test_images_labels_and_writers_are_read_back_exactly(tmp_path):
    written = write_femnist(tmp_path)
    names = sorted(written["train"])
    for split, users in zip(FEMNIST(root=str(tmp_path), background="white").load(), written.values(), strict=True):
        assert (split.inputs.dtype, split.targets.dtype, split.users.dtype) == (torch.uint8, torch.int64, torch.int64)
        for number, name in enumerate(names):
            own = split.users == number
            np.testing.assert_array_equal(split.inputs[own], users[name][0].reshape(-1, 1, 28, 28))
            np.testing.assert_array_equal(split.targets[own], users[name][1])
    # clients are writers
    module = FEMNIST(root=str(tmp_path), num_clients=24, val_fraction=0)
    module.setup()
    # 8 training and 2 test samples a writer
    assert module.tables["train"].counts.tolist() == [8] * 24
    assert module.tables["test"].counts.tolist() == [2] * 24


@pytest.fixture
def three_pixels(tmp_path):
    """Two images whose first three pixels are 255, 51, 0 and 255, 153, 0; the others are white."""
    images = [[1.0, k / 255, 0.0] + [1.0] * 781 for k in (51, 153)]
    write_json(tmp_path / "data/train/a.json", {"a": (images[:1], [36])})
    write_json(tmp_path / "data/test/a.json", {"a": (images[1:], [45])})
    return tmp_path


@pytest.mark.parametrize(
    ("background", "pixels"),
    [({}, [0, 0.8, 1, 0]), ({"background": "black"}, [0, 0.8, 1, 0]), ({"background": "white"}, [1, 0.2, 0, 1])],
)
def test_ink_is_one_unless_the_background_is_white(three_pixels, background, pixels):
    module = FEMNIST(root=str(three_pixels), **background)
    train, test = module.load()
    # 51 / 255 = 0.2
    assert module.transform()(train.inputs).flatten()[:4].tolist() == pytest.approx(pixels)
    assert module.transform()(test.inputs).flatten()[2].item() == pixels[2]


# the second pixel's mean is (51 + 153) / 2 = 102, so 51 / 102 - 1 and 153 / 102 - 1; black stays finite: 0 - 1. Its ink
# is 204 and 102, of the mean 153
@pytest.mark.parametrize(
    ("background", "train", "test"),
    [("white", [0, -0.5, -1, 0], [0, 0.5, -1, 0]), ("black", [-1, 204 / 153 - 1, 0], [-1, 102 / 153 - 1, 0])],
)
def test_mean_ratio_divides_by_the_mean_of_all_samples(three_pixels, background, train, test):
    module = FEMNIST(root=str(three_pixels), background=background, normalize="mean_ratio")
    for split, expected in zip(module.load(), (train, test), strict=True):
        pixels = module.transform()(split.inputs).flatten()[: len(expected)]
        assert pixels.tolist() == pytest.approx(expected, abs=1e-6)


def test_classes_are_kept_and_counted_from_zero(three_pixels):
    module = FEMNIST(root=str(three_pixels), classes=(36, 46))
    train, test = module.load()
    assert (module.num_classes, train.targets.tolist(), test.targets.tolist()) == (10, [0], [9])
    assert FEMNIST(root=str(three_pixels)).num_classes == 62


@pytest.fixture(scope="module")
def real(real_data):
    return FEMNIST(root=str(real_data / "femnist")).load()


@pytest.mark.slow
def test_real_writers_have_their_counts_and_characters_are_white_on_black(real):
    # the README of the shared data: 150 writers with 4 to 165 training samples, median 126 (rounded down)
    train, test = real
    assert (len(train.targets), len(test.targets)) == (14_081, 1_848)
    counts = train.users.bincount()
    assert (len(counts), counts.min(), counts.max(), counts.float().quantile(0.5)) == (150, 4, 165, 126.5)
    assert torch.equal(train.users.unique(), test.users.unique())
    # ink is in the middle, the corners are paper
    assert (train.inputs.min(), train.inputs.max()) == (0, 255)
    assert train.inputs[:, 0, 0, 0].float().mean() < 5
    assert train.inputs[:, 0, 10:18, 10:18].float().mean() > 55
