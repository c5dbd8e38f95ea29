"""What tables and claims measure: a number of a run, or of two runs with the same seed, ``A / B``."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import inf, isnan, log, nan
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import pfl_lightning
from pfl_lightning.callbacks.sparsity_tracker import dense_bits
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.metrics import pair_correlation, pairs
from pfl_lightning.report import Curve, RunRecord
from pfl_lightning.report.measures import TEST, TRAIN
from pfl_lightning.report.run_files import BITS, CALLS, LINK_BITS, LOSS
from pfl_lightning.runs.experiment import Experiment
from pfl_lightning.server import cosines
from reproduction.claims import Floats
from reproduction.runs import is_finished

REACHED = 0.95  # of what the method without doubling reaches in the end
DENSITY = "density/global/all/1e-03"
CHANCE = log(10)  # loss of a model that gives each of the 10 classes the same probability
TINY = 1e-99  # in place of an error that is exactly 0
NEW_CLIENTS = "new_clients.json"
NORM = "train/gradient_norm"
NEW_MODEL = "finetuned"  # a new head on the body


def final(curve: Curve) -> float:
    """Mean test accuracy of the clients in % after the last round."""
    return float(100 * curve.means[0, -1])


def best_mean(curve: Curve) -> float:
    """The same after the best round."""
    return float(100 * curve.means[:, after_training(curve)].max())


def after_training(curve: Curve) -> slice:
    """The evaluations after a round: before the first one a personal model can be good that nobody has shared yet."""
    return slice(sum(number == 0 for number in curve.rounds), None)


def worst_client(curve: Curve) -> float:
    """Test accuracy of the worst client in % after the last round."""
    return float(100 * curve.final("score")[0].min())


def over_samples(curve: Curve, split: str = "test") -> list[float]:
    """Share of correct predictions among all samples of a split in %, at each evaluation."""
    results = [curve.results(split, evaluation)[0] for evaluation in range(len(curve.rounds))]
    return [float(100 * (clients["correct"].sum() / clients["samples"].sum())) for clients in results]


def best(curve: Curve, split: str = "test") -> float:
    """Accuracy over all samples after the best round, as most papers report it."""
    return max(over_samples(curve, split)[after_training(curve)])


def last(curve: Curve, split: str = "test") -> float:
    """Accuracy over all samples after the last round."""
    return over_samples(curve, split)[-1]


def chosen(curve: Curve) -> float:
    """Accuracy over all test samples after the round that is the first best one on validation samples."""
    trained = after_training(curve)
    return over_samples(curve)[trained][int(np.argmax(over_samples(curve, "val")[trained]))]


def last_mean(curve: Curve, split: str) -> float:
    """Mean accuracy of the clients on a split in % after the last round."""
    return float(100 * curve.final("score", split)[0].mean())


def perplexity(curve: Curve) -> float:
    """Mean test perplexity of the clients after the last round."""
    return float(curve.final("score")[0].mean())


def log_likelihood(curve: Curve, split: str) -> float:
    """Mean over the clients of the log-likelihood of a token of a split after the last round."""
    return -float(np.log(curve.final("score", split)[0]).mean())


def error(curve: Curve, statistic: str) -> float:
    """A statistic of the test clients' final errors in %, such as ``p90``."""
    return 100 * TEST[statistic](curve.final("error")[0])


def train_loss(curve: Curve, statistic: str) -> float:
    """A statistic of the final training losses, weighted by samples."""
    return TRAIN[statistic](curve.final("loss", "train")[0], curve.final("samples", "train")[0])


def loss_deviation(curve: Curve) -> float:
    """Standard deviation of the final training losses over the clients."""
    return float(curve.final("loss", "train")[0].std())


def error_deviation(curve: Curve, share: float) -> float:
    """Standard deviation of the final test errors, in points, over the share of the clients with the fewest samples."""
    samples = curve.final("samples")[0]
    small = samples <= np.quantile(samples, share)
    return float(100 * curve.final("error")[0][small].std())


def val_loss(curve: Curve) -> float:
    """Mean final loss of the validation clients."""
    return float(curve.final("loss", "val")[0].mean())


def val_error(curve: Curve, statistic: str) -> float:
    """A statistic of the validation clients' final errors in %."""
    return 100 * TEST[statistic](curve.final("error", "val")[0])


def density(curve: Curve) -> float:
    """Share of the entries of the shared model that are not zero at the end, in %."""
    return float(100 * curve.runs[0].logged[DENSITY].dropna().iloc[-1])


