from pathlib import Path

import fakes
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
