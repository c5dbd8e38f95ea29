import pickle

import numpy as np
import pytest
import torch

from pfl_lightning.data import CIFAR10, CIFAR100


@pytest.fixture(scope="module")
def cifar10(real_data):
    with pytest.warns(UserWarning, match="10,000 training and 2,000 test samples instead of 50,000 and 10,000"):
        return CIFAR10(root=str(real_data / "cifar10")).load()


@pytest.mark.slow
def test_real_subset_of_cifar10_has_its_counts(cifar10):
    # the subset's own description: 5 x 2,000 training and 2,000 test images, balanced
    for split, count in zip(cifar10, (1000, 200), strict=True):
        assert split.inputs.shape == (10 * count, 3, 32, 32)
        assert split.targets.bincount().tolist() == [count] * 10


def test_real_pixels_are_in_place(cifar10, real_data):
    # official training image 2 is a white truck (class 9): its red row begins 255, 253, 253
    content = pickle.loads((real_data / "cifar10/cifar-10-batches-py/data_batch_1").read_bytes(), encoding="latin1")
    place = content["filenames"].index("official_train_00002_truck.png")
    assert cifar10[0].targets[place] == 9
    assert cifar10[0].inputs[place, 0, 0, :3].tolist() == [255, 253, 253]


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize(
    ("source", "constants"),
    [
        (CIFAR10, [0.485 / 0.229, 0.456 / 0.224, 0.406 / 0.225]),
        (CIFAR100, [0.507 / 0.267, 0.487 / 0.256, 0.441 / 0.276]),
    ],
)
def test_black_is_normalised_with_the_papers_constants(source, constants, augment):
    # (0 - mean) / std with the constants of SRPFL's code; cropping pads with black
    transform = source(augment=augment).transform()
    black = transform(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.tensor([0]))
    expected = -np.reshape(constants, (3, 1, 1))
    np.testing.assert_allclose(black, np.broadcast_to(expected, (1, 3, 32, 32)), rtol=1e-6)
    # training images are cropped by up to four pixels and mirrored; see the tests of the transform
    assert (transform.random, transform.padding) == (augment, 4 * augment)


@pytest.fixture(scope="module")
def cifar100(real_data):
    with pytest.warns(UserWarning, match="1,023 training and 766 test samples instead of 50,000 and 10,000"):
        return CIFAR100(root=str(real_data / "cifar100")).load()


def test_real_subset_of_cifar100_has_its_counts(cifar100):
    # the subset's own description: about 10 training and 8 test images of each of the 100 fine classes
    for split, count in zip(cifar100, (1023, 766), strict=True):
        assert split.inputs.shape == (count, 3, 32, 32)
        assert split.targets.bincount().min() > 0
        assert split.targets.max() == 99


def test_real_labels_are_the_fine_ones_in_official_order_and_pixels_in_place(cifar100):
    # the first official training images: cattle, dinosaur, apple, boy, aquarium_fish; the red row of the first, cattle
    # before a white sky, begins 255, 255, 255
    assert cifar100[0].targets[:5].tolist() == [19, 29, 0, 11, 1]
    assert cifar100[0].inputs[0, 0, 0, :3].tolist() == [255, 255, 255]


def test_first_ten_classes_of_the_real_subset_are_fedmacs(cifar100, real_data):
    module = CIFAR100(root=str(real_data / "cifar100"), classes=(0, 10))
    with pytest.warns(UserWarning, match="1,023 training and 766 test samples"):
        train, test = module.load()
    assert module.num_classes == 10
    assert len(train.targets) == int((cifar100[0].targets < 10).sum())
    assert test.targets.unique().tolist() == list(range(10))


def test_normalised_real_images_have_about_mean_zero_and_deviation_one(cifar100):
    # 1,023 x 1,024 pixels of each channel; the constants are those of all 50,000 images
    inputs = CIFAR100().transform()(cifar100[0].inputs)
    assert inputs.mean((0, 2, 3)).abs().max() < 0.05
    assert (inputs.std((0, 2, 3)) - 1).abs().max() < 0.05
