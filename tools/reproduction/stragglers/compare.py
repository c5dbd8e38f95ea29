"""Trains the answers to stragglers with rates that are searched for each, and shows them side by side."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pfl_lightning.cli.planning import has_begun
from pfl_lightning.errors import PflError
from pfl_lightning.report import Curve, curves_of, save_figure
from pfl_lightning.report.drawing import grid
from pfl_lightning.report.run_files import BITS
from pfl_lightning.report.tables import markdown
from pfl_lightning.runs.experiment import Experiment
from reproduction.claims import spread
from reproduction.items import Part, Spec, options_of
from reproduction.measures import of_seed
from reproduction.results import Numbers
from reproduction.runs import is_finished, newest, publish

Case = tuple[str, int, str]  # method, seconds of communication, answer


def compare_answers(part: Part) -> Numbers:
    """Run all answers, draw and tabulate them; no paper claims anything about their numbers."""
    answers = part.item.block.answers
    variables = part.variables
    cases = [
        (method, time, answer) for method in variables["methods"] for time in variables["times"] for answer in answers
    ]
    rates: dict[Case, float] = {}
    curves: dict[Case, Curve] = {}
    for method, time, answer in cases:
        rates[method, time, answer["answer"]] = tuned(part, method, answer, time)
    for method, time, answer in cases:
        case = method, time, answer["answer"]
        curves[case] = trained(part, method, answer, time, rates[case])
    save_figure(answers_figure(curves), part.place.folder / "answers.png", dpi=110)
    shares = variables["shares"]
    title = f"{part.title}: simulated seconds to shares of the best final accuracy, {variables['seeds']} seeds"
    head = ["method", "communication", "answer", "rate", *(f"to {share:.0%}" for share in shares)]
    head += ["final (%)", "worst client (%)", "gigabits"]
    publish(part.place, "answers", markdown(title, head, list(rows(curves, rates, shares))))
    return {}


def words_of(part: Part, method: str, answer: Spec, time: int, rate: float) -> list[str]:
    """Settings files and options of the runs of an answer.

    Args:
        part: The data set and the speeds.
        method: The method.
        answer: The answer.
        time: Seconds of communication.
        rate: The learning rate.
    """
    rounds = answer["rounds"][part.variables["scale"]]
    variables = {**part.variables, **answer, "method": method, "time": time, "rate": rate, "rounds": rounds}
    return [*options_of(part.item.block.words, variables), *part.place.options]


def trained(part: Part, method: str, answer: Spec, time: int, rate: float) -> Curve:
    """The runs of an answer, one per seed, of which finished ones are not repeated; arguments as in ``words_of``."""
    label = f"{method} {answer['answer']}{'' if answer['waits'] else f' {time}'}"
    words = words_of(part, method, answer, time, rate)
    folders = part.place.seed_folders(label)
    for seed, folder in zip(part.place.seeds, folders, strict=True):
        if not is_finished(newest(folder)):
            Experiment.from_settings(*words, f"--seed_everything={seed}", f"--trainer.default_root_dir={folder}").fit()
    return curves_of([run for folder in folders if (run := newest(folder)) and is_finished(run)])[0]


def tuned(part: Part, method: str, answer: Spec, time: int) -> float:
    """The rate with the best accuracy on a fifth of the training samples, for one seed and ``fixed`` speeds."""
    data, scale = part.variables["data"], part.variables["scale"]
    out = part.place.folder.parent
    search = part.item.part(f"{data}-fixed", scale, part.variables["root"], out, part.place.seeds[:1])
    accuracy: dict[float, float] = {}
    for rate in part.variables["rates"]:
        folder = out / f"stragglers-{data}-rates-{scale}" / f"{rate}"
        place = search.place._replace(folder=folder, options=["--data.val_fraction=0.2"])
        try:
            curve = trained(search._replace(place=place), method, answer, time, rate)
            accuracy[rate] = of_seed("last_mean", list(curve.runs), [curve.model], split="val")
        except PflError:  # it has diverged, if it has begun
            if not any(map(has_begun, folder.glob("*/seed_*"))):
                raise
            accuracy[rate] = 0.0
    return max(accuracy, key=lambda rate: accuracy[rate])


def rows(curves: Mapping[Case, Curve], rates: Mapping[Case, float], shares: list[float]) -> Iterator[list[Any]]:
    """The rows of the table; targets are shares of the best final accuracy of the method, whatever its answer."""
    for (method, time, answer), curve in curves.items():
        ends = [other.means[:, -1].mean() for (name, _, _), other in curves.items() if name == method]
        seconds = [spread(curve.reach(share * float(max(ends)), curve.times(time))[1], 1) for share in shares]
        worst = [100 * scores.min() for scores in curve.final("score")]
        bits = curve.until(BITS)[:, -1] / 1e9
        final = [spread(100 * curve.means[:, -1], 1), spread(np.array(worst), 1), f"{bits.mean():.2f}"]
        yield [method, f"{time} s", answer, f"{rates[method, time, answer]:g}", *seconds, *final]


def answers_figure(curves: Mapping[Case, Curve]) -> Figure:
    """Mean test accuracy against simulated time: a row of panels for each method, a column for each communication."""
    methods = list(dict.fromkeys(method for method, _, _ in curves))
    times = list(dict.fromkeys(time for _, time, _ in curves))
    with grid(9, 3 * len(methods), len(methods), len(times), sharey="row") as (figure, panels):
        for (method, time, answer), curve in curves.items():
            axes = panels[methods.index(method), times.index(time)]
            axes.plot(curve.times(time).mean(0), 100 * curve.means.mean(0), label=answer)
            axes.set(title=f"{method}, communication {time} s", xlabel="simulated time (s)", ylabel="test accuracy (%)")
        for axes in panels.flat:  # until the last but one has ended
            axes.set_xlim(0, sorted(line.get_xdata()[-1] for line in axes.lines)[-2])
        panels[0, 0].legend()
    return figure
