"""Runs from Python: the same folder and the same numbers as those of the command line."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from threading import Thread

import lightning.pytorch as pl
import pandas as pd
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import EarlyStopping
from sklearn.datasets import load_digits
from torch.nn import CrossEntropyLoss
from torch.optim.lr_scheduler import StepLR
from torchmetrics.classification import MulticlassF1Score

from pfl_lightning import Experiment, Run, clients, load_method, results
from pfl_lightning.callbacks import ClientMetrics, StageDoubling
from pfl_lightning.cli import main
from pfl_lightning.client import LocalTraining
from pfl_lightning.data import Arrays, Digits, Dirichlet
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedRep
from pfl_lightning.models import MLP
from pfl_lightning.server import DPAggregator
from pfl_lightning.system import Participation
from pfl_lightning.tasks import Classification

WORDS = [
    *("--model=FedRep", "--model.local.lr=0.05", "--model.network=MLP", "--model.network.hidden=[8]"),
    *("--data=Digits", "--data.num_clients=5", "--data.partition=Dirichlet", "--data.partition.alpha=0.5"),
    *("--data.participation.pool_size=4", "--trainer.callbacks=StageDoubling", "--trainer.callbacks.n0=2"),
    *("--trainer.callbacks.rounds_per_stage=2", "--trainer.val_check_interval=2", "--seed_everything=3"),
]
TABLES = ("metrics.csv", "clients.csv")


pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def experiment(rounds: int, folder: str = "python", **options) -> Experiment:
    data = Digits(num_clients=5, partition=Dirichlet(0.5), participation=Participation(4))
    doubling = [StageDoubling(n0=2, rounds_per_stage=2)]
    method = FedRep(local=LocalTraining(lr=0.05), network=partial(MLP, hidden=(8,)))
    usual = {"seed": 3, "callbacks": doubling, "folder": folder, "val_check_interval": 2}
    return Experiment(method, data, rounds, **{**usual, **options})


def small(rounds: int = 1, **options) -> Experiment:
    return Experiment(FedAvg(network=partial(MLP, hidden=[4])), Digits(num_clients=4), rounds, **options)


def state(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def settings(folder: Path) -> dict[str, object]:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["trainer"].pop("default_root_dir")
    config["trainer"].pop("enable_progress_bar")
    return config


@pytest.mark.slow
def test_a_run_from_python_is_that_of_the_command_line_bit_for_bit(capsys):
    run = experiment(rounds=4).fit()
    assert capsys.readouterr() == ("", ""), "it prints nothing"
    main(["fit", *WORDS, "--trainer.max_steps=4", "--trainer.default_root_dir=words"])
    other = Path("words/FedRep-SRPFL-Digits/version_0")
    assert all(torch.equal(tensor, state(other)[name]) for name, tensor in state(run.folder).items())
    assert all((run.folder / table).read_bytes() == (other / table).read_bytes() for table in TABLES)
    assert settings(run.folder) == settings(other)
    same = Experiment.from_settings(*WORDS, "--trainer.max_steps=4", "--trainer.default_root_dir=again").fit()
    assert (same.folder / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()


@pytest.mark.slow
def test_the_command_line_tests_and_continues_a_run_from_python(capsys):
    run = experiment(rounds=2).fit().folder
    main(["fit", *WORDS, "--trainer.max_steps=3", f"--ckpt_path={run}", "--trainer.default_root_dir=python"])
    straight = experiment(rounds=3, folder="straight").fit().folder
    assert (run / "metrics.csv").read_bytes() == (straight / "metrics.csv").read_bytes()
    main(["test", str(run)])
    assert (run / "test.csv").is_file()


@pytest.mark.slow
def test_a_resumed_experiment_equals_one_that_was_not_interrupted():
    straight = experiment(rounds=4, folder="straight").fit()
    experiment(rounds=2).fit()
    resumed = experiment(rounds=4).fit(resume=True)
    assert resumed.folder == Path("python/FedRep-SRPFL-Digits/version_0")
    assert all(torch.equal(tensor, state(straight.folder)[name]) for name, tensor in state(resumed.folder).items())
    assert all((resumed.folder / table).read_bytes() == (straight.folder / table).read_bytes() for table in TABLES)


@pytest.mark.slow
def test_the_same_cell_again_is_a_new_run_with_the_same_numbers():
    cell = small()
    first, second = cell.fit(), cell.fit()
    assert [run.folder.name for run in (first, second)] == ["version_0", "version_1"]
    pd.testing.assert_frame_equal(first.results().drop(columns="run"), second.results().drop(columns="run"))


@pytest.mark.slow
def test_a_run_that_early_stopping_has_ended_is_made_again_alike_and_goes_on_with_more_patience():
    impatient = EarlyStopping("val/global/accuracy/mean", mode="max", min_delta=2, patience=1)  # never that much better
    cell = partial(small, callbacks=[impatient], rounds=9, val_check_interval=1)
    first, second = cell().fit(), cell().fit()
    assert [len(run.clients()["round"].unique()) for run in (first, second)] == [2, 2]
    with pytest.raises(PflError, match="EarlyStopping has ended this run after round 1"):
        cell().fit(resume=True)
    impatient.patience = 2
    assert max(cell().fit(resume=True).clients()["round"]) == 2


@pytest.mark.slow
def test_results_are_those_of_the_tables_with_what_varies_as_a_column():
    run = small().fit()
    other = Experiment(
        FedAvg(network=partial(MLP, hidden=[4]), local=LocalTraining(lr=0.5)), Digits(num_clients=4), rounds=1
    ).fit()
    table = results([run.folder, other.folder])
    assert set(table.columns[:5]) == {"run", "method", "data", "seed", "model.local.lr"}
    assert len(table) == 2 * 2 * 2 * 2  # runs x evaluations x splits x models
    raw = pd.read_csv(other.folder / "metrics.csv").set_index("round")
    picked = table.query("run == @other.folder.__str__() and split == 'test' and model == 'global'").set_index("round")
    assert picked["p10"].to_dict() == raw["test/global/accuracy/p10"].to_dict()
    assert set(picked["model.local.lr"]) == {0.5}
    each = clients(run.folder).query("round == 1 and split == 'test'").groupby("model")["accuracy"].mean()
    means = run.results().query("round == 1 and split == 'test'").set_index("model")["mean"]
    assert each.to_dict() == pytest.approx(means.to_dict())


@pytest.mark.slow
def test_a_run_is_evaluated_again_and_gives_its_models():
    run = experiment(rounds=2).fit()
    told = run.test()
    trained = run.clients().query("round == 2 and split == 'test'").reset_index()
    assert told["correct"].tolist() == trained["correct"].tolist()
    assert set(run.validate("best")["split"]) == {"val"}
    assert sorted(set(run.test(new_clients=7)["client"])) == list(range(7))
    data = Digits(num_clients=5, partition=Dirichlet(0.5), seed=3)
    data.setup()
    ((inputs, targets),) = data.client_dataloader(4, "test", batch_size=999)
    for model in ("stored", "finetuned"):
        hits = (run.client(4, model)(inputs).argmax(1) == targets).sum()
        assert int(hits) == told.query("client == 4 and model == @model")["correct"].item()
    loaded = load_method(run.folder / "checkpoints/last.ckpt").client(4)
    assert torch.equal(loaded(inputs), run.client(4)(inputs))


def network(shape: tuple[int, ...], classes: int) -> MLP:
    return MLP(shape, classes, hidden=(4,))


@pytest.mark.slow
def test_what_a_file_cannot_hold_is_used_as_it_is():
    experiment = Experiment(FedRep(network=network), Digits(num_clients=4), rounds=1, callbacks=[pl.Callback()])
    run = experiment.fit()
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert config["model"]["init_args"]["network"] == "from Python: function"
    assert len(run.test()) == 4 * 2
    assert run.client(1, "finetuned")(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    again = Run(run.folder, method=FedRep(network=network))
    assert again.test()["loss"].tolist() == run.test()["loss"].tolist()
    longer = Experiment(FedRep(network=network), Digits(num_clients=4), rounds=2)
    assert longer.fit(resume=True).results()["round"].max() == 2


SAID = {
    "loss": (partial(CrossEntropyLoss, label_smoothing=0.1), "torch.nn.CrossEntropyLoss", "label_smoothing", 0.1),
    "lr_schedule": (partial(StepLR, step_size=1), "torch.optim.lr_scheduler.StepLR", "step_size", 1),
    "aggregator": (DPAggregator(noise_multiplier=0.5), "pfl_lightning.server.DPAggregator", "noise_multiplier", 0.5),
}


@pytest.mark.slow
def test_own_parts_that_settings_can_say_are_in_them_and_the_run_goes_on_and_opens_without_the_program():
    own = {option: value for option, (value, *_) in SAID.items()}
    local = LocalTraining(lr_schedule=own.pop("lr_schedule"))
    method = FedAvg(
        network=partial(MLP, hidden=[4]), weighting="uniform", local=local, task=Classification(own.pop("loss")), **own
    )

    def fit(rounds: int, folder: str, resume: bool = False) -> Run:
        return Experiment(method, Digits(num_clients=4), rounds, folder=folder, val_check_interval=1).fit(resume)

    straight = fit(2, "straight")
    fit(1, "python")
    resumed = fit(2, "python", resume=True)
    assert all((resumed.folder / table).read_bytes() == (straight.folder / table).read_bytes() for table in TABLES)
    for option, (_, path, argument, given) in SAID.items():
        options = settings(resumed.folder)["model"]["init_args"]
        said = {**options, **options["local"], **options["task"]["init_args"]}[option]
        assert (said["class_path"], said["init_args"][argument]) == (path, given)
    main(["test", str(resumed.folder)])
    assert Run(resumed.folder).client(2)(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def wards(flip: int = 1) -> Arrays:
    digits = load_digits(n_class=3)
    clients = [f"ward {number % 4}" for number in range(len(digits.target))]
    return Arrays(digits.images[::flip].astype("float32"), digits.target, clients, layout="NHW")


@pytest.mark.slow
def test_arrays_are_used_as_they_are_and_the_run_goes_on_compares_and_opens_with_them(capsys):
    def fit(rounds: int, folder: str, seed: int = 1, resume: bool = False) -> Run:
        method = FedAvg(network=partial(MLP, hidden=[4]))
        return Experiment(method, wards(), rounds, seed=seed, folder=folder, val_check_interval=1).fit(resume)

    straight = fit(2, "straight")
    fit(1, "python")
    resumed, other = fit(2, "python", resume=True), fit(2, "python", seed=2)
    assert all((resumed.folder / table).read_bytes() == (straight.folder / table).read_bytes() for table in TABLES)
    said = settings(resumed.folder)["data"]["init_args"]
    assert [said[name] for name in ("inputs", "clients", "test")] == [
        *("from Python: ndarray", "from Python: list", None)
    ]
    main(["compare", str(resumed.folder), str(other.folder), "--out=figures", "--format", "svg"])
    assert pd.read_csv("figures/final.csv").filter(like="seed_std").notna().all(axis=None), "two seeds of one curve"
    told = Run(resumed.folder, data=wards()).test()["correct"].tolist()
    assert told == resumed.clients().query("round == 2 and split == 'test'")["correct"].tolist()
    assert Run(resumed.folder).client(3)(torch.zeros(1, 1, 8, 8)).shape == (1, 3), "which needs no data"
    for run, line in {
        Run(resumed.folder): "data.inputs is from Python and not in the checkpoint; allowed: Run(folder, ",
        Run(resumed.folder, data=wards(flip=-1)): "data: Arrays holds other data than the checkpoint was trained on",
    }.items():
        with pytest.raises(PflError) as refused:
            run.test()
        assert str(refused.value).startswith(line)


@pytest.mark.slow
def test_metrics_of_the_clients_are_computed_again_with_the_run():
    callbacks = [ClientMetrics(partial(MulticlassF1Score, average="macro"))]
    run = small(callbacks=callbacks).fit()
    trained = run.clients().query("round == 1 and split == 'test'")
    assert Run(run.folder).test()["f1"].tolist() == pytest.approx(trained["f1"].tolist())


@pytest.mark.slow
def test_a_notebook_with_a_running_loop_and_a_thread_can_train():
    async def cell() -> Run:
        return small().fit()

    runs = [asyncio.run(cell())]
    thread = Thread(target=lambda: runs.append(small().fit()))
    thread.start()
    thread.join()
    assert [run.results()["round"].max() for run in runs] == [1, 1]


class Interrupt(pl.Callback):
    """Interrupts the process in a round, usually the second."""

    def __init__(self, rounds_before=1):
        self.rounds_before = rounds_before

    def on_train_batch_start(self, trainer, method, batch, batch_idx):
        if batch_idx == self.rounds_before:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_an_interrupted_cell_has_saved_its_round(capsys):
    line = r"the run is saved in 'python/.*/version_0'; fit\(resume=True\) continues"
    with pytest.raises(KeyboardInterrupt, match=line):
        experiment(rounds=4, callbacks=[StageDoubling(n0=2, rounds_per_stage=2), Interrupt()]).fit()
    error = capsys.readouterr().err
    assert "fit(resume=True) continues" in error
    assert "--ckpt_path" not in error
    resumed = experiment(rounds=4).fit(resume=True)
    straight = experiment(rounds=4, folder="straight").fit()
    assert (resumed.folder / "clients.csv").read_bytes() == (straight.folder / "clients.csv").read_bytes()


def test_a_run_shows_its_folder_and_what_it_has_reached():
    run = small().fit()
    score = 100 * run.results().query("split == 'test' and model == 'global'")["mean"].iloc[-1]
    assert repr(run) == f"<Run '{run.folder}', round 1, test accuracy (%): {score:.1f}>"
    assert repr(Run("nowhere")) == "<Run 'nowhere'>"


@pytest.mark.slow
def test_an_interrupt_in_the_last_round_ends_a_loop_over_seeds_too():
    with pytest.raises(KeyboardInterrupt, match="the run is complete and saved"):
        small(callbacks=Interrupt(rounds_before=0)).fit()
    assert Run("runs/FedAvg-Digits/version_0").results()["round"].max() == 1
