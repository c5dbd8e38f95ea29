"""The contracts of partitions, tasks, poisons, aggregators and steps notice what goes wrong."""

from functools import partial
from importlib import import_module

import numpy as np
import pytest
import torch
from fakes import faults
from fakes.forked import SERVER

from pfl_lightning.contract import ContractError, Subject, check, methods, parts, several
from pfl_lightning.data import Partition
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import MLP
from pfl_lightning.server import Median, TrimmedMean
from pfl_lightning.settings.registry import KINDS, package_classes
from pfl_lightning.tasks import Classification
from pfl_lightning.uplink import MinMax, Step


class ByChance(Partition):
    def split(self, splits, num_classes, population, rng):
        return [np.array_split(np.random.permutation(len(split.classes)), population.num_clients) for split in splits]


class OneClassTwice(Partition):
    def split(self, splits, num_classes, population, rng):
        return [[np.arange(3)] * population.num_clients for _ in splits]


class Relative(Classification):
    def usual_losses(self, outputs, targets):
        return super().usual_losses(outputs - outputs.mean(0), targets)


class Doubled(Classification):
    def usual_gradients(self, outputs, targets):
        losses, gradients = super().usual_gradients(outputs, targets)
        return losses, 2 * gradients


class Alternating(TrimmedMean):
    rounds = 0

    def combine(self, rows):
        self.rounds += 1
        return rows[self.rounds % len(rows)]


class OfThoseThatAreThere(Step):
    def __call__(self, rows, senders):
        return {name: stack - stack.mean(0) for name, stack in rows.items()}


@pytest.mark.parametrize(
    ("rule", "part", "sentence"),
    [
        (parts.deals_out_again, ByChance(), "draw from rng alone"),
        (parts.does_not_mix_samples, Relative().sized(3), "loss of sample 0 differs beside others"),
        (parts.has_the_gradients_of_its_losses, Doubled().sized(3), "other gradients than usual_losses has"),
        (parts.poisons_samples, faults.PoisonsScaledPixels(), r"float32, not \[3, 16, 16\] of torch.uint8"),
        (parts.poisons_samples, faults.FlipsToClassesFrom1On(), "a target is none of the 5 classes"),
        (parts.poisons_samples, faults.LeavesOutTargets(), "30 inputs have 15 targets of torch.int64"),
        (parts.poisons_again, faults.ShufflesByTorch(), "draw from random alone"),
        (parts.leaves_samples_as_they_are, faults.MarksInPlace(), "changed in place"),
    ],
)
def test_a_fault_of_a_partition_a_task_or_a_poison_breaks_its_rule(rule, part, sentence):
    with pytest.raises(ContractError, match=sentence):
        rule(part)


@pytest.mark.parametrize(
    ("rule", "options", "sentence"),
    [
        (methods.resumes, {"aggregator": Alternating()}, "ends another way"),
        (methods.does_not_mix_clients, {"uplink": [OfThoseThatAreThere()]}, "in chunks of two clients"),
    ],
)
def test_a_fault_of_an_aggregator_or_a_step_breaks_its_rule(rule, options, sentence, tmp_path):
    with pytest.raises(ContractError, match=sentence):
        rule(Subject(partial(FedAvg, network=partial(MLP, hidden=(8, 5)), **options), tmp_path))


def test_a_partition_that_deals_out_a_sample_twice_says_what_the_program_says():
    (finding,) = check(OneClassTwice())
    assert finding.broken == (
        "data.partition: OneClassTwice must return each sample once, to one client, got one twice"
    )


OURS = [
    getattr(import_module(f"pfl_lightning.{KINDS[kind].room}"), choice.name)
    for kind in ("partitions", "tasks", "poisons")
    for choice in package_classes(KINDS[kind])
    if choice.name != "ConsecutiveClasses"  # whose clients have 600 samples by default
]


@pytest.mark.parametrize("part", OURS)
def test_our_own_partitions_tasks_and_poisons_keep_their_contract(part):
    assert [finding for finding in check(part()) if finding.broken] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", [Median(), MinMax(0.4)], ids=lambda part: type(part).__name__)
def test_our_own_aggregators_and_steps_keep_their_contract(part, monkeypatch):
    monkeypatch.setattr(several, "CONTEXT", SERVER)
    assert [finding for finding in check(part) if finding.broken] == []


def test_what_has_no_contract_is_refused():
    with pytest.raises(PflError, match=r"^check: Linear is not possible; allowed: a method, a partition, a task"):
        next(check(torch.nn.Linear(2, 2)))
