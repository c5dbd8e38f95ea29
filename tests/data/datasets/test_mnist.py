import gzip

import numpy as np
import pytest
import torch
from fakes.torchvision_data import random_images, write, write_emnist, write_writers
from PIL import Image
from sklearn.datasets import load_digits

from pfl_lightning.data import EMNIST, MNIST, Digits, FashionMNIST, MNISTWriters, NaturalUsers

pytestmark = pytest.mark.filterwarnings("ignore:.*is not the official data set")

CLASSES = {"balanced": 47, "letters": 26, "byclass": 62}


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


def test_real_subset_of_fashion_mnist_has_its_counts(real_data):
    # 100 of 6,000 and of 1,000 images of each class are left out
    module = FashionMNIST(root=str(real_data / "fashion_mnist"))
    with pytest.warns(UserWarning, match="59,000 training and 9,000 test samples instead of 60,000 and 10,000"):
        splits = module.load()
    for split, count in zip(splits, (5900, 900), strict=True):
        assert split.inputs.shape == (10 * count, 1, 28, 28)
        assert split.targets.bincount().tolist() == [count] * 10


def test_real_writers_are_those_of_qmnist(real_data, mnist):
    # 836 writers, 539 of them of training digits; the writers of the first three digits of both files, by hand
    (digits, _), (train, test) = MNISTWriters(root=str(real_data / "mnist")).load(), mnist
    assert digits.inputs.equal(torch.cat([train.inputs, test.inputs]))
    assert digits.targets.equal(torch.cat([train.targets, test.targets]))
    assert digits.users[[0, 1, 2, 60_000, 60_001, 60_002]].tolist() == [2154, 0, 2232, 2578, 2359, 2530]
    writers = [part.unique() for part in digits.users.split([60_000, 10_000])]
    assert list(map(len, writers)) == [539, 297]
    assert len(digits.users.unique()) == 836
    assert (digits.users.bincount() >= 60).sum() == 580  # devices of docs/evidence/delta_fl.md


@pytest.mark.parametrize("packed", [True, False])
def test_every_writer_is_a_client_with_all_of_its_digits(tmp_path, packed):
    write_writers(tmp_path)
    if not packed:
        for path in tmp_path.rglob("*.gz"):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    module = MNISTWriters(root=str(tmp_path), num_clients=25, test_clients=0.2, val_fraction=0.0)
    module.setup()
    assert isinstance(module.partition, NaturalUsers)
    sizes = module.training_counts.tolist() + module.tables["test"].counts[20:].tolist()
    assert sizes == [20] * 25  # 400 digits of 20 writers and 100 of 5
    digits, _ = module.load()
    assert digits.users.tolist() == [*(place % 20 for place in range(400)), *(20 + place % 5 for place in range(100))]


@pytest.mark.parametrize("source", [MNIST, FashionMNIST, EMNIST])
def test_grey_values_are_normalised_by_the_usual_constants_and_not_augmented(source):
    # black is 0 and white is 1: -0.1307 / 0.3081 and 0.8693 / 0.3081
    transform = source().transform()
    black_and_white = transform(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2))
    assert black_and_white.flatten().tolist() == pytest.approx([-0.424213, 2.821486], abs=1e-6)
    assert not transform.random


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


@pytest.fixture
def write_corners(tmp_path):
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
def test_classes_are_counted_from_zero_and_ten_are_the_default(write_corners, split, options):
    # 16 to 26 are the last letters; in byclass digits are 0 to 9, capital letters 10 to 35, small letters from 36
    module = EMNIST(root=write_corners(split), split=split, **options)
    assert module.num_classes == (CLASSES[split] if options == {"classes": None} else 10)
    for part in module.load():
        assert part.targets.bincount().tolist() == [2] * module.num_classes


def test_images_are_upright_and_splits_lie_in_one_folder(write_corners):
    roots = [write_corners(split) for split in CLASSES]
    for (split, classes), root in zip(CLASSES.items(), roots, strict=True):
        train, _ = EMNIST(root=root, split=split, classes=None).load()
        assert len(train.targets) == 2 * classes
        assert train.inputs[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]].unique(dim=0).tolist() == [[0, 255, 0, 0]]


# samples of SRPFL's first ten classes: 100 clients with 240 + 40 in balanced, 480 + 80 in letters
@pytest.mark.parametrize(("split", "train", "test"), [("balanced", 240, 40), ("letters", 480, 80)])
def test_official_sizes_are_the_papers(split, train, test):
    official = EMNIST(split=split).official_sizes
    assert [size * 10 / CLASSES[split] for size in official] == [100 * train, 100 * test]


@pytest.fixture(scope="module")
def digits():
    return Digits().load()


def test_a_quarter_of_each_class_is_the_test_split(digits):
    train, test = (split.targets.bincount() for split in digits)
    assert (train.sum(), test.sum()) == (1347, 450)  # 1,797 digits in all
    assert train.shape == (10,)
    assert (test - (train + test) / 4).abs().max() < 1


def test_every_digit_is_there_once_with_its_label(digits):
    official = load_digits()
    expected = np.c_[(official.images * 255 / 16).round().reshape(-1, 64), official.target]
    found = torch.cat([torch.cat([split.inputs.flatten(1), split.targets[:, None]], dim=1) for split in digits])
    assert digits[0].inputs.dtype == torch.uint8
    assert digits[0].inputs.shape[1:] == Digits.input_shape
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, expected.astype(int).tolist()))


def test_split_is_the_same_in_every_run(digits):
    again = Digits(seed=9, partition_seed=9).load()
    for split, other in zip(digits, again, strict=True):
        assert split.inputs.equal(other.inputs)
        assert split.targets.equal(other.targets)


def test_inputs_are_centred_and_scaled(digits):
    inputs = Digits().transform()(digits[0].inputs)
    assert inputs.mean().item() == pytest.approx(0, abs=0.01)
    assert inputs.std().item() == pytest.approx(1, abs=0.01)
