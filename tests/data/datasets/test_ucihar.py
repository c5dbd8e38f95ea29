import numpy as np
import pytest
import torch
from fakes.ucihar import write_split, write_ucihar

from pfl_lightning.data import UCIHAR
from pfl_lightning.errors import PflError


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ucihar")
    write_ucihar(folder)
    return folder


def test_signals_are_channels_in_their_order_and_activities_count_from_0(tmp_path):
    values = np.arange(4 * 9 * 128.0).reshape(4, 9, 128)
    write_split(tmp_path, "train", values[:3], [6, 1, 3], [4, 4, 2])
    write_split(tmp_path, "test", values[3:], [2], [3])
    raw, test = UCIHAR(root=str(tmp_path)).read()
    assert test is None
    np.testing.assert_array_equal(raw.inputs, values)
    assert raw.targets.tolist() == [5, 0, 2, 1]
    assert raw.clients.tolist() == [4, 4, 2, 3]
    assert [raw.class_names[place] for place in (5, 0, 2, 1)] == [
        "laying",
        "walking",
        "walking downstairs",
        "walking upstairs",
    ]


def test_each_person_of_either_split_is_a_client_with_test_windows_of_their_own(root):
    data = UCIHAR(root=str(root))
    data.setup()
    assert sorted(data.client_names) == ["1", "2", "5"]
    assert data.input_shape == (9, 128)
    # of 24 windows a quarter for testing; the next of an activity is 6 further on, so 6 before them are left out
    assert data.overlap == 6
    counts = {split: table.counts.tolist() for split, table in data.tables.items()}
    assert counts == {"train": [5] * 3, "val": [1] * 3, "test": [6] * 3}
    assert "train and test, which are other people, are pooled" in data.understood


def test_held_out_windows_share_no_step_with_training_windows_and_have_each_activity(tmp_path):
    values = np.arange(160.0)[:, None, None] * np.ones((160, 9, 128))  # each window is its place in the file
    runs = np.repeat([1, 4, 1, 2], 20)
    write_split(tmp_path, "train", values[:80], runs, np.full(80, 7))
    write_split(tmp_path, "test", values[80:], runs, np.full(80, 8))
    data = UCIHAR(root=str(tmp_path), standardize=False)
    data.setup()
    for client in (0, 1):
        places = {}
        for split in ("train", "val", "test"):
            examples = data.tables[split].examples(torch.tensor([client]))
            index = examples.index[0]
            places[split] = examples.samples.inputs[index, 0, 0]
            assert examples.samples.targets[index].unique().tolist() == [0, 1, 3]
        for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
            steps = (places[one][:, None] - places[other]).abs()
            same_run = places[one][:, None] // 20 == places[other] // 20
            assert steps[same_run].min() >= 2, "neighbours share half of their steps"


def test_each_channel_is_standardized(root):
    train, _ = UCIHAR(root=str(root)).load()
    torch.testing.assert_close(train.inputs.mean((0, 2)), torch.zeros(9), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.inputs.std((0, 2), correction=0), torch.ones(9), atol=1e-5, rtol=0)


def test_the_root_may_be_the_folder_itself(root):
    one, other = (UCIHAR(root=str(place)).load()[0] for place in (root, root / "UCI HAR Dataset"))
    assert torch.equal(one.inputs, other.inputs)


def test_missing_files_say_where_to_get_them(tmp_path):
    with pytest.raises(PflError, match=r"^data\.root: no UCI HAR in .*UCI HAR Dataset/train.*; download http"):
        UCIHAR(root=str(tmp_path)).load()
