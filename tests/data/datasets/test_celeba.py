import numpy as np
import pytest
from fakes.celeba import attributes, level, person, write_celeba, write_faces
from fakes.leaf import write_json

from pfl_lightning.data import CelebA
from pfl_lightning.errors import PflError
from pfl_lightning.tasks import MultiLabel

PEOPLE = 5  # with 30 pictures, whose levels tell them apart
NUMBERS = range(3, 31)  # the first two are of person 9


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("celeba")
    write_celeba(folder, PEOPLE)
    return folder


@pytest.fixture
def leaf(tmp_path):
    write_faces(tmp_path / "data/raw/img_align_celeba", 12)
    return tmp_path


def levels(samples):
    return samples.inputs.float().mean((1, 2, 3)).tolist()


def names(data, samples):
    return [data._names[user] for user in samples.users.tolist()]


@pytest.mark.parametrize("inner", ["", "celeba"])
def test_lists_in_different_orders_tell_whom_a_picture_shows_and_whether_they_smile(root, inner):
    data = CelebA(str(root / inner), size=8)
    samples, test = data.load()
    assert test is None
    assert samples.inputs.shape == (28, 3, 8, 8)
    assert levels(samples) == pytest.approx([level(number) for number in NUMBERS], abs=1)
    assert samples.targets.tolist() == [attributes(number)[2] for number in NUMBERS]
    assert names(data, samples) == [str(person(number, PEOPLE)) for number in NUMBERS]
    assert data.class_names == ("not Smiling", "Smiling")


def test_a_celebrity_is_a_client_who_is_tested_on_pictures_of_their_own(root):
    data = CelebA(str(root), size=8)
    data.setup()
    # person 9 has two pictures, fewer than 5
    assert {*data.client_names} == {"10", "11", "12", "13"}
    assert (data.tables["test"].counts > 0).all()
    assert sum(int(table.counts.sum()) for table in data.tables.values()) == 28


@pytest.mark.parametrize(("given", "columns"), [(None, [0, 1, 2, 3]), (["Young", "5_o_Clock_Shadow"], [3, 0])])
def test_several_attributes_are_labels_and_minus_1_is_none_that_is_unknown(root, given, columns):
    data = CelebA(str(root), attributes=given, size=8)
    samples, _ = data.load()
    assert isinstance(data.task, MultiLabel)
    assert samples.targets.tolist() == [[attributes(number)[column] for column in columns] for number in NUMBERS]


def test_leafs_files_name_pictures_in_the_raw_folder(leaf):
    train = {"ann": (["000003.jpg", "000001.jpg"], [1, 0]), "bob": (["000002.jpg"], [0])}
    write_json(leaf / "data/train/users.json", train)
    write_json(leaf / "data/test/users.json", {"bob": (["000005.jpg"], [1]), "ann": (["000004.jpg"], [0])})
    data = CelebA(str(leaf), size=8)
    train, test = data.load()
    assert levels(train) == pytest.approx([level(3), level(1), level(2)], abs=1)
    assert train.targets.tolist() == [1, 0, 0]
    assert names(data, train) == ["ann", "ann", "bob"]
    assert levels(test) == pytest.approx([level(5), level(4)], abs=1)
    assert names(data, test) == ["bob", "ann"]


def test_test_people_who_are_others_are_clients_like_those_for_training(leaf):
    for split, user, first in (("train", "ann", 1), ("test", "bob", 7)):
        faces = [f"{number:06}.jpg" for number in range(first, first + 6)]
        write_json(leaf / f"data/{split}/users.json", {user: (faces, [0, 1] * 3)})
    data = CelebA(str(leaf), size=8)
    data.setup()
    assert {*data.client_names} == {"ann", "bob"}
    # of 6 pictures round(6 / 4) = 2 are for testing
    np.testing.assert_array_equal(data.tables["test"].counts, [2, 2])


def test_leafs_files_only_have_smiles(leaf):
    write_json(leaf / "data/train/users.json", {"ann": (["000001.jpg"], [1])})
    with pytest.raises(PflError, match=r"^data\.attributes must be Smiling with LEAF's files, got Young$"):
        CelebA(str(leaf), attributes="Young").load()


def test_missing_files_say_where_to_get_them(tmp_path):
    with pytest.raises(
        PflError, match=r"^data\.root: no LEAF files in .*; download img_align_celeba\.zip, .* from http"
    ):
        CelebA(str(tmp_path)).load()
