import pytest
from fakes.tiny_imagenet import level, write_tiny_imagenet

from pfl_lightning.data import TinyImageNet
from pfl_lightning.errors import PflError


@pytest.fixture
def root(tmp_path):
    write_tiny_imagenet(tmp_path, count=3, tested=6)
    return tmp_path


def levels(samples):
    """The grey level of each picture, up to JPEG's rounding."""
    return samples.inputs.float().mean((1, 2, 3)).tolist()


@pytest.mark.parametrize("inner", ["", "tiny-imagenet-200"])
def test_classes_count_as_in_wnids_and_lines_of_val_in_another_order_label_the_pictures_that_they_name(root, inner):
    train, test = TinyImageNet(str(root / inner)).load()
    assert train.inputs.shape == (9, 3, 64, 64)
    assert train.targets.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert levels(train) == pytest.approx([level(label, number) for label in range(3) for number in range(3)], abs=2)
    # the list begins with the last picture, number 5
    assert test.targets.tolist() == [number % 3 for number in (5, 4, 3, 2, 1, 0)]
    assert levels(test) == pytest.approx([level(number % 3, number) for number in (5, 4, 3, 2, 1, 0)], abs=2)


def test_grey_pictures_have_three_equal_channels(root):
    train, _ = TinyImageNet(str(root)).load()
    red, green, blue = train.inputs[0]
    assert (red == green).all()  # the grey one
    assert (green == blue).all()
    assert (train.inputs[1, 0] != train.inputs[1, 2]).any()


def test_classes_have_their_words_or_else_their_numbers_in_wordnet(root):
    data = TinyImageNet(str(root))
    data.load()
    assert data.class_names == ("Egyptian cat", "goldfish", "n04067472")
    (root / "tiny-imagenet-200/words.txt").unlink()
    data.load()
    assert data.class_names == ("n02124075", "n01443537", "n04067472")


def test_missing_files_say_where_to_get_them(tmp_path):
    with pytest.raises(PflError, match=r"^data\.root: no 'wnids\.txt' in .*tiny-imagenet-200/\); download http"):
        TinyImageNet(str(tmp_path)).load()
