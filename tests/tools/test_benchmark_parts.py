"""Data loading, evaluation and the figure of the benchmark."""

from dataclasses import replace

import pytest
import torch
from benchmarks import evaluation, loading
from benchmarks.figure import ratio_figure


@pytest.fixture
def ragged(tiny):
    return replace(tiny, cohort=12, samples=23)


def samples_of(batches):
    """For every sample two random sums of its numbers, and its label; samples are sorted, ``[samples, 3]``."""
    rows = []
    for inputs, targets in batches:
        numbers = inputs.reshape(targets.numel(), -1)
        weights = torch.rand(2, numbers.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        rows.append(torch.cat([numbers.double() @ weights.T, targets.reshape(-1, 1)], dim=1))
    samples = torch.cat(rows)
    return samples[samples[:, 0].argsort()]


def test_our_batches_have_the_samples_of_the_loaders(ragged):
    torch.set_default_dtype(torch.float64)
    usual, ours = loading.UsualBatches(ragged), loading.OurBatches(ragged)
    torch.testing.assert_close(samples_of(ours.batches()), samples_of(usual.batches()))
    assert sum(targets.numel() for _, targets in usual.batches()) == 12 * 23
    assert {len(targets) for _, targets in usual.batches()} == {10, 3}


def test_scores_are_those_of_every_clients_own_head(ragged):
    torch.set_default_dtype(torch.float64)
    plain, ours = evaluation.contestants(ragged, ["auto", "sequential", "batched"])
    correct, losses = plain.turn()
    assert len(set(losses.tolist())) == ragged.cohort
    for contestant in ours.values():
        torch.testing.assert_close(contestant.turn(), (correct, losses))
    loop = plain.loop
    for client, (inputs, targets) in loop.data.items():
        loop.network.load_state_dict(loop.states[client], strict=False)
        assert correct[client] == (loop.network(inputs).argmax(1) == targets).sum()


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
