import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.data import Dirichlet, EqualDirichlet, GroupedDirichlet, Population
from pfl_lightning.data.partitions import dirichlet
from pfl_lightning.errors import PflError

CIFAR10, FASHION_MNIST, CIFAR100, HARBOX = (10, 5000), (10, 6000), (100, 500), (5, 5500)  # classes, samples of each


def draw(partition, class_sizes, clients, seed=0):
    population = Population(clients, np.ones(clients))
    return partition.shares(np.asarray(class_sizes), population, np.random.default_rng(seed))


def draw_groups(clients, group_size, seed):
    """The groups of a grouped draw, which are the first that its generator draws."""
    return np.array_split(np.random.default_rng(seed).permutation(clients), clients // group_size)


def mean_entropy(shares):
    """Mean over the clients of the entropy of their classes; classes are of equal size."""
    mix = shares / shares.sum(0) + 1e-300
    return -(mix * np.log(mix)).sum(0).mean()


@pytest.mark.parametrize(
    "make",
    [lambda alpha: Dirichlet(alpha, 1), GroupedDirichlet, EqualDirichlet],
    ids=["Dirichlet", "GroupedDirichlet", "EqualDirichlet"],
)
def test_larger_alpha_mixes_the_classes_more(make):
    def entropy(alpha):
        return np.mean([mean_entropy(draw(make(alpha), [500] * 10, 20, seed)) for seed in range(5)])

    assert entropy(0.1) < entropy(0.5) < entropy(100)
    # that of ten equal classes is ln 10; drawing 250 samples at random takes some 9 / 500 of it
    np.testing.assert_allclose(entropy(1e6), np.log(10), atol=0.03)


def test_dirichlet_gives_nothing_more_to_a_client_that_has_its_fair_number():
    sizes = np.array([50, 200, 100, 150])
    for seed in range(20):
        counts = sizes[:, None] * draw(Dirichlet(0.5, 1), sizes, 8, seed)
        before = counts.cumsum(0) - counts
        assert before[counts > 0].max() < sizes.sum() / 8


@pytest.mark.parametrize("alpha", [0.1, 4.0])
def test_first_class_is_shared_out_by_the_dirichlet_law(alpha, monkeypatch):
    # nobody is full before, so a share has mean 1/8 and variance (1/8)(7/8) / (8 alpha + 1), where no draw is rejected
    monkeypatch.setattr(dirichlet, "TRIES", 1)
    shares = np.stack([draw(Dirichlet(alpha, 1), [1000, 7000], 8, seed)[0] for seed in range(2000)])
    np.testing.assert_allclose(shares.mean(0), 1 / 8, atol=0.025)
    np.testing.assert_allclose(shares.var(), 7 / 64 / (8 * alpha + 1), rtol=0.1)


@pytest.mark.parametrize(
    ("classes", "clients", "alpha", "tries"),
    [
        (CIFAR10, 128, 0.1, 100),
        (FASHION_MNIST, 128, 0.1, 100),
        (HARBOX, 128, 0.3, 100),
        (CIFAR100, 128, 0.1, 1),
        (CIFAR100, 128, 0.5, 1),
    ],
)
def test_possible_draws_need_no_repair(classes, clients, alpha, tries, monkeypatch):
    # after 6, 6, 7, 1 and 1 draws in a simulation of ours (docs/evidence/derivations.md, Dirichlet draws)
    monkeypatch.setattr(dirichlet, "TRIES", tries)
    number, size = classes
    for seed in range(2):
        assert size * draw(Dirichlet(alpha, 10), [size] * number, clients, seed).sum(0).min() >= 10


@pytest.mark.parametrize(("classes", "clients", "least"), [(HARBOX, 128, 2), (HARBOX, 64, 10), ((5, 400), 64, 10)])
def test_impossible_draws_are_repaired(classes, clients, least, share_out):
    # with alpha 0.1 and 5 classes not reached in 3,000 draws of ours (docs/evidence/derivations.md, Dirichlet draws)
    number, size = classes
    labels = np.repeat(np.arange(number), size)
    assert size * draw(Dirichlet(0.1, least), [size] * number, clients).sum(0).min() < least
    with pytest.warns(match=rf" of {clients} clients had fewer than {least} training samples .* were moved to them$"):
        (parts,) = share_out(Dirichlet(0.1, least), [labels], clients)
    assert min(map(len, parts)) == least
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))


