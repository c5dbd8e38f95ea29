from errno import ENOENT
from os import strerror
from pathlib import Path

import pytest
import torch

from pfl_lightning.data import FederatedDataModule
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.transforms import Numbers, Tokens
from pfl_lightning.errors import PflError
from pfl_lightning.tasks import Classification, Regression

INPUTS, LABELS, USERS = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 1, 1])


class Given(FederatedDataModule):
    """A user's own data set, whose samples are given."""

    num_classes = 3
    input_shape = (2,)

    def __init__(self, train, test=None, **kinds):
        super().__init__()
        self.splits = LabelledData(*train), None if test is None else LabelledData(*test)
        vars(self).update(kinds)

    def load(self):
        return self.splits

    @property
    def task(self):
        return vars(self).get("task", super().task)

    def transform(self):
        return Numbers() if self.input_kind == "numbers" else Tokens()


def put(tensor, place, value):
    changed = tensor.clone()
    changed[place] = value
    return changed


TOKENS = {"input_kind": "tokens", "input_shape": (2, 9)}


@pytest.mark.parametrize(
    ("samples", "kinds", "words"),
    [
        ((INPUTS, LABELS[:3]), {}, "4 inputs with 3 targets"),
        ((INPUTS, LABELS, USERS[:1]), {}, "4 inputs with 1 users"),
        ((INPUTS, put(LABELS, 2, 3)), {}, "labels must be whole numbers from 0 to 2, got 3 in sample 2"),
        ((INPUTS, LABELS.int()), {}, r"targets must be whole numbers, int64, got torch\.int32"),
        ((INPUTS, LABELS[:, None]), {}, r"targets must have the shape \[samples\], got \[4, 1\]"),
        (
            (INPUTS, put(LABELS.float(), 1, torch.nan)),
            {"task": Regression().sized(1)},
            "targets must be .* got nan in sample 1",
        ),
        ((put(INPUTS, (1, 1), torch.inf), LABELS), {}, "inputs must be finite numbers, got inf in sample 1"),
        ((INPUTS, LABELS, put(USERS, 2, -1)), {}, "users must be numbers from 0, got -1 in sample 2"),
        ((torch.zeros(4, 3), LABELS), {}, r"inputs must have the shape \[2\], got \[3\]"),
        ((torch.full((4, 2), 9), LABELS), TOKENS, "tokens must be whole numbers from 0 to 8, got 9 in sample 0"),
    ],
)
def test_samples_that_nothing_can_be_learned_from_are_refused(samples, kinds, words):
    tokens = torch.zeros(4, 2, dtype=torch.int64)
    good = tokens if "input_kind" in kinds else INPUTS, LABELS.float() if "task" in kinds else LABELS
    for split, splits in {"training": [samples, good], "test": [good, samples]}.items():
        with pytest.raises(PflError, match=rf"^data\.root: Given in 'data': {split} samples: {words}"):
            Given(*splits, **kinds).setup()


def test_kept_classes_are_counted_from_zero():
    data = LabelledData(torch.arange(5) * 10, torch.tensor([2, 0, 3, 1, 2]), torch.tensor([7, 8, 9, 7, 8]))
    assert [tensor.tolist() for tensor in data.keep((1, 3))] == [[0, 30, 40], [1, 0, 1], [7, 7, 8]]
    assert LabelledData(data.inputs, data.targets).keep((1, 3)).users is None
    assert data.keep(None) is data


def test_joined_samples_stand_behind_the_first():
    one, other = (LabelledData(torch.tensor([n]), torch.tensor([n + 1]), torch.tensor([n + 2])) for n in (10, 20))
    assert [tensor.tolist() for tensor in one.join(other)] == [[10, 20], [11, 21], [12, 22]]
    assert one.join(None) is one
    assert one.join(other._replace(users=None)).users is None


def test_partitions_see_one_class_of_a_regression():
    data = LabelledData(torch.zeros(3, 2), torch.tensor([0.5, -1.0, 2.0]), torch.tensor([0, 1, 1]))
    assert [column.tolist() for column in data.labels(Regression())] == [[0, 0, 0], [0, 1, 1]]
    assert data._replace(targets=torch.tensor([2, 0, 1])).labels(Classification()).classes.tolist() == [2, 0, 1]


def test_tokens_may_be_of_a_type_that_does_not_hold_their_number():
    tokens = torch.full((4, 2), 255, dtype=torch.uint8)
    Given((tokens, LABELS), input_kind="tokens", input_shape=(2, 256)).load_checked()
    with pytest.raises(PflError, match="tokens must be whole numbers from 0 to 254, got 255 in sample 0"):
        Given((tokens, LABELS), input_kind="tokens", input_shape=(2, 255)).load_checked()


def test_a_file_that_cannot_be_read_is_named():
    data = Given((INPUTS, LABELS))
    data.load = lambda: Path("missing.npy").read_bytes()
    with pytest.raises(PflError, match=rf"^data\.root: cannot read 'missing\.npy' \({strerror(ENOENT)}\)$"):
        data.setup()
