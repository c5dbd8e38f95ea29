import pytest
from fakes.flowers102 import KINDS, level, write_flowers102
from scipy.io import loadmat
from torchvision import datasets

from pfl_lightning.data import Flowers102
from pfl_lightning.errors import PflError

COUNT = 48  # levels tell so many pictures apart


@pytest.fixture
def root(tmp_path):
    write_flowers102(tmp_path, COUNT)
    return tmp_path


def test_the_samples_are_those_of_torchvision_with_valid_for_training(root, monkeypatch):
    monkeypatch.setattr(datasets.Flowers102, "_check_integrity", lambda self: True)
    for samples, names in zip(Flowers102(str(root)).load(), (["train", "val"], ["test"]), strict=True):
        splits = [datasets.Flowers102(str(root), split=name) for name in names]
        expected = [(picture.resize((64, 64)).getpixel((0, 0)), label) for split in splits for picture, label in split]
        assert samples.inputs.shape == (24, 3, 64, 64)
        assert samples.targets.tolist() == [label for _, label in expected]
        assert [tuple(pixel) for pixel in samples.inputs[:, :, 0, 0].tolist()] == [pixel for pixel, _ in expected]


def test_lists_in_no_order_and_labels_from_1_name_the_pictures(root):
    data = Flowers102(str(root), size=8)
    _, test = data.load()
    listed = loadmat(root / "flowers-102/setid.mat")["tstid"][0].tolist()
    assert listed != sorted(listed)
    assert test.inputs[:, 0, 0, 0].tolist() == pytest.approx([level(number) for number in listed], abs=1)
    # picture `number` has the label number % 6 + 1, which is the class number % 6
    assert test.targets.tolist() == [number % KINDS for number in listed]
    assert data.class_names[0] == "1"


def test_missing_files_say_where_to_get_them(tmp_path):
    with pytest.raises(PflError, match=r"^data\.root: no 'setid\.mat' in .*; download imagelabels\.mat, .* from http"):
        Flowers102(str(tmp_path)).load()
