from pathlib import Path

import pytest
import yaml

from pfl_lightning.cli import main, sweep
from pfl_lightning.errors import PflError
from pfl_lightning.runs.experiment import Experiment
from pfl_lightning.settings import shipped_files
from pfl_lightning.settings.shipped_files import config_file, configs, similar_names, with_config_files

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def printed(capsys, *args: str) -> dict:
    """The settings that a command line gives."""
    with pytest.raises(SystemExit) as stop:
        main(["fit", *args, "--print_config"])
    assert not stop.value.code
    return yaml.safe_load(capsys.readouterr().out)


def test_every_file_of_the_folder_has_a_name():
    known = configs()
    assert {"quickstart", "methods/fedrep-srpfl", "data/cifar10", "papers/srpfl/fig3", "sweeps/conformity"} <= {*known}
    assert sorted(known.values()) == sorted((ROOT / "configs").rglob("*.yaml"))


def test_an_installed_package_has_the_folder_within(tmp_path, monkeypatch):
    installed = tmp_path / "site-packages/pfl_lightning/configs"
    (installed / "methods").mkdir(parents=True)
    (installed / "methods/fedrep.yaml").touch()
    strange = tmp_path / "site-packages/configs"  # of another package
    strange.mkdir()
    monkeypatch.setattr(shipped_files, "_FOLDERS", (installed, strange))
    assert configs() == {"methods/fedrep": installed / "methods/fedrep.yaml"}


@pytest.mark.parametrize("name", ["methods/fedrep", "methods/fedrep.yaml"])
def test_a_name_finds_the_file_with_and_without_its_ending(name):
    assert Path(config_file(name)) == ROOT / "configs/methods/fedrep.yaml"


def test_a_file_beats_a_name_and_a_folder_does_not():
    Path("data/cifar10").mkdir(parents=True)  # where the images are
    assert Path(config_file("data/cifar10")) == ROOT / "configs/data/cifar10.yaml"
    Path("quickstart").touch()
    assert config_file("quickstart") == "quickstart"


def test_a_file_in_the_home_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.yaml").write_text("seed_everything: 3\n")
    assert config_file("~/mine.yaml") == str(tmp_path / "mine.yaml")


@pytest.mark.parametrize("settings", ["model: FedAvg", '{"model": "FedAvg"}', "{}"])
def test_settings_in_place_of_a_file_are_left_alone(settings):
    assert config_file(settings) == settings


def test_the_words_around_a_name_are_left_alone():
    words = ["fit", "-c", "quickstart", "--config=methods/fedavg", "--model.local.lr", "0.1", "--data", "Digits"]
    path, method = ROOT / "configs/quickstart.yaml", ROOT / "configs/methods/fedavg.yaml"
    assert list(with_config_files(words)) == ["fit", "-c", str(path), f"--config={method}", *words[4:]]
    assert list(with_config_files(["fit", "--config"])) == ["fit", "--config"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("quikstart", "quickstart"),
        ("configs/quickstart", "quickstart"),
        ("fedrep", "methods/fedrep"),
        ("cifar10", "data/cifar10"),
        ("papers/srpfl/fig33", "papers/srpfl/fig3"),
    ],
)
def test_the_nearest_name_comes_first(name, nearest):
    assert similar_names(name)[0] == nearest


def test_what_is_like_no_name_gets_examples_that_exist():
    assert {*similar_names("0123456789")} <= {*configs()}


def test_names_compose_as_files_do(capsys):
    settings = printed(capsys, "--config", "data/cifar10", "--config=methods/fedrep-srpfl", "--model.local.lr=0.5")
    files = [f"--config={ROOT}/configs/{name}.yaml" for name in ("data/cifar10", "methods/fedrep-srpfl")]
    assert settings == printed(capsys, *files, "--model.local.lr=0.5")
    assert settings["model"]["class_path"].endswith("FedRep")


def test_a_file_of_the_users_own_may_name_others_beside_it(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/experiment.yaml").write_text("model: method.yaml\nseed_everything: 7\n")
    (tmp_path / "mine/method.yaml").write_text("class_path: FedProx\ninit_args: {proximity: 0.25}\n")
    settings = printed(capsys, "--config=quickstart", "--config=mine/experiment.yaml")
    assert settings["model"]["init_args"]["proximity"] == 0.25
    assert settings["data"]["init_args"]["num_clients"] == 20


@pytest.mark.slow
def test_sweeps_take_names_for_methods_data_and_themselves(monkeypatch):
    planned = []
    monkeypatch.setattr(sweep.Sweep, "execute", lambda _, run: planned.append(run) or run.folder)
    main(["sweep", "--methods", "methods/fedrep", "methods/fedavg", "--seeds=1", "--", "--config", "data/cifar10"])
    assert [run.folder.parent.name for run in planned] == ["fedrep", "fedavg"]
    assert all(run.settings["data"]["class_path"].endswith("CIFAR10") for run in planned)


def test_python_takes_names_too():
    for option in ("--model.local.lr=0.3", "--lr=0.3"):
        assert Experiment.from_settings("quickstart", option).settings["model"]["init_args"]["local"]["lr"] == 0.3
    with pytest.raises(PflError, match=r"^config: quikstart is not possible; .* such as quickstart$"):
        Experiment.from_settings("quikstart")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["fit", "--config=fedrep"], "config: fedrep is not possible; allowed: a file that exists, or a name such as "),
        (["data", "describe", "--config", "cifar"], "config: cifar is not possible"),
        (["sweep", "--config=conformity"], "config: conformity is not possible"),
        (["sweep", "--methods", "fedrep", "--seeds=1"], "methods: fedrep is not possible"),
        (["sweep", "--methods=methods/fedrep", "--seeds=1", "--", "-c", "cifar"], "config: cifar is not possible"),
    ],
)
def test_an_unknown_name_is_refused_in_one_line_with_names_like_it(args, line, capsys):
    with pytest.raises(SystemExit) as stop:
        main(args)
    (told,) = capsys.readouterr().err.splitlines()
    assert (stop.value.code, told.startswith(f"pfl: error: {line}")) == (2, True), told
    assert "such as" in told
