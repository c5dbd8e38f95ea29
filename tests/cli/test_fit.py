import os
import shutil
import signal
from pathlib import Path

import fakes
import lightning.pytorch as pl
import pytest
import torch
import yaml
from fakes import torchvision_data
from fakes.forked import Command
from fakes.tables import read_table, wait_for_round
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pfl_lightning import data
from pfl_lightning.cli import main
from pfl_lightning.data import Digits
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg
from pfl_lightning.report import read_run
from pfl_lightning.runs.experiment import Experiment
from pfl_lightning.server import unpack_tensors

SMALL = ["--model.network", "MLP", "--model.network.hidden", "[8,8]", "--trainer.enable_progress_bar", "false"]
NO_FIGURES = ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=csv"]  # which take most of a small run's time
FIT = ["fit", "--model=FedRep", *SMALL, "--trainer.val_check_interval=2", *NO_FIGURES]
WITHOUT_ROUNDS = "fit --data.participation Asynchronous"


pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def fit(*args: str) -> None:
    main([*FIT, *args])


@pytest.fixture
def refuses(refused):
    """The line about a run like those of ``fit``, with other options."""
    return lambda *args: refused(*FIT, *args)[1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder ``runs`` of a run of two rounds."""
    runs = tmp_path_factory.mktemp("finished") / "runs"
    fit("--trainer.max_steps=2", f"--trainer.default_root_dir={runs}", f"--trainer.logger.save_dir={runs.parent}/csv")
    return runs


@pytest.fixture
def run(finished) -> Path:
    """That run, in the working folder."""
    shutil.copytree(finished, "runs")
    return Path("runs/FedRep-Digits/version_0")


def metrics(run: str = "runs/FedRep-Digits/version_0") -> list[dict[str, str]]:
    return read_table(f"{run}/metrics.csv")


def state(run: str = "runs/FedRep-Digits/version_0") -> dict[str, torch.Tensor]:
    return torch.load(Path(run) / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def assert_same(run: str, expected: str) -> None:
    """Two runs have the same tables and the same tensors."""
    for table in ("metrics.csv", "clients.csv"):
        assert read_table(f"{run}/{table}") == read_table(f"{expected}/{table}")
    tensors = state(expected)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in state(run).items())


@pytest.mark.slow
def test_a_run_folder_holds_all_there_is_to_know(capsys):
    main(["fit", "--model", "FedRep", *SMALL, "--trainer.val_check_interval", "2", "--trainer.max_steps", "3"])
    run = Path("runs/FedRep-Digits/version_0")
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"last.ckpt", "previous.ckpt", "best.ckpt"}
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["class_path"].endswith("FedRep")
    assert "ckpt_path" not in config
    rows = metrics()
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert list(rows[0])[:3] == ["round", "time/compute", "time/total"]
    assert [bool(row["test/finetuned/accuracy/mean"]) for row in rows] == [True, False, True, True]
    assert len(read_table(run / "clients.csv")) == 3 * 2 * 2 * 20  # evaluations x splits x models x clients
    board = EventAccumulator(str(run)).Reload()
    assert [event.step for event in board.Scalars("train/loss")] == [1, 2, 3]
    assert [event.step for event in board.Scalars("val_percentiles/stored/accuracy/p10")] == [0, 2, 3]
    out = capsys.readouterr().out
    assert "finetuned" in out
    assert "tensorboard --logdir runs\n" in out
    assert "Density" not in out
    assert "Engine: " not in out


@pytest.mark.slow
def test_a_new_start_takes_a_new_folder_and_last_continues_the_newest(run, capsys):
    fit("--trainer.max_steps", "2")
    fit("--trainer.max_steps", "4", "--ckpt_path", "last")
    assert len(metrics("runs/FedRep-Digits/version_0")) == 3
    assert [row["round"] for row in metrics("runs/FedRep-Digits/version_1")] == list("01234")
    assert not Path("runs/FedRep-Digits/version_2").exists()


def test_a_resumed_run_equals_an_uninterrupted_one(capsys):
    doubling = [
        "--trainer.callbacks+=StageDoubling",
        "--trainer.callbacks.n0=2",
        "--trainer.callbacks.rounds_per_stage=2",
    ]
    fit("--trainer.max_steps", "6", "--trainer.default_root_dir", "straight", *doubling)
    fit("--trainer.max_steps", "2", *doubling)
    fit("--trainer.max_steps", "6", "--ckpt_path", "last", *doubling)
    resumed = "runs/FedRep-SRPFL-Digits/version_0"
    assert_same(resumed, "straight/FedRep-SRPFL-Digits/version_0")
    assert [row["system/cohort"] for row in metrics(resumed)][1:] == ["2.0", "2.0", "4.0", "4.0", "8.0", "8.0"]


@pytest.mark.slow
def test_secure_sums_are_an_option_and_stay_the_same_at_a_resume(refuses):
    secure = ["--model.aggregator", "SecureAggregator", "--model.aggregator.limit", "100"]
    fit("--trainer.max_steps", "2", *secure)
    config = yaml.safe_load(Path("runs/FedRep-Digits/version_0/config.yaml").read_text())
    assert config["model"]["init_args"]["aggregator"]["init_args"] == {"limit": 100.0, "masks": True}
    assert [row["sums/calls"] for row in metrics()] == ["", "1.0", "2.0"]
    for options, line in (
        ([*secure, "--model.aggregator.limit", "50"], "model.aggregator.limit: 100.0 in the checkpoint, 50.0 now"),
        ([], "model.aggregator: "),
    ):
        assert refuses("--trainer.max_steps=3", "--ckpt_path=last", *options).startswith(line)
    fit("--trainer.max_steps", "3", "--ckpt_path", "last", *secure)
    assert [row["sums/calls"] for row in metrics()] == ["", "1.0", "2.0", "3.0"]


@pytest.mark.slow
def test_sparsity_is_told_where_it_is_on_and_stays_the_same_at_a_resume(refuses, capsys):
    sparse = ["--model.sparsity.prune=true", "--model.sparsity.threshold=0.05", "--trainer.callbacks=SparsityTracker"]
    fit("--trainer.max_steps=2", *sparse)
    densities = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Density")]
    tensors = unpack_tensors(state())  # the checkpoint of a pruned model is packed
    body = [tensor for name, tensor in tensors.items() if name.startswith(("network.fc1.", "network.fc2."))]
    share = sum(int((tensor != 0).sum()) for tensor in body) / sum(tensor.numel() for tensor in body)
    assert 0.1 < share < 0.9
    assert densities == [f"Density:        {share:.2%} of the shared parameters (those above 0.05)"]
    assert "density/stored/all/5e-02" in metrics()[-1]
    for change, line in (
        ("prune=false", "model.sparsity.prune: True in the checkpoint, False now"),
        ("threshold=0.1", "model.sparsity.threshold: 0.05 in the checkpoint, 0.1 now"),
    ):
        assert refuses("--trainer.max_steps=3", "--ckpt_path=last", *sparse, f"--model.sparsity.{change}").startswith(
            line
        )
    fit("--trainer.max_steps=3", "--ckpt_path=last", *sparse)
    assert [bool(row["density/stored/all/5e-02"]) for row in metrics()] == [True, False, True, True]


@pytest.mark.slow
def test_changes_at_a_resume_are_honoured_or_refused(run, refuses, capsys):
    for change, line in (
        ("model.local.epochs=2", "model.local.epochs: 1 in the checkpoint, 2 now"),
        ("data.num_clients=10", "data.num_clients: 20 in the checkpoint, 10 now"),
        ("seed_everything=5", "seed_everything: 1 in the checkpoint, 5 now"),
        ("data.speeds=UniformTime", "data.speeds"),
        ("model.backend=sequential", "model.backend: auto in the checkpoint, sequential now"),
        ("trainer.callbacks+=StageDoubling", "trainer.callbacks.StageDoubling"),
    ):
        assert refuses("--trainer.max_steps=4", f"--ckpt_path={run}", f"--{change}").startswith(line)
    before = state()
    fit("--trainer.max_steps", "4", "--ckpt_path", "last", "--model.server_optimizer.lr", "1e-30")
    assert "model.server_optimizer.lr: 1.0 in the checkpoint, 1e-30 from now on" in capsys.readouterr().err
    after = state()
    assert torch.equal(before["network.fc1.weight"], after["network.fc1.weight"])
    assert not torch.equal(before["clients.fc3.weight"], after["clients.fc3.weight"])
    fit("--trainer.max_steps", "5", "--ckpt_path", "last", "--model.server_optimizer.lr", "0.5")
    settings = read_run(run).settings
    assert settings["model.server_optimizer.lr"] == "1.0 until round 2, 1e-30 until round 4, then 0.5"
    assert settings["model.local.lr"] == 0.01


def shown_means(capsys, *args: str) -> dict[str, float]:
    """The means in the table of ``pfl test``, by model."""
    capsys.readouterr()
    main(["test", *args, "--ckpt_path=last"])
    out = capsys.readouterr().out
    assert "New clients' test accuracy (%) after round" in out
    rows = [line.replace("│", " ").split() for line in out.splitlines()]
    return {row[0]: float(row[1]) for row in rows if row and row[0] in ("finetuned", "stored", "global", "personal")}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["FedRep", "DePRL"])
def test_new_clients_train_new_heads_on_the_learned_body(method, refused, capsys):
    learned = [f"--model={method}", *SMALL, "--model.local.lr=0.1"]
    main(["fit", *learned, *NO_FIGURES, "--trainer.max_steps=30", "--trainer.val_check_interval=30"])
    tested = [*learned, "--data.new_clients=40"]
    means = shown_means(capsys, *tested)
    assert means == shown_means(capsys, *tested)
    # 3 of 10 classes per client: a head that nobody has trained guesses among 10, a trained one knows its 3
    assert list(means) == ["finetuned"]
    assert means["finetuned"] > 70
    assert shown_means(capsys, *tested, "--data.new_head_epochs=0")["stored"] < 30
    assert refused("fit", *tested)[1].startswith("data.new_clients must be 0 to train: ")


@pytest.mark.slow
def test_new_clients_of_natural_users_are_those_that_training_has_left(capsys):
    fakes.WRITERS["femnist"](Path("files"))  # 24 writers
    run = ["--model=Ditto", *SMALL, "--data=FEMNIST", "--data.root=files", "--data.num_clients=20"]
    main(["fit", *run, *NO_FIGURES, "--trainer.max_steps=1"])
    assert list(shown_means(capsys, *run, "--data.new_clients=4")) == ["finetuned", "global"]
    assert list(shown_means(capsys, *run, "--data.new_clients=4", "--data.new_head_epochs=0")) == ["personal", "global"]
    with pytest.raises(SystemExit):
        main(["test", *run, "--ckpt_path=last", "--data.new_clients=5"])
    assert "data.new_clients must be at most 4, the users that training has left" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        # the command line itself
        ("fot", 2, "fot: no such command; did you mean fit?"),
        ("data", 2, "data: a subcommand is missing; allowed: prepare, describe"),
        ("data prepare CIFAR11", 2, "data: CIFAR11 is not possible; did you mean CIFAR10?; allowed: AGNews,"),
        ("data describe --data.num_client 3", 2, "data.num_client: Digits has no such option; did you mean"),
        ("data describe --figure a.xyz", 1, "figure: a.xyz is not possible (Format "),
        ("fit FedRep", 2, "FedRep: the option before it is missing"),
        ("fit methods/fedrep", 2, "methods/fedrep: the option before it is missing"),
        ("fit --model", 2, "--model: a value is missing"),
        ("fit --ckpt_path last", 1, "ckpt_path: last, but no run in 'runs/FedAvg-Digits' has a readable"),
        ("fit --seed_everything true", 2, "seed_everything: true is not possible; allowed: a whole number"),
        ("fit --seed=-3", 2, "seed_everything: -3 is not possible; allowed: a whole number"),
        ("fit --data.seed=7", 2, "--data.seed=7 is not possible: the data's seed follows seed_everything"),
        # options that a class lacks, and what it cannot be
        ("fit --model HFMAML --model.eval_epochs 3", 2, "model.eval_epochs: HFMAML has no such option"),
        (
            "fit --model.network.hidden [5] --model.network ConvNet",
            2,
            "--model.network.hidden must come after --model.network, ",
        ),
        ("fit --model.sparsity.treshold=1", 2, "model.sparsity.treshold: FedAvg has no such option"),
        ("fit --model.sparsity.floor=gait", 2, "model.sparsity.floor: gait is not possible; allowed: 'gate', 'topk', "),
        ("fit --data=TorchvisionData", 2, "data: "),
        # what does not go together
        ("fit --model Ditto --data.test_clients 0.5", 1, "data.test_clients: 0.5 is not possible with Ditto"),
        ("fit --model FedRep --model.network LogisticRegression", 1, "model.network: FedRep needs a body"),
        ("fit --model.network LeNet5", 1, "model.network: LeNet5 takes images of at least 16 x 16"),
        ("fit --model.head 4", 1, "model.head: 4 is not possible; allowed: 1 to 3"),
        ("fit --model=DeltaFL --model.tail=dual --model.quantile=sums", 1, "model.quantile: sums is not possible with"),
        ("fit --data=CIFAR100 --data.classes=[5,3]", 1, "data.classes must be two increasing numbers from 0 to 100"),
        ("fit --data.speeds=DynamicExponential --data.speeds.low=2", 1, "data.speeds.low: 2.0 is not possible"),
        ("fit --data.num_clients 5000", 1, "data.num_clients must be at most 1347, with at least 1 of"),
        ("fit --data.participation.pool_size 21", 1, "data.participation.pool_size: 21 is not possible; allowed: 1"),
        (f"{WITHOUT_ROUNDS} --data.participation.buffer 21", 1, "data.participation.buffer: 21 is not possible; allo"),
        (f"{WITHOUT_ROUNDS} --data.participation.pool_size 21", 1, "data.participation.pool_size: 21 is not poss"),
        (f"{WITHOUT_ROUNDS} --model DeltaFL", 1, "data.participation: Asynchronous is not possible with DeltaFL"),
        (
            "fit --data.partition ClassShards --data.partition.classes_per_client 12",
            1,
            "data.partition.classes_per_client must be ",
        ),
        # what makes no sense with rounds
        ("fit --trainer.max_steps -1", 1, "trainer.max_steps must be a number of rounds"),
        ("fit --trainer.precision 16-mixed", 1, "trainer.precision: 16-mixed is not possible; allowed: null, 32"),
        (f"fit{2 * ' --trainer.callbacks+=StageDoubling'}", 1, "trainer.callbacks: StageDoubling is listed twice"),
    ],
)
def test_a_wrong_command_gets_one_clear_line(words, code, line, refused):
    actual_code, actual_line = refused(*words.split())
    assert actual_line.startswith(line)
    assert actual_code == code


@pytest.mark.slow
def test_a_network_for_other_inputs_is_refused_and_leaves_no_folder(refused):
    fakes.WRITERS["shakespeare"](Path("files"))
    for args, line in (
        (["--data=Shakespeare"], "MLP takes numbers, Shakespeare has tokens; allowed: CharGRU, or your own"),
        (["--data=Shakespeare", "--model.network=TweetLSTM"], "TweetLSTM takes padded tokens, Shakespeare has tokens"),
        (["--data=Synthetic", "--model.network=CharGRU"], "CharGRU takes sequences"),
    ):
        actual = refused("fit", *args, "--data.root=files", "--data.num_clients=4")[1]
        assert actual.startswith(f"model.network: {line}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is not the official data set")
def test_a_resumed_run_wants_the_same_data(capsys):
    for name, seed in (("one", 0), ("other", 1)):
        folder = Path(name) / "MNIST/raw"
        folder.mkdir(parents=True)
        images, targets = torchvision_data.random_images(data.MNIST, {"train": 400, "test": 100})
        torchvision_data.write_mnist(folder, images, {key: (value + seed) % 10 for key, value in targets.items()})
    options = ["--data=MNIST", *SMALL, *NO_FIGURES]
    main(["fit", *options, "--data.root=one", "--trainer.max_steps=1"])
    for command, option in (("fit", "--trainer.max_steps=2"), ("test", "--data.new_clients=5")):
        with pytest.raises(SystemExit):
            main([command, *options, "--data.root=other", option, "--ckpt_path=last"])
        assert "data.root: 'other' holds other data than the checkpoint was trained on" in capsys.readouterr().err


class Interrupted(pl.Callback):
    """Ctrl-C before the first round."""

    def on_fit_start(self, trainer, pl_module):
        raise KeyboardInterrupt


def test_ctrl_c_before_the_first_round_is_one_and_signals_are_heard_afterwards():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Experiment(FedAvg(), Digits(), rounds=1, callbacks=[Interrupted()]).fit()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_traceback_is_there_for_who_asks(monkeypatch):
    monkeypatch.setenv("PFL_DEBUG", "1")
    with pytest.raises(PflError, match=r"model\.head: 4 is not possible"):
        main(["fit", "--model.head", "4"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("monitor", "line"),
    [
        ("test/global/accuracy/mean", "would select on test data; use a name starting with val/"),
        ("choice/global/accuracy/mean", "would select on test data; use a name starting with val/"),
        ("val/globl/accuracy/mean", "is not logged; allowed: val/accuracy, val/global/accuracy"),
        ("val/global/accuracy/p99", "checkpoint.monitor: val/global/accuracy/p99 is not logged; allowed: val/"),
    ],
)
def test_a_best_checkpoint_is_chosen_by_a_logged_validation_value(monitor, line, refused):
    assert line in refused("fit", *SMALL, "--trainer.max_steps=1", f"--checkpoint.monitor={monitor}")[1]


def test_a_resume_with_nothing_left_to_do_is_an_error(run, refuses):
    line = "trainer.max_steps: 2 is not possible; allowed: more than the 2 rounds done"
    assert line in refuses("--trainer.max_steps=2", "--ckpt_path=last")


@pytest.mark.slow
def test_without_a_logger_a_run_still_has_a_folder_of_its_own(capsys):
    for _ in range(2):
        fit("--trainer.max_steps=1", "--trainer.logger=false", "--verbose")
    assert Path("runs/FedRep-Digits/version_1/checkpoints/last.ckpt").is_file()
    assert "Engine: " in capsys.readouterr().out, "on request"
    assert "verbose" not in Path("runs/FedRep-Digits/version_0/config.yaml").read_text(), "no setting"
    fit("--trainer.max_steps=2", "--trainer.logger=false", "--ckpt_path=last")
    assert not Path("runs/FedRep-Digits/version_2").exists()


def test_a_trial_run_leaves_nothing_behind(capsys):
    fit("--trainer.fast_dev_run=true")
    assert "after round 1" in capsys.readouterr().out
    assert not list(Path().rglob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--model=mine.Mine", "--config=below/config.yaml"])
def test_a_script_finds_a_method_in_the_working_folder_and_tells_the_exit_code_and_the_line(option):
    Path("below").mkdir()
    Path("below/config.yaml").write_text("model: {class_path: mine.Mine}\n")
    Path("mine.py").write_text("from pfl_lightning.methods import FedRep\n\n\nclass Mine(FedRep):\n    pass\n")
    code, _, err = Command(Path.cwd(), "fit", option, "--ckpt_path", "last", is_script=True).end()
    (line,) = err.splitlines()
    assert code == 1
    assert line.startswith("pfl: error: ckpt_path: last, but no run in 'runs/Mine-Digits' has a readable checkpoint")


@pytest.mark.parametrize("order", [1, -1])
def test_config_files_compose_in_either_order(order, capsys):
    files = [f"--config={name}" for name in ("methods/fedrep", "data/cifar10", "models/lenet5")][::order]
    with pytest.raises(SystemExit):
        main(["fit", *files, "--print_config"])
    config = yaml.safe_load(capsys.readouterr().out)
    model = config["model"]
    assert model["class_path"].endswith("FedRep")
    assert model["init_args"]["network"]["class_path"].endswith("LeNet5")
    assert model["init_args"]["head_epochs"] == 10
    assert config["data"]["class_path"].endswith("CIFAR10")


@pytest.mark.slow
def test_the_quickstart_learns_and_beats_fedavg(capsys):
    config = "--config=quickstart"
    main(["fit", config])
    main(["fit", config, "--model", "FedAvg", "--trainer.callbacks", "null"])
    personal, common = (metrics(f"runs/{name}-Digits/version_0")[-1] for name in ("FedRep-SRPFL", "FedAvg"))
    assert float(personal["test/finetuned/accuracy/mean"]) > float(common["test/global/accuracy/mean"]) + 0.01
    assert float(personal["time/total"]) < float(common["time/total"])


ROUNDS = ["--trainer.val_check_interval=4", "--trainer.max_steps=24"]
FLYING = [*ROUNDS, "--data.participation=Asynchronous", "--data.participation.buffer=2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "numbers"), [(ROUNDS, [signal.SIGINT, signal.SIGKILL]), (FLYING, [signal.SIGKILL])]
)
def test_a_killed_process_resumes_exactly(options, numbers, capfd):
    fit(*options, "--trainer.default_root_dir=straight")
    for number in numbers:
        root = f"--trainer.default_root_dir={number}"
        killed = Command(Path.cwd(), "fit", "--model=FedRep", *SMALL, *NO_FIGURES, *options, root)
        run = f"{number}/FedRep-Digits/version_0"
        wait_for_round(5, run)
        os.kill(killed.process.pid, number)
        assert killed.end()[0] == (-number if number == signal.SIGKILL else 128 + number)
        assert Path(run, "checkpoints/last.ckpt").is_file()
        fit(*options, root, "--ckpt_path=last")
        assert_same(run, "straight/FedRep-Digits/version_0")
