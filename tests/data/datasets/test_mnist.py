import pytest

from pfl_lightning.data import MNIST, FashionMNIST


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
    inputs = MNIST().transform()(mnist[0].inputs)
    assert inputs.mean().item() == pytest.approx(0, abs=5e-4)
    assert inputs.std().item() == pytest.approx(1, abs=5e-4)


def test_real_subset_of_fashion_mnist_has_its_counts(real_data):
    # 100 of 6,000 and of 1,000 images of each class are left out
    module = FashionMNIST(root=str(real_data / "fashion_mnist"))
    with pytest.warns(UserWarning, match="59,000 training and 9,000 test samples instead of 60,000 and 10,000"):
        splits = module.load()
    for split, count in zip(splits, (5900, 900), strict=True):
        assert split.inputs.shape == (10 * count, 1, 28, 28)
        assert split.targets.bincount().tolist() == [count] * 10


@pytest.mark.parametrize("source", [MNIST, FashionMNIST])
def test_grey_images_are_not_augmented(source):
    assert not source().transform().random
