import numpy as np
import pytest
from fakes.medmnist import write_medmnist

from pfl_lightning.data import Arrays, MedMNIST
from pfl_lightning.errors import PflError
from pfl_lightning.tasks import Classification, MultiLabel


def test_val_follows_train_and_test_is_the_test_split(tmp_path):
    write_medmnist(tmp_path, sizes=(20, 7, 11))
    stored = np.load(tmp_path / "pathmnist.npz")
    data = MedMNIST(str(tmp_path))
    train, test = data.load()
    # channels last in the file, first here
    expected = np.concatenate([stored["train_images"], stored["val_images"]]).transpose(0, 3, 1, 2)
    assert train.inputs.tolist() == expected.tolist()
    assert train.targets.tolist() == [*(np.arange(20) % 9), *(np.arange(7) % 9)]
    assert test.inputs.tolist() == stored["test_images"].transpose(0, 3, 1, 2).tolist()
    assert test.targets.tolist() == [*(np.arange(11) % 9)]
    assert data.class_names[8] == "colorectal adenocarcinoma epithelium"


def test_the_splits_are_those_of_arrays_and_the_official_ones(tmp_path):
    write_medmnist(tmp_path, sizes=(20, 7, 11))
    data, arrays = (
        kind(place, num_clients=1)
        for kind, place in ((MedMNIST, str(tmp_path)), (Arrays, str(tmp_path / "pathmnist.npz")))
    )
    for each in (data, arrays):
        each.setup()
    assert {split: len(table.flat) - 1 for split, table in data.tables.items()} == {"train": 20, "val": 7, "test": 11}
    assert data.fingerprint() == arrays.fingerprint()


def test_the_larger_pictures_are_in_a_file_of_their_own_and_grey_ones_have_a_channel(tmp_path):
    write_medmnist(tmp_path, "bloodmnist", (16, 8, 8), (28, 28, 3), 8)
    write_medmnist(tmp_path, "bloodmnist", (16, 8, 8), (64, 64, 3), 8)
    write_medmnist(tmp_path, "breastmnist", (16, 8, 8), (28, 28), 2)
    for options, shape, classes in (
        ({"name": "bloodmnist"}, (3, 28, 28), 8),
        ({"name": "bloodmnist", "size": 64}, (3, 64, 64), 8),
        ({"name": "breastmnist"}, (1, 28, 28), 2),
    ):
        data = MedMNIST(str(tmp_path), **options)
        data.load()
        assert (data.input_shape, data.num_classes) == (shape, classes)
        assert isinstance(data.task, Classification)


def test_chestmnist_has_several_labels_or_none_for_each_picture(tmp_path):
    write_medmnist(tmp_path, "chestmnist", (28, 14, 14), (28, 28), 14)
    data = MedMNIST(str(tmp_path), name="chestmnist")
    train, _ = data.load()
    assert isinstance(data.task, MultiLabel)
    assert train.targets.tolist() == [
        [int(i % 14 == k and i % 2 == 0) for k in range(14)] for i in (*range(28), *range(14))
    ]
    assert data.class_names[13] == "hernia"


def test_sets_of_volumes_are_refused_by_name():
    with pytest.raises(PflError, match=r"^data\.name must be one of pathmnist, .*, got organmnist3d$"):
        MedMNIST(name="organmnist3d")