def link_bits(curve: Curve, parameters: int) -> float:
    """Bits over one link in the second half of the rounds by FedMac's formula, as a share of what dense models take."""
    logged = [(0, 0.0), *curve.runs[0].logged[LINK_BITS].dropna().items()]
    rounds, bits = logged[-1]
    earlier, before = logged[(len(logged) - 1) // 2]
    return float((bits - before) / (rounds - earlier) / (2 * dense_bits(parameters)))


def gigabits(curve: Curve) -> float:
    """All bits that were communicated, in gigabits."""
    return float(curve.until(BITS)[0, -1] / 1e9)


def millions(curve: Curve, tag: str) -> float:
    """Millions of numbers of 32 bits that were sent one way, such as ``bits/up``."""
    return float(curve.runs[0].logged[tag].dropna().iloc[-1] / 32e6)


def consensus(curve: Curve) -> float:
    """Mean over the rounds of the distance of the clients' bodies to their mean, after mixing."""
    return mean_logged(curve, "consensus/after")


def mean_logged(curve: Curve, tag: str) -> float:
    """Mean over the rounds of what a run logs in each of them."""
    return float(np.mean(curve.runs[0].logged[tag].dropna().to_numpy()))


def mixing_leaves(curve: Curve) -> float:
    """The largest share of this distance that a round's mixing leaves, as a power of 10."""
    before, after = (logged(curve.runs, f"consensus/{when}")[1] for when in ("before", "after"))
    return float(np.log10(np.maximum(after / before, TINY).max()))


def logged(runs: Sequence[RunRecord | None], tag: str, start: float | None = None) -> tuple[NDArray[np.int64], Floats]:
    """What runs have logged in each round.

    Args:
        runs: The runs.
        tag: What they log.
        start: What it is before the first round, if that is shown.

    Returns:
        The rounds, and the values ``[seeds, rounds]``.
    """
    values = np.array([run.logged[tag].dropna() for run in runs if run])
    if start is None:
        return np.arange(1, values.shape[1] + 1), values
    return np.arange(values.shape[1] + 1), np.insert(values, 0, start, axis=1)


def heads_follow_data(curve: Curve) -> float:
    """Correlation of the cosines between the clients' heads with those between their data."""
    cosines = cosines_of(curve.runs[0].folder)
    return float(pair_correlation(cosines["data"], cosines["heads"]))


def bodies_agree(curve: Curve) -> float:
    """The smallest cosine c of two bodies, as (c + 1) / 2, which DePRL's authors' code draws."""
    return float(pairs(cosines_of(curve.runs[0].folder)["bodies"]).min() + 1) / 2


@cache
def cosines_of(folder: Path) -> dict[str, Tensor]:
    """Cosines between clients at the end of a run: of their training samples of each class, their heads and bodies."""
    method = pfl_lightning.Run(folder).method()
    names = [sorted(method.parts[part] & method.engine.trainable) for part in ("head", "body")]
    counts = torch.from_numpy(class_counts(folder)).double()
    products = [counts @ counts.T, *map(method.clients.inner_products, names)]
    return {name: cosines(entries).cpu() for name, entries in zip(("data", "heads", "bodies"), products, strict=True)}


@cache
def class_counts(folder: Path) -> NDArray[np.int64]:
    """Training samples of each client and class of a run, ``[clients, classes]``."""
    data = Experiment.from_settings(f"--config={folder}/config.yaml").data
    data.setup()
    return data.class_counts()["train"]


def share_kept(curve: Curve, half: int | None = None) -> float:
    """Mean share of the pool that is kept in a round, of all rounds or of one half of them."""
    sizes = curve.cohorts.to_numpy()[:, 0]
    kept = sizes if half is None else np.array_split(sizes, 2)[half]
    return float(kept.mean() / curve.runs[0].settings["data.participation.pool_size"])


def convergence(curve: Curve, latency: float) -> float:
    """Simulated seconds until the training loss has converged; nan for never."""
    return float(curve.convergence(latency)[1][0])


def seconds_to(curve: Curve, accuracy: float, latency: float) -> float:
    """Simulated seconds until a mean test accuracy; nan for never."""
    return float(curve.reach(accuracy, curve.times(latency))[1][0])


def rounds_to(curve: Curve, accuracy: float) -> float:
    """Rounds until a mean test accuracy; nan for never."""
    return float(curve.reach(accuracy, curve.rounds[None].astype(float))[1][0])


def rounds_to_share(curve: Curve, share: float) -> float:
    """Rounds until a share of the own final accuracy."""
    return rounds_to(curve, share * final(curve) / 100)


def seconds_to_norm(curve: Curve, norm: float, latency: float) -> float:
    """Simulated seconds until what ``GradientNorm`` logs is below a number; nan for never."""
    logged_norms = curve.runs[0].logged[NORM].reindex(curve.rounds).to_numpy()
    (reached,) = np.nonzero(logged_norms < norm)
    return float(curve.times(latency)[0, reached[0]]) if len(reached) else nan


def final_norm(curve: Curve) -> float:
    """What ``GradientNorm`` logs after the last round."""
    return float(curve.runs[0].logged[NORM].dropna().iloc[-1])


def sums(curve: Curve, share: float = 1.0) -> float:
    """Weighted sums that the server has asked for until the end, or a share of them."""
    return float(share * curve.until(CALLS)[0, -1])


def sums_per_round(curve: Curve) -> float:
    """The same for each round."""
    return float(curve.until(CALLS)[0, -1] / curve.rounds[-1])


def same_tails(curve: Curve) -> float:
    """Share of the rounds in which as many clients are in the tail by sums as by their losses, of the same model."""
    by_sums, by_losses = (logged(curve.runs, f"train/tail_by_{what}")[1] for what in ("sums", "losses"))
    return float((by_sums == by_losses).mean())


def sums_to(curve: Curve, share: float) -> float:
    """Sums until a share of the own final accuracy."""
    return float(curve.reach(share * curve.means[:, -1:], curve.until(CALLS))[1][0])


def new_clients(curve: Curve, clients: int, samples: int | None = None, steps: int | None = None) -> float:
    """Mean test accuracy in % of clients that are new to a run; kept in its folder.

    Args:
        curve: The run.
        clients: Number of new clients.
        samples: Most training samples of each; None for all.
        steps: Steps on a new head; None for 10 epochs.
    """
    key = f"{clients} clients, {samples or 'all'} samples" + f", {steps} steps" * bool(steps)
    path = curve.runs[0].folder / NEW_CLIENTS
    known = json.loads(path.read_text()) if path.is_file() else {}
    if key not in known:
        rows = pfl_lightning.Run(path.parent).test(new_clients=clients, new_samples=samples, new_head_steps=steps)
        known[key] = rows.accuracy[(rows.split == "test") & (rows.model == NEW_MODEL)].mean()
        path.write_text(json.dumps(known) + "\n")
    return 100 * float(known[key])


# of two runs


def time_ratio(
    fast: Curve, slow: Curve, communication: float = 0.0, bound: bool = False, percent: float = 100 * REACHED
) -> float:
    """Seconds in which a method with doubling nearly reaches the end of that without, over those of the latter.

    Args:
        fast: The run with doubling.
        slow: The run without.
        communication: Seconds of a round's communication.
        bound: Whether a run that never gets there counts with all its seconds, which is less than it would need.
        percent: What nearly is, of the final accuracy.

    Returns:
        The ratio; nan for never, 1 if both are there before the first round.
    """
    goal = percent / 100 * final(slow) / 100
    seconds = seconds_to(fast, goal, communication)
    if bound and isnan(seconds):
        seconds = float(fast.times(communication)[0, -1])
    usual = seconds_to(slow, goal, communication)
    return seconds / usual if usual else 1.0


def speedup(few: Curve, many: Curve, accuracy: float, latency: float) -> float:
    """How many times as fast one run reaches an accuracy as another."""
    return float(np.divide(seconds_to(few, accuracy, latency), seconds_to(many, accuracy, latency)))


def loss_deviations(one: Curve, other: Curve) -> float:
    """How many times as far the training losses of one run deviate over the clients."""
    return loss_deviation(one) / loss_deviation(other)


MEASURES: dict[str, Callable[..., float]] = {
    measure.__name__: measure
    for measure in (
        *(final, best_mean, worst_client, best, last, chosen, last_mean, perplexity, log_likelihood, error),
        *(train_loss, loss_deviation),
        *(error_deviation, val_loss, val_error, density),
        *(
            link_bits,
            gigabits,
            millions,
            consensus,
            mean_logged,
            mixing_leaves,
            heads_follow_data,
            bodies_agree,
            share_kept,
            convergence,
        ),
        *(seconds_to, seconds_to_norm, final_norm, rounds_to, rounds_to_share, sums, sums_per_round, sums_to),
        *(same_tails, new_clients, time_ratio, speedup, loss_deviations),
    )
}


# of the split, which is that of all seeds
SPLIT: Mapping[str, Callable[[FederatedDataModule], float]] = {
    "training devices": lambda data: len(data.training_counts),
    "test devices": lambda data: data.num_clients - len(data.training_counts),
    "smallest training device": lambda data: data.training_counts.min(),
    "median training device": lambda data: float(np.median(data.training_counts)),
    "largest training device": lambda data: data.training_counts.max(),
    "smallest share": lambda data: data.training_counts.min() / data.training_counts.mean(),
}


def first_diverged(run: RunRecord | None) -> float:
    """First round with a training loss above that of guessing, or none at all; inf if there is no such round."""
    if run is None:
        return 1.0
    losses = run.logged[LOSS].dropna()
    rounds = list(losses.index[losses > CHANCE])
    stopped = [] if is_finished(run) else [max(losses.index, default=0) + 1]
    return float(min(rounds + stopped, default=inf))


def of_seed(measure: str, runs: list[RunRecord | None], models: list[str], **options: object) -> float:
    """A measure of the runs of one seed; nan if one of them has not done its rounds."""
    if measure == first_diverged.__name__:
        return first_diverged(runs[0])
    curves = [Curve([run], model) for run, model in zip(runs, models, strict=True) if run and is_finished(run)]
    return MEASURES[measure](*curves, **options) if len(curves) == len(runs) else nan