def test_impossible_draws_are_refused_on_request_and_possible_ones_are_the_same(share_out):
    labels = np.repeat(np.arange(5), 400)
    message = (
        r"data\.partition\.repair is refuse, but \d+ of 64 clients had fewer than 10 training samples "
        r"\(\d+ missing\); set move, or a larger data\.partition\.alpha, "
    )
    with pytest.raises(PflError, match=message):
        share_out(Dirichlet(0.1, repair="refuse"), [labels], 64)
    parts, same = (share_out(Dirichlet(repair=each), [labels], 8)[0] for each in ("move", "refuse"))
    assert all(map(np.array_equal, parts, same))


def test_every_group_has_its_part_of_every_class(share_out, class_counts):
    sizes = np.arange(400, 1400, 100)
    labels = np.repeat(np.arange(10), sizes)
    (parts,) = share_out(GroupedDirichlet(0.5, 10), [labels], 100)
    shares, counts = draw(GroupedDirichlet(0.5, 10), sizes, 100), class_counts(parts, labels, 10)
    for group in draw_groups(100, 10, seed=0):
        np.testing.assert_allclose(shares[:, group].sum(1), 0.1)
        # each of 10 counts is rounded by less than one
        np.testing.assert_allclose(counts[:, group].sum(1), sizes / 10, atol=10)


@pytest.mark.parametrize(("clients", "seed"), [(20, 0), (100, 1)])
def test_every_client_of_a_group_has_half_of_its_fair_number(clients, seed, share_out):
    # FedDF; CINIC-10 has 9,000 training images of each class, and rounding takes less than one of each
    shares = draw(GroupedDirichlet(0.5, 10), [9000] * 10, clients, seed)
    assert 9000 * shares.sum(0).min() >= 90_000 / clients / 2
    (parts,) = share_out(GroupedDirichlet(0.5, 10), [np.repeat(np.arange(10), 9000)], clients, seed)
    assert min(map(len, parts)) > 90_000 / clients / 2 - 10


def test_clients_below_half_of_their_fair_number_are_counted():
    # in groups of 10 that share 5 classes, which no draw of alpha 0.1 deals out that evenly; 1/20 of a class is fair
    with pytest.warns() as warned:
        shares = draw(GroupedDirichlet(0.1, 10), [1000] * 5, 100)
    assert [str(warning.message) for warning in warned] == [
        f"data.partition: {(shares.sum(0) < 1 / 40).sum()} of 100 clients have less than half of the fair number of "
        "training samples after 100 draws"
    ]


def test_groups_of_one_are_iid_and_others_differ_by_one_client():
    np.testing.assert_allclose(draw(GroupedDirichlet(0.1, 1), [30, 60], 6), 1 / 6)
    # 23 clients in 3 groups of 8, 8 and 7
    shares = draw(GroupedDirichlet(1.0, 10), [1000] * 3, 23)
    for group in np.array_split(np.random.default_rng(0).permutation(23), 3):
        np.testing.assert_allclose(shares[:, group].sum(1), len(group) / 23)
        assert len(group) in (7, 8)


@given(
    class_sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
    data=st.data(),
)
def test_equal_dirichlet_sizes_differ_by_at_most_one(class_sizes, alpha, data, share_out):
    clients = data.draw(st.integers(1, sum(class_sizes)))
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    (parts,) = share_out(EqualDirichlet(alpha), [labels], clients)
    assert np.ptp(list(map(len, parts))) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_equal_dirichlet_clients_share_a_class_that_too_many_want(seed):
    # with a tiny alpha each of 20 clients wants one class, which has enough for 5: n clients get 5/n of what they want,
    # to within the tenth that is drawn in a turn, and half of one more for those who lose theirs to others in the end
    counts = 1000 * draw(EqualDirichlet(1e-4), [1000] * 4, 20, seed)
    own, favourites = counts.max(0) / 200, counts.argmax(0)
    takers = np.bincount(favourites)[favourites]
    assert takers.max() > 5
    np.testing.assert_allclose(own, np.minimum(1, 5 / takers), atol=0.15)


def test_test_samples_of_a_class_without_training_samples_are_given_out(share_out):
    _, test_parts = share_out(EqualDirichlet(), [np.zeros(20, int), np.repeat([0, 1], 6)], 3)
    assert sorted(np.concatenate(test_parts)) == list(range(12))
