"""What there is against stragglers, side by side: the fastest first, a deadline, and no rounds at all."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from pfl_lightning.cli.planning import has_begun
from pfl_lightning.errors import PflError
from pfl_lightning.report import Curve, curves_of, save_figure
from pfl_lightning.report.drawing import grid
from pfl_lightning.report.tables import markdown
from pfl_lightning.runs.experiment import Experiment
from reproduction.claims import Claim, spread
from reproduction.runs import Item, Paper, Place, data_options, finished_runs, publish, seed_folders

METHODS = {
    "FedRep": ("methods/fedrep", "--model.head_epochs=3", "--model.eval_epochs=3"),
    "LG-FedAvg": ("methods/lg-fedavg", "--model.head=1", "--model.eval_epochs=0"),
    "FedAvg": ("methods/fedavg", "--model.eval_epochs=0"),
}
TIMES = (0, 10)  # seconds of communication
SHARES = (0.90, 0.95, 0.99)
CLIENTS = 20
UPLOADS_PER_EVALUATION = 2 * CLIENTS
SPEEDS = {
    "fixed": ("--data.speeds=FixedExponential", "--data.speeds.seed=1"),
    "two_populations": ("--data.speeds=TwoPopulation", "--data.speeds.seed=1"),
    "dynamic": ("--data.speeds=DynamicExponential", "--data.speeds.seed=1"),
    "equal": ("--data.speeds=UniformTime",),
}
DEADLINES = {"fixed": 1.5, "two_populations": 1.0, "dynamic": 1.0, "equal": 1.5}
ROUNDS = {"small": 20, "full": 150}  # of all clients; all have as many uploads
SETTINGS = (
    *(f"--data.num_clients={CLIENTS}", "--data.val_fraction=0", "--model.epochs=1"),
    "--percentile_errors.percentiles=[]",
)
SMALL_MLP = "--model.network.hidden=[64]"
# few images of each client: 3 of 10 classes, or 5 of CIFAR-10's
DATA = {
    "femnist": (
        *("papers/srpfl/femnist", "--data.classes=[0,10]", "--data.test_fraction=0.34", SMALL_MLP),
        *("--data.partition.sizes=EqualSizes", "--data.partition.sizes.samples=90"),
    ),
    "fashion_mnist": (
        *("data/fashion_mnist", "--data.partition=ConsecutiveClasses", "--data.partition.classes_per_client=3"),
        *("--data.max_samples=60", SMALL_MLP),
    ),
    "cifar10": (
        *("papers/srpfl/cifar10", "--data.max_samples=60", "--data.augment=false"),
        "--model.network.channels=[8,16]",
    ),
}
RATES = (0.03, 0.1, 0.3, 1.0)


class Answer(NamedTuple):
    """An answer to stragglers.

    Attributes:
        options: Options of ``pfl fit``.
        uploads: Uploads in a round.
        waits: Whether all wait for the slowest; if so the communication time is applied afterwards.
        more: Rounds more than uploads and these suggest, as there are fewer in the first ones.
    """

    options: Sequence[str] = ()
    uploads: int = CLIENTS
    waits: bool = True
    more: int = 0


def answers(speeds: str, rounds: int) -> Mapping[str, Answer]:
    """The answers under some speeds, in as many uploads as so many rounds of all clients have."""
    stage = max(1, rounds // 5)
    size = ("--trainer.callbacks.n0=5", f"--trainer.callbacks.rounds_per_stage={stage}")
    found = {
        "rounds of all": Answer(),
        "doubling": Answer(("--trainer.callbacks=StageDoubling", *size), more=5 * stage // 4),  # 5 and 10 clients first
        "deadline": Answer((f"--data.participation.deadline={DEADLINES[speeds]}",)),
    }
    mixes = ("--data.participation.uploads=models", "--model.server_optimizer.lr=0.6")
    for suffix, at_once in (("", CLIENTS // 2), (", all at once", CLIENTS)):
        flying = ("--data.participation=Asynchronous", f"--data.participation.concurrency={at_once}")
        found[f"FedBuff{suffix}"] = Answer(
            (*flying, "--data.participation.buffer=5", "--model.weighting=uniform"), 5, waits=False
        )
        found[f"FedAsync{suffix}"] = Answer((*flying, "--data.participation.buffer=1", *mixes), 1, waits=False)
    return found


def words_of(place: Place, method: str, answer: Answer, communication: int, rate: float) -> list[str]:
    """Settings files and options of the runs of an answer."""
    data, speeds = place.pair.split("-")
    rounds = ROUNDS[place.scale] * CLIENTS // answer.uploads + answer.more
    every = UPLOADS_PER_EVALUATION // answer.uploads
    words = [*DATA[data], *SETTINGS, *METHODS[method], *data_options(place.root, data), *SPEEDS[speeds]]
    words += [*answer.options, f"--trainer.max_steps={rounds}", f"--trainer.val_check_interval={every}"]
    words += [f"--data.communication_time={0 if answer.waits else communication}", f"--model.lr={rate}"]
    return [*words, *place.options]


def trained(place: Place, method: str, name: str, answer: Answer, communication: int, rate: float) -> Curve:
    """The runs of an answer, one per seed, of which finished ones are not repeated."""
    label = f"{method} {name}{'' if answer.waits else f' {communication}'}"
    words = words_of(place, method, answer, communication, rate)
    for seed, folder in zip(place.seeds, seed_folders(place, label), strict=True):
        if not finished_runs(place._replace(seeds=[seed]), label):
            options = [f"--seed_everything={seed}", f"--trainer.default_root_dir={folder}"]
            Experiment.from_settings(*words, *options).fit()
    return curves_of(finished_runs(place, label))[0]


def tuned(place: Place, method: str, name: str, communication: int) -> float:
    """The rate with the best accuracy on a fifth of the training samples, for one seed and ``fixed`` speeds."""
    data, _ = place.pair.split("-")
    answer = answers("fixed", ROUNDS[place.scale])[name]
    accuracy = {}
    for rate in RATES:
        folder = place.folder.with_name(f"stragglers-{data}-rates-{place.scale}") / f"{rate}"
        options = ["--data.val_fraction=0.2"]
        search = Place(f"{data}-fixed", place.scale, place.root, folder, place.seeds[:1], options=options)
        try:
            curve = trained(search, method, name, answer, communication, rate)
            accuracy[rate] = float(curve.final("val")[0].scores(curve.score_kind).mean())
        except PflError:  # it has diverged, if it has begun
            if not any(map(has_begun, folder.glob("*/seed_*"))):
                raise
            accuracy[rate] = 0.0
    return max(accuracy, key=lambda rate: accuracy[rate])


def compared(place: Place) -> list[Claim]:
    """Run all answers, draw and tabulate them; no paper claims anything about this."""
    _, speeds = place.pair.split("-")
    every = answers(speeds, ROUNDS[place.scale])
    rates = {
        (method, time, name): tuned(place, method, name, time) for method, time, name in product(METHODS, TIMES, every)
    }
    found = {
        (method, time, name): trained(place, method, name, every[name], time, rate)
        for (method, time, name), rate in rates.items()
    }
    save_figure(figure(found), place.folder / "answers.png", dpi=110)
    columns = ["rate", *(f"to {share:.0%}" for share in SHARES)]
    title = f"{place.pair}: simulated seconds to shares of the best final accuracy, {len(place.seeds)} seeds"
    head = ["method", "communication", "answer", *columns, "final (%)", "worst client (%)", "gigabits"]
    publish(place, "answers", markdown(title, head, list(rows(found, rates))))
    return []


Found = Mapping[tuple[str, int, str], Curve]


def rows(found: Found, rates: Mapping[tuple[str, int, str], float]) -> Iterator[list[str]]:
    """The rows of the table; targets are shares of the best final accuracy of the method, whatever its answer."""
    for (method, time, name), curve in found.items():
        best = max(float(other.means[:, -1].mean()) for (kind, _, _), other in found.items() if kind == method)
        seconds = [spread(curve.seconds_to(share * best, time), 1) for share in SHARES]
        worst = 100 * np.array([scores.min() for scores in curve.final_scores])
        bits = curve.until("bits/total")[:, -1] / 1e9
        final = [spread(100 * curve.means[:, -1], 1), spread(worst, 1), f"{bits.mean():.2f}"]
        yield [method, f"{time} s", name, f"{rates[method, time, name]:g}", *seconds, *final]


def figure(found: Found) -> Figure:
    """Mean test accuracy against simulated time: a row of panels for each method, a column for each communication."""
    methods = list(dict.fromkeys(method for method, _, _ in found))
    with grid(9, 3 * len(methods), len(methods), len(TIMES), sharey="row") as (drawn, panels):
        for (method, time, name), curve in found.items():
            axes = panels[methods.index(method), TIMES.index(time)]
            axes.plot(curve.times(time).mean(0), 100 * curve.means.mean(0), label=name)
            axes.set(title=f"{method}, communication {time} s", xlabel="simulated time (s)", ylabel="test accuracy (%)")
        for axes in panels.flat:  # until the last but one has ended
            axes.set_xlim(0, sorted(line.get_xdata()[-1] for line in axes.lines)[-2])
        panels[0, 0].legend()
    return drawn


PAIRS = tuple(f"{data}-{speeds}" for data, speeds in product(DATA, SPEEDS))
SMALL = tuple(pair for pair in PAIRS if pair.startswith("femnist-") or pair.endswith("-fixed"))
PAPER = Paper({"answers": Item(compared, PAIRS, SMALL)}, {"small": [1, 2, 3], "full": [1, 2, 3]})
