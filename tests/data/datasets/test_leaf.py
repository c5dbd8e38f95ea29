"""What holds for every data set in LEAF's layout."""

import numpy as np
import pytest
import torch
from fakes.leaf import write_json

from pfl_lightning.data.datasets.leaf import leaf_files, load_leaf
from pfl_lightning.errors import PflError


def encode(inputs, targets):
    numbers = np.array(inputs, dtype=np.uint8).reshape(len(inputs), 1)
    return torch.from_numpy(numbers), torch.tensor(targets, dtype=torch.int64)


def load(root):
    return load_leaf(root, "make them", encode, "numbers", version=1)


@pytest.fixture
def root(tmp_path):
    # the order of users in files, and of files, is not that of their names
    write_json(tmp_path / "data/train/a.json", {"zoe": ([1, 2], [0, 1]), "adam": ([3], [2])})
    write_json(tmp_path / "data/train/b.json", {"mia": ([4], [3])})
    write_json(tmp_path / "data/test/a.json", {"mia": ([5], [4]), "zoe": ([6], [5])})
    return tmp_path


def test_users_are_numbered_by_their_sorted_names_in_both_splits(root):
    train, test = load(root)
    assert train.inputs.flatten().tolist() == [1, 2, 3, 4]
    assert train.targets.tolist() == [0, 1, 2, 3]
    assert train.users.tolist() == [2, 2, 0, 1]
    assert (test.inputs.flatten().tolist(), test.users.tolist()) == ([5, 6], [1, 2])


def test_all_samples_are_those_of_the_mapped_file(root):
    train, test = load(root)
    joined = train.join(test)
    for whole, first, second in zip(joined, train, test, strict=True):
        assert whole.data_ptr() == first.data_ptr()
        assert whole.tolist() == first.tolist() + second.tolist()


def test_data_folder_itself_is_a_root(root):
    data, found = root / "data", leaf_files(root, "")
    assert found == [[data / "train/a.json", data / "train/b.json"], [data / "test/a.json"]] == leaf_files(data, "")


def test_all_data_is_not_split(root):
    (root / "data/train").rename(root / "data/all_data")
    train, test = load(root)
    assert len(train.targets) == 4
    assert test is None


def test_folders_without_a_common_user_are_one(root):
    # LEAF's split by user
    write_json(root / "data/test/a.json", {"bob": ([5], [4])})
    train, test = load(root)
    assert train.inputs.flatten().tolist() == [1, 2, 3, 4, 5]
    assert train.users.tolist() == [3, 3, 0, 2, 1]
    assert test is None


def test_user_without_samples_counts_for_nothing_but_its_number(root):
    write_json(root / "data/train/b.json", {"bob": ([], []), "mia": ([4], [3])})
    assert load(root)[0].users.tolist() == [3, 3, 0, 2]


def test_missing_files_are_named_with_the_way_to_make_them(tmp_path):
    with pytest.raises(PflError, match=r"^data\.root: no LEAF files in .*data/train/\*\.json.*; make them$") as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)
