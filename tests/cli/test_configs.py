"""Every settings file that comes with the package, through the real command line."""

import inspect
from pathlib import Path

import fakes
import pytest
import yaml
from fakes.tables import read_table

from pfl_lightning import methods, models
from pfl_lightning.cli import main
from pfl_lightning.settings.registry import options_of
from pfl_lightning.settings.shipped_files import configs

SMALL = "--model.network=MLP --model.network.hidden=[8,8] --data.num_clients=8 --data.max_samples=20"
FEW_CLIENTS = "--data.num_clients=8 --data.max_samples=20"
ADAPTED = ("fedalt", "feddpa", "fedex-lora", "fedit", "fedsa-lora", "ffa-lora", "flexlora", "flora", "hetlora")
WITH_NETWORK = [f"methods/{name}" for name in ("fedbn", "local-lora", "rolora", *ADAPTED)]
FEW = "--data.num_clients=20 --model.local.epochs=1 --model.eval_epochs=1 --model.head_epochs=1"
DELTA = "--data.num_clients=8 --data.partition.min_samples=1 --data.participation.pool_size=4"
DEPRL = "--data.num_clients=3 --data.partition.min_size=1 --data.max_samples=4 --model.head_epochs=1"
# of the figures of SRPFL: the data set, and what fits a tiny copy of it
SRPFL = {
    "fig3": ("cifar100", FEW),
    "fig4": ("cifar10", FEW),
    "fig5": ("cifar10", FEW),
    "fig6": ("cifar10", FEW),
    "fig7": ("emnist", FEW),
    "fig8_correlated": ("cifar10", FEW),
    "fig8_imbalanced": (
        "femnist",
        f"{FEW} --data.num_clients=2 --data.partition.sizes.low=3 --data.partition.sizes.high=4",
    ),
    "fig8_natural": ("sent140", f"{FEW} --data.partition.min_samples=1"),
    "fig8_stragglers": ("sent140", f"{FEW} --data.partition.min_samples=1"),
}
# what the last round of a paper's experiment must log
DELTA_FL_LOGS = ("test/global/error/p90", "train/global/loss/weighted_p90", "system/cohort")
LOGGED = {"delta_fl": DELTA_FL_LOGS, "deprl": ("test/stored/accuracy/mean",), "fedmac": ("test/global/accuracy/mean",)}
# a quarter of 500 images (of 56 of the first ten classes, of 205,804 samples); the test split of CINIC-10
FEDMAC_TESTED = {"mnist": 125, "fashion_mnist": 125, "cifar100": 14, "synthetic": 51_451, "cinic10": 60}
# input shapes of the networks in configs/models that do not take images of 32 x 32 pixels
SHAPES = {
    "word-lstm": (10, 12),
    "char-gru": (20, 53),
    "fasttext": (40, 100),
    "lstm50": (20, 50),
    "tweet-lstm": (40, 100),
    "linear-representation": (20,),
}

FROM_DATA = ("input_shape", "num_classes", "output_shape")

pytestmark = [
    pytest.mark.usefixtures("in_an_empty_folder"),
    pytest.mark.filterwarnings("ignore:.*is not the official data set"),
    pytest.mark.filterwarnings("ignore:.*clients ha(ve|d) no test sample"),
    pytest.mark.filterwarnings("ignore:.*clients of the data take no part"),
    pytest.mark.filterwarnings("ignore:.*StageDoubling doubles nothing"),
]


def own_options(network: type) -> list[str]:
    """The options of a network, without what it is told by the data."""
    return [name for name in inspect.signature(network).parameters if name not in FROM_DATA]


def names(folder: str) -> list[str]:
    return [name for name in configs() if name.startswith(folder)]


