import pytest
from fakes.svhn import write_svhn
from scipy.io import loadmat
from torchvision import datasets

from pfl_lightning.data import SVHN
from pfl_lightning.errors import PflError


@pytest.fixture
def root(tmp_path):
    write_svhn(tmp_path, sizes=(40, 20))
    return tmp_path


def test_the_samples_are_those_of_torchvision_and_label_10_is_the_digit_0(root, monkeypatch):
    monkeypatch.setattr(datasets.SVHN, "_check_integrity", lambda self: True)
    data = SVHN(str(root))
    for split, samples in zip(("train", "test"), data.load(), strict=True):
        expected = datasets.SVHN(str(root), split=split)
        assert samples.inputs.tolist() == expected.data.tolist()
        assert samples.targets.tolist() == expected.labels.tolist()
        written = loadmat(root / f"{split}_32x32.mat")["y"][:, 0]
        assert samples.targets[written == 10].tolist() == [0] * (len(written) // 10)
        assert samples.targets[written == 9].tolist() == [9] * (len(written) // 10)
    assert data.class_names == tuple("0123456789")


def test_the_axes_of_a_picture_are_channels_rows_and_columns(root):
    train, _ = SVHN(str(root)).load()
    # the fake's lightest column is that of the label, from 1 to 10
    lightest = train.inputs.float().mean((1, 2)).argmax(1)
    assert (lightest % 10).tolist() == train.targets.tolist()


def test_missing_files_say_where_to_get_them(tmp_path):
    with pytest.raises(PflError, match=r"^data\.root: no 'train_32x32\.mat' in .*; download http.*/train_32x32\.mat$"):
        SVHN(str(tmp_path)).load()
