import numpy as np
import pytest
import torch
from fakes.torchvision_data import write_emnist

from pfl_lightning.data.datasets.emnist import EMNIST

pytestmark = pytest.mark.filterwarnings("ignore:.*is not the official data set")

CLASSES = {"balanced": 47, "letters": 26, "byclass": 62}


@pytest.fixture
def write(tmp_path):
    """Writes a split with two images of each class, whose top right corner alone is white; returns its root."""

    def write(split):
        labels = np.arange(CLASSES[split]).repeat(2)
        images = np.zeros((len(labels), 1, 28, 28), dtype=np.uint8)
        images[:, 0, 0, 27] = 255
        (tmp_path / EMNIST.folder).mkdir(parents=True, exist_ok=True)
        names = ("train", "test")
        write_emnist(tmp_path / EMNIST.folder, dict.fromkeys(names, images), dict.fromkeys(names, labels), split)
        return str(tmp_path)

    return write


@pytest.mark.parametrize("split", CLASSES)
def test_all_classes_of_a_split_are_counted_from_zero(write, split):
    module = EMNIST(root=write(split), split=split, classes=None)
    assert module.num_classes == CLASSES[split]
    for part in module.load():
        assert part.targets.bincount().tolist() == [2] * CLASSES[split]


@pytest.mark.parametrize("split", CLASSES)
def test_ten_classes_are_the_default(write, split):
    module = EMNIST(root=write(split), split=split)
    assert module.num_classes == 10
    assert module.load()[0].targets.bincount().tolist() == [2] * 10


def test_small_letters_of_byclass_stand_in_for_femnist(write):
    # digits 0-9, capital letters 10-35, small letters from 36
    module = EMNIST(root=write("byclass"), split="byclass", classes=(36, 46))
    assert module.load()[1].targets.bincount().tolist() == [2] * 10


def test_images_are_upright(write):
    corners = EMNIST(root=write("balanced")).load()[0].inputs[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert corners.unique(dim=0).tolist() == [[0, 255, 0, 0]]


def test_splits_lie_in_one_folder(write):
    for split in CLASSES:
        root = write(split)
    for split, classes in CLASSES.items():
        assert len(EMNIST(root=root, split=split, classes=None).load()[0].targets) == 2 * classes


# samples of SRPFL's first ten classes: 100 clients with 240 + 40 in balanced, 480 + 80 in letters
@pytest.mark.parametrize(("split", "train", "test"), [("balanced", 240, 40), ("letters", 480, 80)])
def test_official_sizes_are_the_papers(split, train, test):
    official = EMNIST(split=split).official_sizes
    assert [size * 10 / CLASSES[split] for size in official] == [100 * train, 100 * test]


def test_images_are_normalised_like_mnist_and_not_augmented():
    transform = EMNIST().transform()
    greys = transform(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
    np.testing.assert_allclose(greys.flatten(), [-0.1307 / 0.3081, (1 - 0.1307) / 0.3081], rtol=1e-6)
    assert not transform.random
