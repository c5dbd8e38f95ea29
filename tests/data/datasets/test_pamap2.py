import numpy as np
import pytest
import torch
from fakes.pamap2 import rows, write_person

from pfl_lightning.data import PAMAP2
from pfl_lightning.errors import PflError

# hand, chest, ankle: acceleration of 16 g, angular velocity, magnetic field; columns count from 1 in the readme
COLUMNS = [5, 6, 7, 11, 12, 13, 14, 15, 16, 22, 23, 24, 28, 29, 30, 31, 32, 33, 39, 40, 41, 45, 46, 47, 48, 49, 50]


def table(activities):
    """Rows of which each number tells its row and its column, ``100 row + column``."""
    values = 100.0 * np.arange(len(activities))[:, None] + np.arange(1, 55)
    values[:, 1] = activities
    return values


def test_windows_begin_every_128_rows_of_a_stretch_and_none_has_two_activities(tmp_path):
    # 512 rows have 3 windows; of 255 there is none
    write_person(tmp_path, 103, table(np.repeat([0, 24, 9, 1, 24], [10, 512, 300, 256, 255])))
    raw, test = PAMAP2(root=str(tmp_path)).read()
    assert test is None
    assert raw.inputs.shape == (4, 27, 256)
    starts = {10: 11, 138: 11, 266: 11, 822: 0}  # first row and class
    found = {int(window[0, 0] // 100): target for window, target in zip(raw.inputs, raw.targets, strict=True)}
    assert found == starts
    assert (raw.class_names[0], raw.class_names[11]) == ("lying", "rope jumping")
    assert raw.clients.tolist() == [103] * 4
    for window in raw.inputs.numpy():
        start = window[0, 0] // 100
        np.testing.assert_array_equal(window, 100 * (start + np.arange(256)) + np.array(COLUMNS)[:, None])


def test_a_gap_is_filled_in_on_a_straight_line_and_held_at_the_ends(tmp_path):
    values = table(np.ones(256))
    values[[0, 7, 8, 255], 4] = np.nan
    write_person(tmp_path, 101, values)
    raw, _ = PAMAP2(root=str(tmp_path)).read()
    expected = 100.0 * np.arange(256) + 5
    expected[[0, 255]] = expected[[1, 254]]
    np.testing.assert_allclose(raw.inputs[0, 0], expected)


def test_held_out_windows_share_no_row_with_training_windows_and_have_each_activity(tmp_path):
    for person, lengths in {101: [3000, 1000, 2000], 102: [900, 2600, 1500]}.items():
        write_person(tmp_path, person, table(np.repeat([4, 5, 4], lengths)))
    data = PAMAP2(root=str(tmp_path), standardize=False)
    data.setup()
    for client in (0, 1):
        starts = {}
        for split in ("train", "val", "test"):
            examples = data.tables[split].examples(torch.tensor([client]))
            index = examples.index[0]
            starts[split] = examples.samples.inputs[index, 0, 0] // 100
            assert examples.samples.targets[index].unique().tolist() == [3, 4]
        for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
            assert (starts[one][:, None] - starts[other]).abs().min() >= 256


def test_windows_of_unequal_activities_lie_side_by_side(tmp_path):
    # 4 windows of walking and 2 of running: at 1/8, 3/8, 5/8, 7/8 and at 1/4, 3/4 of the way
    write_person(tmp_path, 101, table(np.repeat([4, 5], [640, 384])))
    data = PAMAP2(root=str(tmp_path))
    raw, _ = data.read()
    assert (raw.inputs[:, 0, 0] // 100).tolist() == [0, 640, 128, 256, 768, 384]
    # the two of running are three places apart
    assert data.overlap == 3


def test_each_person_is_a_client(tmp_path):
    random = np.random.default_rng(0)
    for person in (101, 105):
        write_person(tmp_path, person, rows(random, np.repeat([1, 2], [1500, 1500])))
    data = PAMAP2(root=str(tmp_path))
    data.setup()
    assert sorted(data.client_names) == ["101", "105"]
    assert "Protocol alone" in data.understood


def test_missing_files_say_where_to_get_them(tmp_path):
    with pytest.raises(PflError, match=r"^data\.root: no PAMAP2 in .*Protocol/subject\*\.dat.*; download http"):
        PAMAP2(root=str(tmp_path)).load()
