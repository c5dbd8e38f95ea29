"""What cannot be evaluated, exported or read gets one line, and nothing is written."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from pfl_lightning import Experiment, Run, clients, load_method, results
from pfl_lightning.cli import main
from pfl_lightning.client import LocalTraining
from pfl_lightning.data import Digits
from pfl_lightning.methods import FedAvg
from pfl_lightning.system import UniformTime

TINY = [
    *("--model.network=MLP", "--model.network.hidden=[4]", "--data.num_clients=4", "--data.val_fraction=0"),
    *("--trainer.max_steps=1", "--trainer.enable_progress_bar=false"),
]
RUN = "runs/FedAvg-Digits/version_0"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of one round, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    main(["fit", *TINY, f"--trainer.default_root_dir={folder}"])
    return folder


@pytest.fixture(autouse=True)
def beside_the_run(in_an_empty_folder, finished):
    shutil.copytree(finished, "runs")
    Path("empty").mkdir()
    Path("file.ckpt").write_text("no checkpoint")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["test"], "pfl test: a run is missing; allowed: its folder, or a checkpoint of it"),
        (["test", "nowhere"], "ckpt_path: no such file: 'nowhere'; allowed: a run folder, a checkpoint, or last"),
        (["test", "file.ckpt"], "ckpt_path: 'file.ckpt' is damaged or not complete; allowed: a checkpoint of pfl fit"),
        (["test", RUN, "--ckpt_path=last"], f"ckpt_path: leave it out, since '{RUN}' is the run to evaluate"),
        (["validate", RUN], "data.val_fraction: 0 leaves nothing to validate on; allowed: more than 0, or pfl test"),
        (["test", RUN, "other"], "other: the option before it is missing"),
        (["test", RUN, "--data.new_client=3"], "data.new_client: Digits has no such option; did you mean new_clients?"),
        (
            [
                "test",
                RUN,
                "--model.local.epochs=2",
                "--data.num_clients=3",
                "--model.local.lr=0.3",
                "--seed_everything=2",
            ],
            "data.num_clients: 4 in the checkpoint, 3 now; model.local.epochs: 1 in the checkpoint, 2 now; "
            "seed_everything: 1 in the checkpoint, 2 now; keep the old values for '",
        ),
    ],
)
def test_what_cannot_be_evaluated(words, line, refused):
    assert refused(*words)[1].startswith(line)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([RUN, "m.pt", "--client=4"], "client: 4 is not possible; allowed: 0 to 3"),
        ([RUN, "m.pt"], "--client: a value is missing"),
        ([RUN, "m.pt", "--client=0", "--model=best"], "model: best is not possible; allowed: global, finetuned"),
        ([RUN, "m.pth", "--client=0"], "file: 'm.pth' is not possible; allowed endings: .pt, .pt2"),
        ([RUN, "file.pt", "--client=0"], "file: 'file.pt' exists; allowed: a new file"),
        ([RUN, "file.pt", "--client=0", "--as=peft"], "file: 'file.pt' exists; allowed: a new folder"),
        (
            [RUN, "folder", "--client=0", "--as=peft"],
            "as: peft is not possible with model.adapter null; allowed: a model ",
        ),
        ([RUN, "file.pt/m.pt", "--client=0"], "file: cannot write 'file.pt/m.pt' (File exists); allowed: a "),
    ],
)
def test_what_cannot_be_exported(words, line, refused):
    Path("file.pt").write_text("mine")
    assert refused("export", *words)[1].startswith(line)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (
            lambda: Experiment(FedAvg(local=LocalTraining(lr=-1)), Digits()).fit(),
            "model.local.lr: -1 is not possible; allowed: a number > 0",
        ),
        (lambda: Experiment(FedAvg, Digits), "model must be an object of a subclass of Method, got <class 'pfl_"),
        (
            lambda: Experiment(FedAvg(), "Digits"),
            "data must be an object of a subclass of FederatedDataModule, got D",
        ),
        (lambda: Experiment(FedAvg(), Digits(), callbacks=[FedAvg]), "trainer.callbacks must be an object of a subcla"),
        (lambda: Experiment(FedAvg(), Digits(), rounds=0).fit(), "trainer.max_steps must be a number of rounds"),
        (lambda: Experiment(FedAvg(), Digits(), nonsense=1).fit(), "trainer.nonsense: no such option"),
        (lambda: Experiment(FedAvg(), Digits(), devices=2).fit(), "trainer.devices must be 1 in a program, got 2; "),
        (
            lambda: Experiment(type("Mine", (FedAvg,), {"__qualname__": "f.<locals>.C"})(), Digits()).fit(),
            "model: Mine must",
        ),
        (lambda: Experiment(FedAvg(), Digits(seed=2)), "data.seed follows the exper"),
        (
            lambda: Experiment(Digits(), FedAvg()),
            "model must be an object of a subclass of Method, got Digits",
        ),
        (lambda: Digits(partition="Dirichlet"), "data.partition must be an object of Partition, got Dirichlet"),
        (lambda: Digits(speeds=UniformTime), "data.speeds must be an object of Speeds, got <class"),
        (
            lambda: Experiment(FedAvg(local=LocalTraining(lr="0.1")), Digits()).fit(),
            "model.local.lr must be a number or an object in a program",
        ),
        (lambda: Experiment(FedAvg(), Digits(), "3").fit(), "trainer.max_steps must be a number or an object"),
        (
            lambda: Experiment(FedAvg(network=nn.Linear(64, 9)), Digits()).fit(),
            "model.network must be a class or a ",
        ),
        (lambda: Experiment(FedAvg(), Digits(), folder="empty").fit(resume=True), "ckpt_path: last, but no run"),
        (
            lambda: Experiment.from_settings("nowhere.yaml"),
            "config: nowhere.yaml is not possible; allowed: a file that exists, or a name",
        ),
        (lambda: Run(RUN).test("bset"), "checkpoint: bset is not possible; allowed: last, best"),
        (lambda: Run(RUN).test("best"), f"ckpt_path: no such file: '{RUN}/checkpoints/best.ckpt'"),
        (lambda: Run(RUN).client(9), "client: 9 is not possible; allowed: 0 to 3"),
        (lambda: Run(RUN).client("1"), "client: '1' is not possible; allowed: 0 to 3"),
        (lambda: Run(RUN).test(seed=2), "data.seed is the run's; options such as root"),
        (lambda: Run(RUN).test(new_clients="3"), "data.new_clients must be a number in a program, got"),
        (lambda: load_method(f"{RUN}/checkpoints/last.ckpt").client(1, "finetuned"), "model: finetuned is trained on"),
        (lambda: FedAvg().client(0), "client: FedAvg has no clients yet; allowed: after training, or load_method"),
        (lambda: results("empty"), "runs: cannot read 'empty/config.yaml' ("),
        (lambda: clients(RUN, "test.csv"), f"runs: cannot read '{RUN}/test.csv'"),
    ],
)
def test_what_python_cannot_do(wrong, line, refusal):
    assert refusal(wrong).startswith(line)


def test_an_error_in_the_settings_of_a_run_names_it(refused):
    path = Path(RUN, "checkpoints/last.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["config"]["model"] = {"class_path": "elsewhere.Mine", "init_args": {}}
    torch.save(checkpoint, path)
    _, line = refused("test", RUN)
    assert line.startswith("model: elsewhere.Mine is not possible: ")
