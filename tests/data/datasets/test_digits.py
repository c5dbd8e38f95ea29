import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from pfl_lightning.data import Digits


@pytest.fixture(scope="module")
def splits():
    return Digits().load()


def test_a_quarter_of_each_class_is_the_test_split(splits):
    train, test = (split.targets.bincount() for split in splits)
    assert (train.sum(), test.sum()) == (1347, 450)  # 1,797 digits in all
    assert train.shape == (10,)
    assert (test - (train + test) / 4).abs().max() < 1


def test_every_digit_is_there_once_with_its_label(splits):
    digits = load_digits()
    expected = np.c_[(digits.images * 255 / 16).round().reshape(-1, 64), digits.target]
    found = torch.cat([torch.cat([split.inputs.flatten(1), split.targets[:, None]], dim=1) for split in splits])
    assert splits[0].inputs.dtype == torch.uint8
    assert splits[0].inputs.shape[1:] == Digits.input_shape
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, expected.astype(int).tolist()))


def test_split_is_the_same_in_every_run(splits):
    again = Digits(seed=9, partition_seed=9).load()
    for split, other in zip(splits, again, strict=True):
        assert split.inputs.equal(other.inputs)
        assert split.targets.equal(other.targets)


def test_inputs_are_centred_and_scaled(splits):
    inputs = Digits().transform()(splits[0].inputs)
    assert inputs.mean().item() == pytest.approx(0, abs=0.01)
    assert inputs.std().item() == pytest.approx(1, abs=0.01)
