import numpy as np
import pytest
import torch
from fakes.torchvision_data import random_images, write
from PIL import Image

from pfl_lightning.data import MNIST, FashionMNIST

pytestmark = pytest.mark.filterwarnings("ignore:.*is not the official data set")


@pytest.fixture(scope="module")
def mnist(real_data):
    return MNIST(root=str(real_data / "mnist")).load()


def test_official_mnist_has_its_counts_and_labels(mnist):
    # samples of each digit in the official files, and the first labels of both
    assert [split.inputs.shape for split in mnist] == [(60_000, 1, 28, 28), (10_000, 1, 28, 28)]
    train, test = (split.targets for split in mnist)
    assert train.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


def test_normalised_mnist_has_mean_zero_and_deviation_one(mnist):
    # an image's mean has a standard deviation of 0.13, so that of 6,000 has one of 0.002
    some = torch.randperm(60_000, generator=torch.Generator().manual_seed(0))[:6_000]
    inputs = MNIST().transform()(mnist[0].inputs[some])
    assert inputs.mean().item() == pytest.approx(0, abs=6e-3)
    assert inputs.std().item() == pytest.approx(1, abs=6e-3)


def test_real_subset_of_fashion_mnist_has_its_counts(real_data):
    # 100 of 6,000 and of 1,000 images of each class are left out
    module = FashionMNIST(root=str(real_data / "fashion_mnist"))
    with pytest.warns(UserWarning, match="59,000 training and 9,000 test samples instead of 60,000 and 10,000"):
        splits = module.load()
    for split, count in zip(splits, (5900, 900), strict=True):
        assert split.inputs.shape == (10 * count, 1, 28, 28)
        assert split.targets.bincount().tolist() == [count] * 10


@pytest.mark.parametrize("source", [MNIST, FashionMNIST])
def test_grey_values_are_normalised_by_the_usual_constants(source):
    # black is 0 and white is 1: -0.1307 / 0.3081 and 0.8693 / 0.3081
    black_and_white = source().transform()(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2))
    assert black_and_white.flatten().tolist() == pytest.approx([-0.424213, 2.821486], abs=1e-6)


@pytest.mark.parametrize(("normalize", "ends"), [("symmetric", [-1, 1]), ("none", [0, 1])])
def test_grey_values_are_scaled_to_a_range(normalize, ends):
    module = FashionMNIST(normalize=normalize)
    assert module.transform()(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2)).flatten().tolist() == ends


@pytest.fixture(params=[MNIST, FashionMNIST])
def fake(request, tmp_path):
    """A class, its root, and its images."""
    images, targets = random_images(request.param, {"train": 25, "test": 12})
    images = {name: values // 2 for name, values in images.items()}
    images["train"][:, :, 0], images["test"][:, :, 0] = 0, 0
    images["train"][3, 0, 0, 5] = 100
    write(request.param, tmp_path / request.param.folder, images, targets)
    return request.param, str(tmp_path), images


def test_every_pixel_is_normalised_over_training_and_test_images(fake):
    # as in pFedMe's code, on grey values from 0 to 255; a row that is black but for one image has little deviation
    source, root, images = fake
    module = source(root=root, normalize="pixels")
    parts = module.load()
    greys = np.concatenate([images["train"], images["test"]]).astype(float)
    expected = (greys - greys.mean(0)) / (greys.std(0) + 0.001)
    assert expected[3, 0, 0, 5] == pytest.approx(6, abs=1e-3)  # 1 of 37: (1 - p) / sqrt(p (1 - p)) = sqrt(36)
    found = np.concatenate([module.transform()(part.inputs) for part in parts])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_images_are_resized_as_pillow_does(fake):
    source, root, images = fake
    module = source(root=root, size=32)
    assert module.input_shape == (1, 32, 32)
    for part, small in zip(module.load(), images.values(), strict=True):
        expected = [
            np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.BILINEAR)) for image in small[:, 0]
        ]
        assert part.inputs.shape == (len(small), *module.input_shape)
        np.testing.assert_allclose(part.inputs[:, 0].int(), np.stack(expected).astype(int), rtol=0, atol=1)
