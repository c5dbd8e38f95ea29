"""Data loading, evaluation and the figure of the benchmark."""

from dataclasses import replace

import pytest
import torch
from benchmarks import evaluation, loading
from benchmarks.figure import ratio_figure


@pytest.fixture
def ragged(tiny):
    return replace(tiny, cohort=12, samples=23)


def test_our_batches_have_the_samples_of_the_loaders(ragged):
    usual, ours = loading.UsualBatches(ragged), loading.OurBatches(ragged)
    loading.check_same_batches(usual, ours)
    assert sum(targets.numel() for _, targets in usual.batches()) == 12 * 23
    assert {len(targets) for _, targets in usual.batches()} == {10, 3}


def other_labels(table):
    table.samples.targets = table.samples.targets.roll(1)


def other_samples(table):
    table.flat[0] = table.flat[1]


def other_pixels(table):
    table.samples.transform.mean = table.samples.transform.mean + 0.01


@pytest.mark.parametrize("spoil", [other_labels, other_samples, other_pixels])
def test_other_batches_are_noticed(ragged, spoil):
    usual, ours = loading.UsualBatches(ragged), loading.OurBatches(ragged)
    spoil(ours.data.tables["train"])
    with pytest.raises(RuntimeError, match="other samples"):
        loading.check_same_batches(usual, ours)


def test_scores_are_those_of_every_clients_own_head(ragged):
    evaluation.check_same_scores(ragged, ["auto", "sequential", "batched"])
    plain, _ = evaluation.contestants(ragged, [])
    correct, losses = plain.turn()
    assert len(set(losses.tolist())) == ragged.cohort
    loop = plain.loop
    for client, (inputs, targets) in loop.data.items():
        loop.network.load_state_dict(loop.states[client], strict=False)
        assert correct[client] == (loop.network(inputs).argmax(1) == targets).sum()


def test_other_scores_are_noticed(tiny, monkeypatch):
    def swapped(self):
        correct, losses = scores(self)
        return correct, losses[torch.tensor([1, 0, *range(2, len(losses))])]

    scores = evaluation.OurScores.turn
    monkeypatch.setattr(evaluation.OurScores, "turn", swapped)
    with pytest.raises(RuntimeError, match="batched finds other scores"):
        evaluation.check_same_scores(tiny, ["batched"])


def test_figure_shows_the_ratios_and_the_best_as_a_number():
    ratios = {
        "one": {"plain": 1.0, "auto": 0.25, "batched": 0.5},
        "two": {"plain": 1.0, "auto": 2.0, "sequential": 1.5},
        "peers-mlp": {"plain_torch": 1.0, "big_one": 3.0, "ours": 0.2, "absent": None},
        "population-100": {"auto": None},
    }
    (axes,) = ratio_figure(
        [
            {"workload": name, "backend": backend, "ratio_to_plain": ratio}
            for name, group in ratios.items()
            for backend, ratio in group.items()
        ]
    ).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("one", "two", "peers-mlp: big_one", "peers-mlp: ours")
    ]
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["0.25", "1.50", "3.00", "0.20"]
    assert ratio_figure([]).axes, "what has no ratios has a picture, too"
    # every bar goes from the plain loop's line to its ratio
    assert [bar.get_x() + bar.get_width() for bar in axes.patches] == pytest.approx([0.25, 0.5, 2.0, 1.5, 3.0, 0.2])
    assert all(bar.get_x() == 1 for bar in axes.patches)
    low, high = axes.get_xlim()
    assert (axes.get_xscale(), low < 0.2, high > 3) == ("log", True, True)
