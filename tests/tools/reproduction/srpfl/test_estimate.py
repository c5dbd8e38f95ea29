from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from reproduction import runs
from reproduction.runs import Experiment, Sweep
from reproduction.srpfl import estimate
from reproduction.srpfl.estimate import Costs, announce, seconds_of
from torch.utils.tensorboard import SummaryWriter

from pfl_lightning.errors import PflError

WORK = [(Experiment(Path("runs"), [], [10, 20]), [Sweep(("fedrep",)), Sweep(("fedrep-srpfl",))])]


@pytest.fixture
def finished(monkeypatch):
    """The runs that have done 4 of 4 rounds, by method and seed; of the others there are 3 rounds, or nothing."""
    done = set()

    def runs_of(experiment, name):
        (seed,) = experiment.seeds
        last = 4 if (name, seed) in done else 3
        if (name, seed) == ("fedrep-srpfl", 20) and last < 4:
            raise PflError("no such folder")
        return [SimpleNamespace(rounds=np.array([0, last]), settings={"trainer.max_steps": 4})]

    monkeypatch.setattr(runs, "runs_of", runs_of)
    monkeypatch.setattr(estimate, "run_seconds", lambda experiment, sweeps: 3600.0)
    return done


def test_the_time_of_the_runs_that_are_left_is_said(finished, capsys):
    announce("fig3", "full", WORK, 1)
    assert "fig3 at full scale: 4 runs, about 4 hours with 1 job (measured on" in capsys.readouterr().out
    finished.add(("fedrep", 10))
    announce("fig3", "full", WORK, 2)
    assert "3 runs (1 more are finished), about 90 minutes with 2 jobs" in capsys.readouterr().out


def test_nothing_is_measured_where_all_runs_are_finished(finished, monkeypatch, capsys):
    finished.update((name, seed) for name in ("fedrep", "fedrep-srpfl") for seed in (10, 20))
    monkeypatch.setattr(estimate, "run_seconds", lambda *_: pytest.fail("measured"))
    announce("fig3", "small", WORK, 1)
    assert "fig3 at small scale: 4 runs, all finished" in capsys.readouterr().out


def test_a_run_starts_does_its_rounds_and_is_evaluated_at_the_start_and_every_few_rounds():
    assert seconds_of(Costs(10.0, 2.0, 1.0), rounds=60, interval=20) == 10 + 120 + 4


def test_the_costs_of_a_run_are_told_by_the_times_of_its_values(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        for step, wall_time in ((1, 104.0), (2, 106.0), (3, 108.0)):
            writer.add_scalar("train/loss", 1.0, step, walltime=wall_time)
        for step, wall_time in ((0, 101.0), (3, 109.5)):
            writer.add_scalar("test/global/accuracy/mean", 0.5, step, walltime=wall_time)
    # 3 rounds of 2 s and 2 evaluations of 1.5 s; the rest of the 20 s is the start and the end
    assert estimate.costs_of(tmp_path, total=20.0) == Costs(11.0, 2.0, 1.5)


def test_the_rounds_that_a_run_has_are_those_of_its_settings(monkeypatch, planned):
    monkeypatch.setattr(estimate, "measured", lambda experiment, sweep: Costs(0.0, 1.0, 0.0))
    options = [f"--config={estimate.CONFIGS}/data/digits.yaml", "--trainer.max_steps=7"]
    work = Experiment(Path("runs"), options, [10]), [Sweep(("fedavg", "fedrep"), options=["--model.eval_epochs=1"])]
    assert estimate.run_seconds(*work) == 7


@pytest.mark.parametrize(("seconds", "text"), [(20, "1 minute"), (5400, "90 minutes"), (111_600, "31 hours")])
def test_durations_are_in_minutes_or_hours(seconds, text):
    assert estimate.duration(seconds) == text
