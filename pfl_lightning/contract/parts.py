"""What partitions, tasks and poisons must do; the first line of each function says it."""

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.client import Samples
from pfl_lightning.contract.subject import ContractError
from pfl_lightning.data import ImageTransform, Labels, Partition, Parts, Poison, Population
from pfl_lightning.objects import clone
from pfl_lightning.tasks import AMOUNT, Classification, Task
from pfl_lightning.tasks.task import try_task

CLASSES = 5
SAMPLES = (2400, 600)  # for training, and for testing
PICTURES = (30, 3, 16, 16)


def dealt(partition: Partition, clients: int, seed: int) -> Parts:
    """The training and the test samples of so many clients, one after another."""
    source = np.random.default_rng(0)
    splits = [Labels(source.integers(CLASSES, size=size), source.integers(30, size=size)) for size in SAMPLES]
    population = Population(clients, np.linspace(1, 2, clients))
    parts = clone(partition)(splits, CLASSES, population, np.random.default_rng(seed))
    return [indices for split in parts for indices in split]


def deals_out_samples(partition: Partition) -> None:
    """Seven and twenty clients get samples that exist, each to one client, and some for training."""
    for clients in (7, 20):
        dealt(partition, clients, seed=1)  # which checks them


def deals_out_again(partition: Partition) -> None:
    """The same seed deals out the same samples, whatever else has drawn random numbers."""
    found = []
    for elsewhere in (1, 2):
        np.random.seed(elsewhere)
        torch.manual_seed(elsewhere)
        found.append(dealt(partition, 7, seed=1))
    if not all(np.array_equal(first, again) for first, again in zip(*found, strict=True)):
        raise ContractError("one seed deals out samples in two ways; draw from rng alone")


def gives_rows_of_samples(task: Task) -> None:
    """Losses and statistics have a row for each sample, and scores the task's own one."""
    try_task(task)


def does_not_mix_samples(task: Task) -> None:
    """The loss, the statistics and the amount of a sample are its own, whatever samples are beside it."""
    outputs, targets = task.examples()
    together = of_samples(task, outputs, targets)
    for number in range(len(targets)):
        alone = of_samples(task, outputs[number : number + 1], targets[number : number + 1])
        for name, rows in together.items():
            if not torch.allclose(rows[number].double(), alone[name][0].double(), equal_nan=True):
                raise ContractError(f"{name} of sample {number} differs beside others; take no mean over samples")


def of_samples(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """What is added up over samples, ``[samples, ...]``."""
    amounts = task.amounts(targets)
    more = {} if amounts is None else {AMOUNT: amounts}
    return {"loss": task.usual_losses(outputs, targets), **task.statistics(outputs, targets), **more}


def has_the_gradients_of_its_losses(task: Task) -> None:
    """Gradients by a formula, if there is one, are those of the losses."""
    outputs, targets = task.examples()
    outputs = (outputs.double() + 0.1).requires_grad_()
    found = task.usual_gradients(outputs.detach()[None], targets[None])
    if found is None:
        return
    losses = task.usual_losses(outputs, targets)
    (expected,) = torch.autograd.grad(losses.sum(), outputs)
    for name, one, other in (("losses", losses.detach(), found[0][0]), ("gradients", expected, found[1][0])):
        if not torch.allclose(one, other.double(), atol=1e-8):
            raise ContractError(f"usual_gradients returns other {name} than usual_losses has; mend the formula")


def scores_its_own_examples(task: Task) -> None:
    """What is predicted rightly has a finite score, and targets pass the task's own check."""
    outputs, targets = task.examples()
    task.check(targets)
    sums = {name: rows.sum(0, keepdim=True) for name, rows in of_samples(task, outputs, targets).items()}
    score = task.scores(sums, torch.tensor([len(targets)]))[task.score.name]
    if not score.isfinite().all():
        raise ContractError(f"the score of examples() is {float(score[0])}; it must be finite where there are samples")


def pictures() -> tuple[Tensor, Tensor]:
    """Raw pictures and their classes."""
    source = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, PICTURES, dtype=torch.uint8, generator=source)
    return inputs, torch.randint(CLASSES, PICTURES[:1], generator=source)


def poisoned(poison: Poison, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """What an attacker trains on in place of its samples, and what it wants of test samples."""
    return [
        *poison(inputs, targets, CLASSES, torch.Generator().manual_seed(1)),
        *(poison.wanted(inputs, targets) or ()),
    ]


def poisons_samples(poison: Poison) -> None:
    """Poisoned samples are of the shape and type of others, and of classes that exist, even of a client with one."""
    inputs, targets = pictures()
    transform = ImageTransform((0.5,) * 3, (0.5,) * 3)
    poison.check(Samples(inputs, targets, transform), Classification().sized(CLASSES), "pictures")
    for count in (len(inputs), 1):
        made = poisoned(poison, inputs[:count], targets[:count])
        for pair in zip(made[::2], made[1::2], strict=True):
            are_alike(*pair, inputs, targets)


def are_alike(inputs: Tensor, targets: Tensor, own_inputs: Tensor, own_targets: Tensor) -> None:
    """Poisoned samples can be trained on, and evaluated, as an attacker's own can."""
    shape, wanted = ([*tensor.shape[1:]] for tensor in (inputs, own_inputs))
    if (shape, inputs.dtype) != (wanted, own_inputs.dtype):
        raise ContractError(
            f"inputs are {shape} of {inputs.dtype}, not {wanted} of {own_inputs.dtype}; return raw inputs, as they are "
            "before any transform"
        )
    if (len(targets), targets.dtype) != (len(inputs), own_targets.dtype):
        raise ContractError(
            f"{len(inputs)} inputs have {len(targets)} targets of {targets.dtype}; return one of {own_targets.dtype} "
            "for each"
        )
    if not ((targets >= 0) & (targets < CLASSES)).all():
        raise ContractError(f"a target is none of the {CLASSES} classes, which count from 0")


def poisons_again(poison: Poison) -> None:
    """The same seed poisons samples alike, whatever else has drawn random numbers, and what was poisoned before."""
    found = []
    for elsewhere in (1, 2):
        np.random.seed(elsewhere)
        torch.manual_seed(elsewhere)
        found.append(poisoned(poison, *pictures()))
    if not all(first.equal(again) for first, again in zip(*found, strict=True)):
        raise ContractError("one seed poisons samples in two ways; draw from random alone, and keep nothing in self")


def leaves_samples_as_they_are(poison: Poison) -> None:
    """What others train on, and what clients are scored by, stays as it is."""
    samples = pictures()
    poisoned(poison, *samples)
    if not all(after.equal(before) for after, before in zip(samples, pictures(), strict=True)):
        raise ContractError("samples are changed in place; change a clone, or use index_copy and index_fill")


PARTITION_CHECKS = (deals_out_samples, deals_out_again)
TASK_CHECKS = (
    gives_rows_of_samples,
    does_not_mix_samples,
    has_the_gradients_of_its_losses,
    scores_its_own_examples,
)
POISON_CHECKS = (poisons_samples, poisons_again, leaves_samples_as_they_are)
