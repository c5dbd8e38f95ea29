import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.data import Labels, NaturalUsers, Population
from pfl_lightning.errors import PflError


def split(users):
    return Labels(np.zeros(len(users), int), np.array(users, int))


def run(partition, clients, *users, seed=0):
    population = Population(clients, np.ones(clients))
    return partition([split(each) for each in users], 1, population, np.random.default_rng(seed))


def places(user, users):
    return [place for place, each in enumerate(users) if each == user]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(0, 99), st.data())
def test_every_client_has_all_samples_of_one_user(train, seed, data):
    test = data.draw(st.permutations(train))
    clients = data.draw(st.integers(1, len(set(train))))
    parts = run(NaturalUsers(), clients, train, test, seed=seed)
    chosen = [train[part[0]] for part in parts[0]]
    assert len(set(chosen)) == clients
    for users, own in zip((train, test), parts, strict=True):
        assert [part.tolist() for part in own] == [places(user, users) for user in chosen]


def test_users_are_drawn_at_random():
    users = np.repeat(np.arange(5), 3)
    first = [users[run(NaturalUsers(), 2, users, seed=seed)[0][0][0]] for seed in range(500)]
    # binomial(500, 1/5): standard deviation 9
    np.testing.assert_allclose(np.bincount(first, minlength=5), 100, atol=36)


def test_only_users_with_enough_samples_in_both_splits_together_are_drawn():
    # users 0, 1 and 2 have 5, 4 and 6 samples
    train, test = [0, 0, 0, 1, 1, 1, 2], [0, 0, 1, 2, 2, 2, 2, 2]
    parts, _ = run(NaturalUsers(5), 2, train, test)
    assert sorted(map(len, parts)) == [1, 3]
    with pytest.raises(PflError, match=r"data\.num_clients must be at most 2, the users with at least 5 samples"):
        run(NaturalUsers(5), 3, train, test)


def test_user_that_misses_in_a_split_is_not_drawn():
    # user 0 has no training samples and user 3 no test samples
    parts, test_parts = run(NaturalUsers(), 2, [1, 2, 3, 3], [0, 1, 1, 2])
    assert sorted(part.tolist() for part in parts) == [[0], [1]]
    assert sorted(part.tolist() for part in test_parts) == [[1, 2], [3]]
    with pytest.raises(PflError, match=r"data\.num_clients must be at most 2, .* got 3$"):
        run(NaturalUsers(), 3, [1, 2, 3, 3], [0, 1, 1, 2])
    # numbers without samples are no users
    assert sorted(part.tolist() for part in run(NaturalUsers(), 2, [7, 2, 7])[0]) == [[0, 2], [1]]


def test_data_without_users_is_refused():
    nameless = Labels(np.zeros(4, int))
    with pytest.raises(PflError, match=r"^data\.partition: NaturalUsers needs a data set with users; "):
        NaturalUsers()([split([0, 1, 2, 3]), nameless], 1, Population(2, np.ones(2)), np.random.default_rng(0))
