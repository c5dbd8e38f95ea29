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
@pytest.mark.parametrize("options", [{}, {"classes": None}, {"classes": (16, 26)}])
def test_classes_are_counted_from_zero_and_ten_are_the_default(write, split, options):
    # 16 to 26 are the last letters; in byclass digits are 0 to 9, capital letters 10 to 35, small letters from 36
    module = EMNIST(root=write(split), split=split, **options)
    assert module.num_classes == (CLASSES[split] if options == {"classes": None} else 10)
    for part in module.load():
        assert part.targets.bincount().tolist() == [2] * module.num_classes


def test_images_are_upright_and_splits_lie_in_one_folder(write):
    roots = [write(split) for split in CLASSES]
    for (split, classes), root in zip(CLASSES.items(), roots, strict=True):
        train, _ = EMNIST(root=root, split=split, classes=None).load()
        assert len(train.targets) == 2 * classes
        assert train.inputs[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]].unique(dim=0).tolist() == [[0, 255, 0, 0]]


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
