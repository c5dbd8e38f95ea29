import pickle

import numpy as np
import pytest
import torch

from pfl_lightning.data import CIFAR10, CIFAR100


@pytest.fixture(scope="module")
def cifar10(real_data):
    with pytest.warns(UserWarning, match="10,000 training and 2,000 test samples instead of 50,000 and 10,000"):
        return CIFAR10(root=str(real_data / "cifar10")).load()


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


def test_real_labels_are_the_fine_ones_in_official_order_and_pixels_in_place(cifar100):
    # the first official training images: cattle, dinosaur, apple, boy, aquarium_fish; the red row of the first, cattle
    # before a white sky, begins 255, 255, 255
    assert cifar100[0].targets[:5].tolist() == [19, 29, 0, 11, 1]
    assert cifar100[0].inputs[0, 0, 0, :3].tolist() == [255, 255, 255]
