"""Discrete-time survival against a product of hazards, and the concordance index against all pairs."""

from itertools import product
from math import log

import pytest
import torch

from pfl_lightning.client.losses import UsualLoss
from pfl_lightning.data import Arrays
from pfl_lightning.errors import PflError
from pfl_lightning.metrics import ConcordanceIndex
from pfl_lightning.models import ProportionalHazards
from pfl_lightning.tasks import Survival

TASK = Survival(edges=[1.0, 2.0, 4.0])  # bins up to 1, 2, 4, and later
SEEN = [(1, 0.5), (1, 1.0), (0, 3.0), (1, 9.0), (0, 0.2), (0, 9.0)]


@pytest.fixture
def outputs():
    return torch.randn(len(SEEN), 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_loss_is_minus_the_log_likelihood_over_the_bins_that_were_reached(outputs):
    losses = TASK.losses(outputs, torch.tensor(SEEN))
    for row, (event, time), loss in zip(outputs, SEEN, losses, strict=True):
        hazards = row.sigmoid().tolist()
        last = sum(time > edge for edge in TASK.edges)
        terms = [log(1 - hazard) for hazard in hazards[:last]] + [log(hazards[last])] * event
        assert loss.item() == pytest.approx(-sum(terms) / max(len(terms), 1), abs=1e-12)
    assert TASK.amounts(torch.tensor(SEEN)).tolist() == [1, 1, 1, 1, 0, 1]


def test_gradients_by_formula_are_those_of_autograd(outputs):
    outputs.requires_grad_()
    (slopes,) = torch.autograd.grad(TASK.losses(outputs, torch.tensor(SEEN)).sum(), outputs)
    _, gradients = UsualLoss(TASK).with_gradients(outputs.detach()[None], torch.tensor(SEEN)[None])
    assert torch.allclose(gradients[0], slopes, atol=1e-14)
    assert gradients.abs().max() > 0.1


def test_a_risk_is_minus_the_expected_number_of_bins_that_a_sample_lives_through(outputs):
    for row, risk in zip(outputs, TASK.predictions(outputs, takes_classes=False), strict=True):
        survival, expected = 1.0, 0.0
        for hazard in row.sigmoid().tolist():
            survival *= 1 - hazard
            expected += survival
        assert risk.item() == pytest.approx(-expected, abs=1e-12)


def test_examples_are_in_the_right_order():
    outputs, targets = TASK.examples()
    TASK.check(targets)
    index = ConcordanceIndex()
    assert index(TASK.predictions(outputs, takes_classes=False), targets) == 1
    assert (TASK.losses(outputs, targets) < TASK.losses(-outputs, targets)).all()


def test_concordance_counts_each_comparable_pair_once_and_ties_of_risks_half():
    random = torch.Generator().manual_seed(1)
    events, times, risks = (torch.randint(high, (40,), generator=random).float() for high in (2, 8, 5))
    right = pairs = 0.0
    samples = [*zip(events.tolist(), times.tolist(), risks.tolist(), strict=True)]
    for (event, time, risk), (other_event, other_time, other_risk) in product(samples, samples):
        if event and (time < other_time or (time == other_time and not other_event)):
            pairs += 1
            right += 1.0 if risk > other_risk else 0.5 if risk == other_risk else 0.0
    index = ConcordanceIndex()
    for part in (slice(15), slice(15, 40)):
        index.update(risks[part], torch.stack([events, times], 1)[part])
    assert index.compute().item() == pytest.approx(right / pairs)


def test_without_a_comparable_pair_there_is_no_concordance():
    assert ConcordanceIndex()(torch.tensor([1.0, 2.0]), torch.tensor([[0.0, 1.0], [1.0, 2.0]])).isnan()


def test_events_and_times_of_own_data_have_bins_of_as_many_events_each():
    events = (torch.arange(200) % 2).float()
    times = torch.arange(200).float()
    data = Arrays(torch.randn(200, 3), torch.stack([events, times], 1), target_type="survival", num_clients=2)
    data.setup()
    # the events are at 1, 3, ... 199; a tenth of the way from the first to the last is 20.8
    assert data.task.edges == pytest.approx([20.8, 40.6, 60.4, 80.2, 100.0, 119.8, 139.6, 159.4, 179.2], rel=1e-5)
    assert "survival in 10 bins of time, from 0 to 199; 100 events" in data.understood


@pytest.mark.parametrize(
    ("targets", "line"),
    [
        ([[1.0, 2.0, 3.0]], r"targets must have the shape \[samples, 2\], event and time, got \[1, 3\]"),
        ([[0.0, 2.0], [2.0, 1.0]], r"events must be 0 for censored or 1, got 2\.0 in sample 1"),
        ([[1.0, -2.0]], r"times must be finite numbers from 0, got -2\.0 in sample 0"),
        ([[0.0, 2.0]], "events must be 1 somewhere, got 0 alone: all samples are censored"),
    ],
)
def test_other_targets_are_refused(targets, line):
    with pytest.raises(ValueError, match=f"^{line}$"):
        TASK.check(torch.tensor(targets))


def test_edges_are_in_order():
    with pytest.raises(PflError, match=r"^model\.task\.edges must be times in order, each once, got \[2\.0, 1\.0\]$"):
        Survival(edges=[2.0, 1.0])


def test_the_hazards_of_the_network_are_proportional():
    network = ProportionalHazards((3,), 4)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter))
    inputs = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]])
    assert network(inputs).tolist() == [[8.0, 9.0, 10.0, 11.0], [1.0, 2.0, 3.0, 4.0]]