def rows():
    """The files that compose, the data set whose files they need, and options that make the run small."""
    for method in names("methods/"):
        yield [method], None, FEW_CLIENTS if method in WITH_NETWORK else SMALL
    for data in names("data/"):
        yield [data], data.removeprefix("data/"), "--model.eval_epochs=0"
    for figure, (data, options) in SRPFL.items():
        yield [f"papers/srpfl/{data}", f"papers/srpfl/{figure}", "methods/fedrep-srpfl"], data, options
    for linear in names("papers/srpfl/linear"):
        yield [linear], None, ""
    for paper in names("papers/delta_fl/"):
        yield [paper, "methods/delta-fl"], Path(paper).name.partition("_")[0], DELTA
    for paper in names("papers/deprl/"):
        yield [paper, "methods/deprl"], Path(paper).name, DEPRL
    for library in (*names("papers/pfllib/"), *names("papers/niid_bench/")):
        yield [library, "methods/fedavg"], Path(library).name, "--data.partition.min_size=4 --model.local.epochs=1"
    for paper in names("papers/fedmac/"):  # of the ten classes of the tiny CIFAR-100, one has a single image
        clients = "--data.num_clients=9" if paper.endswith("cifar100") else ""
        yield [paper, "methods/fedavg"], Path(paper).name, f"--model.local.epochs=1 {clients}"


ROWS = list(rows())


def test_every_file_is_run_or_built_by_a_test():
    run = {name for files, _, _ in ROWS for name in files}
    elsewhere = {"quickstart", *names("models/"), *names("suites/"), *names("sweeps/"), *names("tuned/")}
    assert run | elsewhere == configs().keys()


@pytest.mark.slow
@pytest.mark.parametrize(("files", "data", "options"), ROWS, ids=["+".join(files) for files, _, _ in ROWS])
def test_every_file_runs(files, data, options, capsys):
    words = [*(f"--config={name}" for name in files), "--trainer.max_steps=1", "--trainer.enable_progress_bar=false"]
    if data:
        Path("files").mkdir()
        fakes.WRITERS[data](Path("files"))
        words.append("--data.root=files")
    paper = files[0].split("/")[-2]
    is_logged = paper in LOGGED
    words += ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=csv"] * is_logged
    main(["fit", *words, *options.split(), *["--trainer.fast_dev_run=true"] * (not is_logged)])
    assert "after round 1" in capsys.readouterr().out
    if is_logged:
        (run,) = Path("runs").glob("*/version_0")
        *_, last = read_table(run / "metrics.csv")
        assert all(last[tag] for tag in LOGGED[paper])
        assert last["time/total"] == "1.0" or paper != "deprl"
    if paper == "fedmac":
        final = [row for row in read_table(run / "clients.csv") if row["round"] == "1"]
        assert {(row["split"], row["model"]) for row in final} == {("test", "global")}
        tested = sum(int(row["samples"]) for row in final)
        assert tested == pytest.approx(FEDMAC_TESTED[data or "synthetic"], abs=len(final) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", names("models/"))
def test_every_network_of_a_file_is_built_and_each_of_its_options_stated(name, capsys):
    # of files that compose, what an earlier one says of an option of the same name would hold for the later network
    stated = yaml.safe_load(configs()[name].read_text())["model"]["init_args"]["network"]
    with pytest.raises(SystemExit) as stop:
        main(["fit", f"--config={name}", "--print_config"])
    assert stop.value.code in (0, None)
    network = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]["network"]
    for own, parsed in zip(networks_in(stated), networks_in(network), strict=True):
        kind = vars(models)[parsed["class_path"].rpartition(".")[2]]
        assert list(own.get("init_args", {})) == own_options(kind)
        kind(SHAPES.get(Path(name).name, (1, 32, 32)), 10, **parsed["init_args"])


def networks_in(settings):
    """The settings of a network, or of each of several."""
    return settings.get("init_args", {}).get("networks", [settings])


@pytest.mark.parametrize("name", [name for name in configs() if not name.startswith("models/")])
def test_a_file_states_every_option_of_its_network(name):
    network = yaml.safe_load(configs()[name].read_text()).get("model", {}).get("init_args", {}).get("network")
    if network is not None:
        options = own_options(vars(models)[network["class_path"]])
        assert list(network.get("init_args", {})) == options


