import io

import numpy as np
import pytest
from rich.console import Console

from pfl_lightning.report import partition_card, partition_figure, partition_table

# clients x classes; client 2 has test samples alone, as one of Delta-FL's test devices
COUNTS = {
    "train": np.array([[30, 0, 10], [0, 5, 5], [0, 0, 0], [1, 0, 0]]),
    "val": np.zeros((4, 3), dtype=int),
    "test": np.array([[0, 0, 0], [0, 0, 0], [2, 2, 2], [0, 0, 0]]),
}


def text(counts):
    told = io.StringIO()
    Console(file=told, width=120).print(partition_table(counts))
    return [line.split() for line in told.getvalue().replace("│", " ").splitlines()]


def test_the_table_is_over_the_clients_that_hold_samples_of_a_split():
    # train: sizes 40, 10 and 1; classes 2, 2 and 1; no row for the empty validation split
    rows = [words for words in text(COUNTS) if words[:1] in (["train"], ["val"], ["test"])]
    assert rows == [
        ["train", "3", "51", "1", "10", "40", "3", "2"],
        ["test", "1", "6", "6", "6", "6", "3", "3"],
    ]


def test_the_figure_has_one_bubble_per_class_that_a_client_holds_with_its_area_by_samples():
    bubbles, sizes = partition_figure(COUNTS, "Toy").axes
    assert sizes.get_yscale() == "log", "of 1 to 40 samples"
    (points,) = bubbles.collections
    # clients 0, 1 and 3 train; they stand at the places 0, 1 and 2
    assert points.get_offsets().tolist() == [[0, 0], [0, 2], [1, 1], [1, 2], [2, 0]]
    areas = points.get_sizes()
    assert areas / areas[0] == pytest.approx([1, 10 / 30, 5 / 30, 5 / 30, 1 / 30])
    assert [label.get_text() for label in bubbles.get_xticklabels()] == ["0", "1", "3"]


def test_the_figure_shows_a_hundred_of_many_clients_and_says_so():
    counts = {"train": np.ones((1730, 2), dtype=int)}
    bubbles, sizes = partition_figure(counts, "Toy").axes
    assert len(bubbles.collections[0].get_offsets()) == 200
    assert "1,730 clients, 100 of them shown" in bubbles.get_title()
    assert sizes.lines[0].get_ydata().tolist() == [2] * 1000


def test_the_card_has_the_bubbles_of_the_figure_in_letters_that_can_be_read_when_small():
    (card,), bubbles = partition_card(COUNTS, "Toy").axes, partition_figure(COUNTS, "Toy").axes[0]
    assert card.collections[0].get_offsets().tolist() == bubbles.collections[0].get_offsets().tolist()
    assert card.get_title() == "Toy: 3 clients"
    points_wide = 72 * card.figure.get_figwidth()
    texts = [card.title, card.xaxis.label, card.yaxis.label, *card.get_xticklabels(), *card.get_yticklabels()]
    assert min(text.get_fontsize() for text in texts) * 310 / points_wide > 10, "pixels on a card that is 310 wide"
