from pathlib import Path

import fakes
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pfl_lightning.cli import main

pytestmark = [
    pytest.mark.usefixtures("in_an_empty_folder"),
    pytest.mark.filterwarnings("ignore:.*is not the official data set"),
]


@pytest.fixture
def described(capsys):
    """Runs a command that shows a partition, and returns the row of the training samples."""

    def describe(*words: str) -> list[str]:
        capsys.readouterr()
        main(["data", "describe", *words])
        rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
        (train,) = [row for row in rows if row[:1] == ["train"]]
        return train

    return describe


@pytest.mark.parametrize("args", ["--help", "describe -h", "describe --model FedRep --help", "prepare --help"])
def test_help_is_a_page_of_both_subcommands(args, capsys):
    main(["data", *args.split()])
    usage, describe, *lines = capsys.readouterr().out.splitlines()
    assert usage.startswith("usage: pfl data prepare NAME")
    assert describe.endswith("pfl data describe [--figure FILE] [options of fit]")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_of_a_data_set_has_its_options(word, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["data", "prepare", "MNIST", word])
    assert ended.value.code == 0
    assert "--data.root" in capsys.readouterr().out


def test_describe_shows_the_partition_and_trains_nothing(described):
    # 1,347 training images, 10 % of them held out; 3 classes for each client
    train = described("--data=Digits", "--data.num_clients=10", "--figure=deep/split.svg")
    assert train[1] == "10"
    assert train[-1] == "3"
    assert "<svg" in Path("deep/split.svg").read_text()
    assert sorted(path.name for path in Path().iterdir()) == ["deep"]


def test_what_own_data_were_taken_for_is_shown_before_the_first_round_and_kept_in_the_folder(capsys):
    random = np.random.default_rng(0)
    inputs, labels, wards = random.normal(size=(90, 3)), np.arange(90) % 3 + 1, np.arange(90) % 4
    np.savez("mine.npz", inputs=inputs, targets=labels, clients=[f"ward {ward}" for ward in wards])
    data = ["--data=Arrays", "--data.file=mine.npz"]
    main(["data", "describe", *data])
    block = capsys.readouterr().out.partition("Arrays was taken for\n")[2].partition("Figure: ")[0]
    lines = [" ".join(line.split()) for line in block.splitlines()]
    assert lines[0] == "task 3 classes: 1, 2, 3"
    assert lines[1].startswith("inputs features (float64 [3]), standardised each feature (deviations ")
    assert lines[2].endswith("; the data have no test samples of their own")
    assert lines[3].startswith("clients 4 of 4 in the data: 0 = ward ")
    main(["fit", *data, "--model.network=LogisticRegression", "--model.eval_epochs=0", "--trainer.max_steps=1"])
    assert f"pfl: note: Arrays was taken for\n{block}" in capsys.readouterr().err
    named = lines[3].removeprefix("clients 4 of 4 in the data: ").split(", ")
    assert sorted(name.split(" = ")[0] for name in named) == list("0123")
    names = "\n".join(f"  client {name}" for name in named)
    assert Path("runs/FedAvg-Arrays/version_0/data.txt").read_text() == block + names


@pytest.mark.filterwarnings("default:trainer.callbacks")
def test_a_settings_file_that_drops_callbacks_of_another_is_named(capsys):
    Path("one.yaml").write_text("trainer: {callbacks: [LearningRateMonitor, {class_path: DeviceStatsMonitor}]}")
    Path("two.yaml").write_text("trainer: {callbacks: [LearningRateMonitor]}")
    Path("more.yaml").write_text("trainer: {callbacks+: [DeviceStatsMonitor]}")
    main(["data", "describe", "--config=one.yaml", "--config=two.yaml"])
    line = "'two.yaml' drops DeviceStatsMonitor of the settings before it; callbacks+ adds to them"
    assert f"pfl: warning: trainer.callbacks: {line}\n" in capsys.readouterr().err
    main(["data", "describe", "--config=two.yaml", "--config=more.yaml"])
    assert "drops" not in capsys.readouterr().err


def test_clients_without_samples_to_fine_tune_on_are_told(capsys):
    words = ["fit", "--data=Digits", "--model.network=LogisticRegression", "--trainer.max_steps=1"]
    main([*words, "--data.test_clients=0.5", "--model.eval_epochs=3"])
    line = "model.eval_epochs: not used, since data.test_clients: 0.5 leaves clients no samples to fine-tune on"
    assert f"pfl: note: {line}\n" in capsys.readouterr().err


@pytest.mark.slow
def test_describe_takes_the_settings_file_of_a_run(described):
    small = ["--model.network=MLP", "--model.network.hidden=[4]", "--trainer.max_steps=1"]
    main(["fit", "--data.partition=Dirichlet", "--data.num_clients=7", *small])
    assert described("--config=runs/FedAvg-Digits/version_0/config.yaml")[1] == "7"


@pytest.mark.slow
def test_a_run_shows_the_partition_in_tensorboard_once(pictures, capsys):
    small = ["--model.network=MLP", "--model.network.hidden=[4]", "--trainer.enable_progress_bar=false"]
    main(["fit", "--trainer.max_steps=1", *small])
    main(["fit", "--trainer.max_steps=2", "--ckpt_path=last", *small])
    board = EventAccumulator("runs/FedAvg-Digits/version_0").Reload()
    (image,) = board.Images("train/data/partition")
    assert image.step == 0
    assert image.width > 600


def test_prepare_reads_what_is_there_and_says_what_it_is(capsys):
    fakes.WRITERS["cifar10"](Path("files"))
    main(["data", "prepare", "CIFAR10", "--root=files"])
    assert "CIFAR10 in 'files': 400 training and 100 test samples" in capsys.readouterr().out


def test_prepare_takes_the_options_of_the_data_set(refused, capsys):
    fakes.WRITERS["sent140"](Path("files"))
    main(["data", "prepare", "Sent140", "--root=files", "--source=csv", "--glove_dim=50"])
    assert "Sent140 in 'files': " in capsys.readouterr().out
    code, line = refused("data", "prepare", "Sent140", "--root=files", "--sourc=csv")
    assert code == 2
    assert line.startswith("data.sourc: Sent140 has no such option; did you mean source?")


@pytest.mark.slow
def test_describe_shows_100_000_clients(described):
    # of each client's 4 samples, 1 is for tests and 1 for validation
    samples = ["--data.num_clients=100_000", "--data.samples=4", "--data.dimension=2"]
    train = described("--data=LinearRepresentation", *samples, "--model=DPSGD", "--model.topology=Ring")
    assert train[:3] == ["train", "100,000", "200,000"]
    assert sorted(path.name for path in Path().iterdir()) == ["partition.png", "partition_topology.png"]
