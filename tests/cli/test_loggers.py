"""The run folder is where the run says, whatever loggers the settings name."""

from importlib import import_module
from pathlib import Path

import pytest
import yaml
from fakes.tables import read_table

from pfl_lightning.cli import main
from pfl_lightning.runs import loggers

RUN = Path("runs/FedAvg-Digits/version_0")
TINY = ["--model.network=MLP", "--model.network.hidden=[4]", "--model.eval_epochs=0", "--data.num_clients=4"]
QUICK = ["--trainer.enable_progress_bar=false", "--trainer.max_steps=2", "--trainer.val_check_interval=2"]
OURS = {"checkpoints", "clients.csv", "config.yaml", "label.yaml", "metrics.csv"}
MINE = '''
from pathlib import Path
from uuid import uuid4
from lightning.pytorch.loggers import Logger

class Remote(Logger):
    """Has a folder and a name as wandb's logger does."""

    name = version = None

    def __init__(self, save_dir: str = ".", level: int = 0) -> None:
        super().__init__()
        self.place = Path(save_dir)

    @property
    def save_dir(self):
        return str(self.place)

    def log_hyperparams(self, *args, **kwargs):
        pass

    def log_metrics(self, metrics, step):
        self.place.mkdir(exist_ok=True)
        with (self.place / "remote.txt").open("a") as file:
            file.write(f"{step}\\n")

class Nowhere(Remote):
    """Keeps nothing."""

    save_dir = None

    def log_metrics(self, metrics, step):
        pass

class Gallery(Remote):
    """Takes images as wandb's logger does."""

    def log_image(self, key, images, step):
        self.place.mkdir(exist_ok=True)
        with (self.place / "images.txt").open("a") as file:
            file.write(f"{key} {step} ({images[0].ndim},)\\n")

    def log_hyperparams(self, params):
        data = params["data"].rpartition(".")[2]
        (self.place / "settings.txt").write_text(f"{params['model.local.lr']} {params['model.network.hidden']} {data}")

class Tracked(Remote):
    """Begins a run of its own, as MLflow's logger does, unless it is told to go on with one."""

    def __init__(self, run_id: str | None = None) -> None:
        super().__init__()
        self.version = run_id or uuid4().hex

class Broken(Remote):
    """Cannot be made."""

    def __init__(self) -> None:
        raise ModuleNotFoundError("pip install\\nbroken")
'''


@pytest.fixture(autouse=True)
def in_a_folder_with_files_of_the_user(in_an_empty_folder, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    Path("mine.py").write_text(MINE)
    for name in ("config.yaml", "clients.csv", "metrics.csv"):
        Path(name).write_text("mine")


def fit(*options: str) -> None:
    main(["fit", *TINY, *QUICK, *options])


def names(folder: str | Path = ".") -> set[str]:
    return {path.name for path in Path(folder).iterdir()} - {".lock", "__pycache__"}


def assert_the_files_of_the_user_are_theirs() -> None:
    assert {Path(name).read_text() for name in ("config.yaml", "clients.csv", "metrics.csv")} == {"mine"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loggers", "in_run", "beside"),
    [
        ([], {"events", "hparams.yaml"}, set()),
        (["--trainer.logger=mine.Remote", "--trainer.logger.save_dir=kept"], set(), {"kept"}),
        (["--trainer.logger=TensorBoardLogger", "--trainer.logger.save_dir=kept"], set(), {"kept"}),
        (
            ["--trainer.logger=mine.Remote", "--trainer.logger+=CSVLogger", "--trainer.logger.save_dir=kept"],
            {"remote.txt"},
            {"kept"},
        ),
    ],
)
def test_a_run_has_its_files_in_its_folder_with_any_loggers(loggers, in_run, beside, capsys):
    fit(*loggers)
    fit(*loggers, "--trainer.max_steps=3", "--ckpt_path=last")
    assert {name.split(".")[0] if name.startswith("events") else name for name in names(RUN)} == OURS | in_run
    assert names() == {"mine.py", "config.yaml", "clients.csv", "metrics.csv", "runs"} | beside
    assert_the_files_of_the_user_are_theirs()
    assert names(RUN / "checkpoints") == {"last.ckpt", "previous.ckpt", "best.ckpt"}
    assert [row["round"] for row in read_table(RUN / "metrics.csv")] == ["0", "1", "2", "3"]
    assert f"Run folder:     {RUN}" in capsys.readouterr().out


@pytest.mark.slow
def test_the_saved_settings_start_another_run_with_a_folder_of_its_own(capsys):
    fit("--trainer.logger=mine.Remote")
    saved = yaml.safe_load((RUN / "config.yaml").read_text())["trainer"]["logger"]
    assert saved == {"class_path": "mine.Remote", "init_args": {"save_dir": ".", "level": 0}}
    main(["fit", f"--config={RUN / 'config.yaml'}"])
    assert "remote.txt" in names(RUN.with_name("version_1"))
    assert (RUN.with_name("version_1") / "config.yaml").read_text() == (RUN / "config.yaml").read_text()


@pytest.mark.parametrize("logger", ["mine.Nowhere", "false"])
def test_a_profiler_writes_into_the_folder_of_the_run(logger, capsys):
    fit(f"--trainer.logger={logger}", "--trainer.profiler=SimpleProfiler", "--trainer.profiler.filename=profile")
    assert "run_training_epoch" in (RUN / "fit-profile.txt").read_text()
    assert names() == {"mine.py", "config.yaml", "clients.csv", "metrics.csv", "runs"}


@pytest.mark.slow
def test_a_logger_gets_settings_by_their_names_on_the_command_line_and_images_if_it_takes_them():
    fit("--trainer.logger=mine.Gallery", "--model.local.lr=0.25")
    assert (RUN / "settings.txt").read_text() == "0.25 [4] Digits"
    drawn = [line.split() for line in (RUN / "images.txt").read_text().splitlines()]
    assert [(tag, step) for tag, step, _ in drawn] == [
        ("data/partition", "0"),
        ("test/global/error_by_samples", "0"),
        ("test/global/error_by_samples", "2"),
    ]
    assert {shape for _, _, shape in drawn} == {"(3,)"}, "height, width and three colours"


@pytest.mark.slow
def test_a_run_that_continues_goes_on_with_its_run_of_a_tracker(monkeypatch, capsys):
    monkeypatch.setitem(loggers.CONTINUED, import_module("mine").Tracked, "run_id")
    begun = []
    for options in ([], ["--trainer.max_steps=3", "--ckpt_path=last"]):
        fit("--trainer.logger=mine.Tracked", *options)
        begun.append(yaml.safe_load((RUN / "loggers.yaml").read_text())["Tracked"])
    assert begun[0] == begun[1]


def test_without_loggers_there_are_only_settings_and_checkpoints(capsys):
    fit("--trainer.logger=false")
    assert names(RUN) == {"checkpoints", "config.yaml", "label.yaml"}
    assert_the_files_of_the_user_are_theirs()


def test_a_logger_that_cannot_be_made_leaves_nothing(refused):
    line = "trainer.logger: Broken cannot be made: pip install broken"
    assert refused("fit", *TINY, *QUICK, "--trainer.logger=mine.Broken") == (1, line)
