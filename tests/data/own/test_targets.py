import numpy as np
import pytest
import torch

from pfl_lightning.data import Arrays
from pfl_lightning.data.own.raw_data import RawData
from pfl_lightning.data.own.targets import encode_targets
from pfl_lightning.tasks import Classification, MultiLabel, Regression

LABELS = np.arange(60) % 3


def encode(targets, target_type=None, standardize=False, **options):
    return encode_targets([RawData(None, targets, **options)], target_type, standardize)


@pytest.mark.parametrize("values", [[1, 2, 7], [100, 150, 199], [-1, 1], [2.0, 4.0], ["a", "b", "c"]])
def test_classes_are_numbered_in_order_and_keep_their_names(values):
    targets = np.array(values)[np.arange(60) % len(values)]
    found = encode(targets, "classes")
    assert found.names == tuple(str(value).removesuffix(".0") for value in values)
    assert found.task.outputs == len(values)
    np.testing.assert_array_equal(found.splits[0], np.arange(60) % len(values))


@pytest.mark.parametrize(
    ("targets", "target_type", "task", "expected"),
    [
        (LABELS, None, Classification, LABELS),
        (LABELS, "numbers", Regression, LABELS),
        (LABELS * 1.0, "classes", Classification, LABELS),
        (LABELS * 1.0, "numbers", Regression, LABELS),
        (LABELS + 0.5, None, Regression, LABELS + 0.5),
        (np.eye(3)[LABELS], "classes", Classification, LABELS),
        (np.eye(3)[LABELS], "labels", MultiLabel, np.eye(3)[LABELS]),
        (np.eye(3, dtype=int)[LABELS], "numbers", Regression, np.eye(3)[LABELS]),
        (np.arange(60.0), None, Regression, np.arange(60)),
    ],
)
def test_the_option_decides_where_targets_can_be_several_things(targets, target_type, task, expected):
    found = encode(targets, target_type)
    assert type(found.task) is task
    np.testing.assert_array_equal(found.splits[0], expected)
    assert found.splits[0].dtype == {Classification: torch.int64, MultiLabel: torch.int8}.get(task, torch.float32)


def test_what_targets_were_taken_for_is_said():
    assert encode(np.arange(60) % 9).understood == "9 classes: 0, 1, 2, 3, ... 8"
    assert encode(LABELS, class_names=["a", "b", "c", "d"]).understood == "4 classes: a, b, c, d; without samples: d"
    assert encode(LABELS / 7).understood == "a regression, from 0 to 0.285714"
    learned = "networks learn (number - 0.1429) / 0.1166"  # 1 / 7 and sqrt(2 / 3) / 7
    assert encode(LABELS / 7, standardize=True).understood == f"a regression, from 0 to 0.285714; {learned}"


def test_numbers_are_standardised_by_those_of_training_and_one_value_is_warned_of():
    splits = [RawData(None, np.array([[0.5, 7.5], [2.5, 7.5]])), RawData(None, np.array([[9.5, 0.5]]))]
    with pytest.warns(UserWarning, match=r"^data: all training targets are alike in a column$"):
        found = encode_targets(splits, None, standardize=True)
    assert (found.task.mean, found.task.deviation) == ([1.5, 7.5], [1.0, 1.0])
    assert found.splits[1].tolist() == [[9.5, 0.5]]


def test_whole_numbers_some_of_which_are_there_once_can_be_a_count():
    visits = np.concatenate([np.arange(20).repeat(9), np.arange(20, 30)])
    with pytest.raises(
        ValueError, match=r"^targets are 30 whole numbers, of which 10 are there once; data.target_type"
    ):
        encode(visits)
    assert type(encode(visits, "classes").task) is Classification
    assert type(encode(visits, class_names=[*map(str, range(30))]).task) is Classification
    assert type(encode(visits.astype(str)).task) is Classification


def test_a_class_beyond_the_names_is_refused():
    with pytest.raises(ValueError, match=r"^labels must be whole numbers from 0 to 1, got 2 in sample 2$"):
        encode(LABELS, class_names=["a", "b"])


def test_classes_of_test_samples_count():
    data = Arrays(np.random.rand(60, 2), LABELS % 2, test=(np.random.rand(6, 2), np.arange(6) % 3))
    train, test = data.load()
    assert (data.class_names, train.targets.max(), test.targets.max()) == (("0", "1", "2"), 1, 2)
