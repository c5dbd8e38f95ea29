import pytest

from pfl_lightning.data.datasets.cifar100 import CIFAR100


@pytest.fixture(scope="module")
def splits(real_data):
    with pytest.warns(UserWarning, match="1,023 training and 766 test samples instead of 50,000 and 10,000"):
        return CIFAR100(root=str(real_data / "cifar100")).load()


def test_real_subset_has_its_counts(splits):
    # the subset's own description: about 10 training and 8 test images of each of the 100 fine classes
    for split, count in zip(splits, (1023, 766), strict=True):
        assert split.inputs.shape == (count, 3, 32, 32)
        assert split.targets.bincount().min() > 0
        assert split.targets.max() == 99


def test_real_labels_are_the_fine_ones_in_official_order_and_pixels_in_place(splits):
    # the first official training images: cattle, dinosaur, apple, boy, aquarium_fish; the red row of the first, cattle
    # before a white sky, begins 255, 255, 255
    assert splits[0].targets[:5].tolist() == [19, 29, 0, 11, 1]
    assert splits[0].inputs[0, 0, 0, :3].tolist() == [255, 255, 255]


def test_first_ten_classes_of_the_real_subset_are_fedmacs(splits, real_data):
    module = CIFAR100(root=str(real_data / "cifar100"), classes=(0, 10))
    with pytest.warns(UserWarning, match="1,023 training and 766 test samples"):
        train, test = module.load()
    assert module.num_classes == 10
    assert len(train.targets) == int((splits[0].targets < 10).sum())
    assert test.targets.unique().tolist() == list(range(10))


def test_normalised_real_images_have_about_mean_zero_and_deviation_one(splits):
    # 1,023 x 1,024 pixels of each channel; the constants are those of all 50,000 images
    inputs = CIFAR100().transform()(splits[0].inputs)
    assert inputs.mean((0, 2, 3)).abs().max() < 0.05
    assert (inputs.std((0, 2, 3)) - 1).abs().max() < 0.05
