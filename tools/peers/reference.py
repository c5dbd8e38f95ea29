"""The workload that all peers do, and where the plain loop arrives at in float64."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from plain_loop import weighted_mean

from peers.environments import PeerError
from peers.plain_torch import network, uploads
from peers.work import read

TOLERANCE = 0.01  # of the update's norm; rounding errors alone come to a tenth of it
Weights = dict[str, np.ndarray]
Reference = tuple[int, Weights, Weights]  # rounds of a workload, its first weights and those after all rounds


@dataclass(frozen=True)
class Outcome:
    """What a program hands back.

    Attributes:
        seconds: Wall clock of each round.
        weights: The weights after the last round.
        versions: Of the packages that matter.
    """

    seconds: list[float]
    weights: Weights
    versions: dict[str, str]


def write_workload(
    path: Path,
    clients: int,
    samples: int,
    rounds: int,
    widths: Sequence[int] = (784, 512, 256, 64, 10),
    batch_size: int = 10,
    lr: float = 0.1,
    momentum: float = 0.5,
) -> None:
    """Draws everybody's samples, first weights and orders of samples into one ``.npz`` file."""
    source = np.random.default_rng(0)
    targets = source.integers(widths[-1], size=(clients, samples))
    # classes that can be learned: with targets by chance, rounding errors grow to a percent within a few rounds
    centres = source.uniform(-0.25, 0.25, (widths[-1], widths[0]))
    noise = source.uniform(-0.25, 0.25, (clients, samples, widths[0]))
    np.savez(
        path,
        inputs=(centres[targets] + noise).astype(np.float32),
        targets=targets,
        orders=source.permuted(np.tile(np.arange(samples), (rounds, clients, 1)), axis=2),
        lr=lr,
        momentum=momentum,
        batch_size=batch_size,
        **first_weights(widths, source),  # type: ignore[arg-type]
    )


def first_weights(widths: Sequence[int], source: np.random.Generator) -> Weights:
    """Uniform within one over the root of a layer's inputs, as ``torch.nn.Linear`` draws them."""
    weights: Weights = {}
    for layer, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        bound = inputs**-0.5
        weights[f"fc{layer}.weight"] = source.uniform(-bound, bound, (outputs, inputs)).astype(np.float32)
        weights[f"fc{layer}.bias"] = source.uniform(-bound, bound, outputs).astype(np.float32)
    return weights


def check(outcome: Outcome, wanted: Reference) -> float:
    """How far the weights are from the reference, relative to the norm of the update.

    Raises:
        PeerError: Too far, or rounds or weights are missing.
    """
    rounds, start, reference = wanted
    if len(outcome.seconds) != rounds:
        raise PeerError(f"timed {len(outcome.seconds)} rounds instead of {rounds}")
    if {name: array.shape for name, array in outcome.weights.items()} != {k: v.shape for k, v in reference.items()}:
        raise PeerError(f"wrote other weights than {', '.join(reference)}")
    deviation = distance(outcome.weights, reference) / distance(start, reference)
    if not deviation <= TOLERANCE:  # so that NaN is refused as well
        raise PeerError(f"its weights are {deviation:.1%} of the update away from the reference: not the same steps")
    return deviation


def distance(weights: Weights, reference: Weights) -> float:
    """Euclidean norm of the difference, over all weights."""
    return float(np.sqrt(sum(np.square(weights[name] - reference[name]).sum() for name in reference)))


def reference_of(data: Path) -> Reference:
    """The reference of a workload: the plain loop in float64."""
    work = read(data)
    work = replace(work, inputs=work.inputs.astype(np.float64))
    model = network(work).double()
    for number in range(len(work.orders)):
        model.load_state_dict(weighted_mean(uploads(model, work, number)))
    return len(work.orders), work.weights, {name: tensor.numpy() for name, tensor in model.state_dict().items()}