TUNED = {  # the file of the data, and what else was said of data and model in the search
    "digits": ("data/digits", {}, {}),
    "fashion_mnist": (
        "papers/pfllib/fashion_mnist",
        {
            "val_fraction": 0.3,
            "participation": {"class_path": "Participation", "init_args": {"pool_size": 10}},
            "sample_fraction": 0.1,
        },
        {"eval_epochs": 10},
    ),
    "femnist": (
        "data/femnist",
        {
            "num_clients": 60,
            "val_fraction": 0.3,
            "participation": {"class_path": "Participation", "init_args": {"pool_size": 15}},
        },
        {},
    ),
}


def test_the_search_of_rates_is_of_the_methods_that_have_tuned_files():
    searched = yaml.safe_load(configs()["sweeps/digits_rates"].read_text())["methods"]
    assert {Path(name).name for name in names("tuned/digits/")} == {Path(name).name for name in searched}


@pytest.mark.parametrize("name", names("tuned/"))
def test_a_tuned_file_is_that_of_its_data_and_that_of_its_method_but_for_the_rate(name):
    _, data, method = name.split("/")
    base, of_data, of_model = TUNED[data]
    tuned, *parts = (yaml.safe_load(configs()[file].read_text()) for file in (name, base, f"methods/{method}"))
    dealt = [part.get("data", {}).get("init_args", {}) for part in (tuned, *parts)]
    expected = {**dealt[1], **of_data, **dealt[2]}
    if "participation" in of_data:  # given as words, which hold for any way to take part
        expected["participation"]["init_args"] |= of_data["participation"]["init_args"]
    assert dealt[0] == expected
    assert tuned["trainer"].get("callbacks+") == parts[1].get("trainer", {}).get("callbacks+")
    assert tuned["data"]["class_path"] == parts[0]["data"]["class_path"]
    assert tuned["model"]["class_path"] == parts[1]["model"]["class_path"]
    stated, *before = (part["model"].get("init_args", {}) for part in (tuned, *parts))
    local = {**before[0].get("local", {}), **before[1].get("local", {}), "lr": stated["local"]["lr"]}
    expected = {**before[0], **of_model, **before[1], "local": local}
    possible = options_of(getattr(methods, tuned["model"]["class_path"]))
    assert stated == {key: value for key, value in expected.items() if key in possible}


# the real files: what is not at hand is replaced, what would take minutes is cut short
REAL = {
    "cifar10": [],
    "cifar100": [],
    "cinic10": [],
    "fashion_mnist": [],
    "femnist": [],
    "mnist": [],
    "sent140": ["--data.glove_dim=50", "--data.glove_root=GLOVE", "--model.network.embedding_dim=50"],
    "shakespeare": ["--model.local.batch_size=100", "--data.participation.pool_size=4"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_every_data_config_runs_fedavg_on_the_real_files(name, real_data, capsys):
    options = [option.replace("GLOVE", str(real_data / "glove")) for option in REAL[name]]
    words = [f"--config=data/{name}", f"--data.root={real_data / name}", "--trainer.max_steps=1", *options]
    main(["fit", *words, "--model.eval_epochs=0", "--data.max_samples=20"])
    (metrics,) = Path("runs").glob("FedAvg-*/version_0/metrics.csv")
    first, last = read_table(metrics)
    assert 0 <= float(first["test/global/accuracy/mean"]) <= 1
    assert 0 <= float(last["test/global/accuracy/mean"]) <= 1
    assert float(last["train/loss"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist", "mnist"])
def test_every_data_config_runs_on_the_real_files(name, real_data, capsys):
    linear = ["--model=Local", "--model.network=LogisticRegression", "--trainer.max_steps=2"]
    main(["fit", f"--config=data/{name}", f"--data.root={real_data / name}", *linear])
    (metrics,) = Path("runs").glob("*/version_0/metrics.csv")
    assert float(read_table(metrics)[-1]["test/stored/accuracy/mean"]) > 0.25
