import numpy as np
import pytest
import torch
from fakes.harbox import ACTIVITIES, windows, write_harbox, write_windows
from sklearn.model_selection import train_test_split

from pfl_lightning.data.datasets import harbox
from pfl_lightning.data.datasets.harbox import HARBox
from pfl_lightning.errors import PflError


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harbox")
    write_harbox(folder)
    return folder


def test_window_is_read_back_time_by_time_without_the_first_column(tmp_path):
    values = np.arange(2 * 1000.0).reshape(2, 100, 10)
    write_windows(tmp_path, 7, "Walk", values)
    train, test = HARBox(root=str(tmp_path)).load()
    # of 2 samples, floor(2 / 5) + 1 = 1 is a test sample
    found = sorted([*train.inputs.tolist(), *test.inputs.tolist()])
    assert found == [[x for x in range(1000 * n, 1000 * n + 1000) if x % 10] for n in (0, 1)]
    assert train.inputs.dtype == torch.float32
    assert train.targets.tolist() == test.targets.tolist() == [3]


def test_users_and_classes_follow_the_names_of_folders_and_files_and_the_root_may_be_the_folder_itself(root):
    (train, test), others = (HARBox(root=str(place)).load() for place in (root, root / harbox.FOLDER))
    every = train.join(test)
    held = (5 * every.users + every.targets).bincount(minlength=60)
    # 12 users, 5 windows of each activity; only the first has not waved
    assert held.view(12, 5).tolist() == [[5, 5, 5, 5, 0]] + [[5] * 5] * 11
    for one, other in zip((train, test), others, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.users, other.users)


def test_users_count_in_the_order_of_their_numbers(tmp_path):
    for user in (10, 2, 1):
        write_windows(tmp_path, user, "Hop", np.full((5, 100, 10), float(user)))
    write_windows(tmp_path, "__MACOSX", "Hop", np.full((5, 100, 10), 99.0))
    train, test = HARBox(root=str(tmp_path)).load()
    every = train.join(test)
    pairs = set(zip(every.users.tolist(), every.inputs[:, 0].tolist(), strict=True))
    assert pairs == {(0, 1.0), (1, 2.0), (2, 10.0)}


def test_a_fifth_and_one_more_of_each_users_samples_are_for_testing(tmp_path):
    # floor(n / 5) + 1, but never the only one
    expected = {1: 0, 2: 1, 4: 1, 5: 2, 9: 2, 10: 3}
    for count in expected:
        write_windows(tmp_path, count, "Hop", np.zeros((count, 100, 10)))
    _, test = HARBox(root=str(tmp_path)).load()
    assert test.users.bincount(minlength=6).tolist() == list(expected.values())


def test_test_samples_are_those_of_scikit_learn(tmp_path):
    # DePRL's code: a user's windows class by class, and train_test_split with random_state 0
    order, random = list(ACTIVITIES), np.random.default_rng(1)
    values = {activity: windows(random, activity, 4).round(4) for activity in order}
    for activity in order:
        write_windows(tmp_path, 3, activity, values[activity])
    inputs = np.concatenate([values[activity][:, :, 1:].reshape(-1, 900) for activity in order]).astype(np.float32)
    _, expected = train_test_split(inputs, test_size=int(0.2 * 20) + 1, random_state=0)
    _, test = HARBox(root=str(tmp_path)).load()
    assert sorted(map(tuple, test.inputs.tolist())) == sorted(map(tuple, expected.tolist()))


def test_standardized_features_have_mean_zero_and_deviation_one_or_are_zero_if_they_never_change(root, tmp_path):
    (plain, _), (train, _) = HARBox(root=str(root)).load(), HARBox(root=str(root), standardize=True).load()
    np.testing.assert_allclose(train.inputs.mean(0), np.zeros(900), atol=1e-5)
    np.testing.assert_allclose(train.inputs.std(0, correction=0), np.ones(900), rtol=1e-4)
    np.testing.assert_array_equal(plain.targets, train.targets)
    write_windows(tmp_path, 1, "Hop", np.full((5, 100, 10), 3.0))
    assert not any(split.inputs.any() for split in HARBox(root=str(tmp_path), standardize=True).load())


def test_activity_that_moves_to_another_user_does_so_in_spite_of_the_cache(tmp_path):
    for user in (1, 2):
        write_windows(tmp_path, user, "Call", np.zeros((3, 100, 10)))
    write_windows(tmp_path, 1, "Wave", np.zeros((2, 100, 10)))
    HARBox(root=str(tmp_path)).load()
    folder = tmp_path / harbox.FOLDER
    (folder / "2").rename(folder / "3")
    (folder / "2").mkdir()
    (folder / "1/Wave_train.txt").rename(folder / "2/Wave_train.txt")  # the files keep their order
    train, test = HARBox(root=str(tmp_path)).load()
    assert train.join(test).users.bincount().tolist() == [3, 2, 3]


def test_missing_files_say_where_to_get_them(tmp_path):
    with pytest.raises(PflError, match=r"^data\.root: no HARBox in .*<user>/<activity>_train\.txt.*; download http"):
        HARBox(root=str(tmp_path)).load()
