import torch
from fakes.cohorts import Identity, deal_out

from pfl_lightning.client import Samples, largest_first


def cohort(counts=(3, 0, 5, 2)):
    total = sum(counts)
    return deal_out(Samples(torch.arange(total)[:, None], torch.arange(total), Identity()), counts)


def present_targets(examples):
    return examples.targets(examples.positions)[examples.present].tolist()


def test_places_are_examples_or_padding():
    examples = cohort()
    assert examples.positions.tolist() == [list(range(5))] * 4
    assert examples.present.sum(1).tolist() == examples.counts.tolist() == [3, 0, 5, 2]
    assert examples.present[3].tolist() == [True, True, False, False, False]


def test_the_examples_of_each_class_are_counted_without_padding():
    examples = cohort()
    examples.samples.targets = torch.tensor([0, 2, 2, 1, 1, 1, 1, 0, 0, 2])
    assert examples.class_counts(3).tolist() == [[1, 0, 2], [0, 0, 0], [1, 4, 0], [1, 0, 1]]


def test_some_clients_can_be_taken():
    subset = cohort().take(torch.tensor([True, False, False, True]))
    assert subset.ids.tolist() == subset.host_ids.tolist() == [0, 3]
    assert subset.counts.tolist() == [3, 2]
    assert subset.longest == subset.index.shape[1] == 3
    assert present_targets(subset) == [0, 1, 2, 8, 9]
    assert len(cohort().take(torch.zeros(4, dtype=torch.bool))) == 0


def test_a_few_examples_of_each_client_are_drawn_without_padding():
    examples = cohort((50, 3, 0))
    drawn = [examples.sample((seed,), 8) for seed in (0, 0, 1)]
    assert drawn[0].counts.tolist() == [8, 3, 0]
    seen = [*map(present_targets, drawn)]
    assert seen[0] == seen[1] != seen[2]
    assert len(set(seen[0])) == len(seen[0])
    assert max(seen[0][:8]) < 50
    assert sorted(seen[0][8:]) == [50, 51, 52]
    assert present_targets(examples.rows(1, 2).sample((0,), 8)) == seen[0][8:], "whatever others are there"


def test_even_pieces_of_enough_clients_hold_none_with_less_than_half_of_the_largest():
    examples = cohort((9, 8, *[5] * 10, 4, 3, *[2] * 8, 1))

    def pieces(size, even):
        return [(start, piece.counts.tolist()) for start, piece in examples.split(size, even)]

    assert pieces(15, even=False) == [(0, [9, 8, *[5] * 10, 4, 3, 2]), (15, [*[2] * 7, 1])]
    assert pieces(15, even=True) == [(0, [9, 8, *[5] * 10]), (12, [4, 3, *[2] * 8]), (22, [1])]
    assert pieces(11, even=True) == [(0, [9, 8, *[5] * 9]), (11, [5, 4, 3, *[2] * 7]), (21, [2, 1])], "10 are enough"
    assert [piece.longest for _, piece in examples.split(15, even=True)] == [9, 4, 1]


def test_windows_hold_every_example_once_and_nobody_who_has_none_left():
    examples, seen = cohort(), [[] for _ in range(4)]
    for rows, window in examples.windows(4):
        clients = torch.arange(4)[rows].tolist()
        assert window.counts.min() > 0
        assert window.index.numel() <= max(4, len(clients))
        assert window.ids.tolist() == clients
        for row, client in enumerate(clients):
            seen[client] += present_targets(window.rows(row, row + 1))
    # 3 clients with 1 position, then 3, then 2, then 1 client with the last two
    assert [len(window) for _, window in examples.windows(4)] == [3, 3, 2, 1]
    assert seen == [[0, 1, 2], [], [3, 4, 5, 6, 7], [8, 9]]


def test_a_window_of_all_clients_is_no_copy():
    ((rows, window),) = cohort((2, 2)).windows(100)
    assert rows == slice(None)
    assert window.longest == 2


def test_the_largest_come_first_and_equal_ones_as_they_are():
    counts = torch.tensor([2, 5, 2, 7])
    assert largest_first(counts).tolist() == [3, 1, 0, 2]
    assert not cohort().is_largest_first
    assert cohort((5, 3, 3, 1)).is_largest_first
