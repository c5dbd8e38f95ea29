import copy
from pathlib import Path

import pytest
import torch

from pfl_lightning.errors import PflError
from pfl_lightning.federation.checkpoints import FORMAT
from pfl_lightning.runs.folders import new_folder
from pfl_lightning.runs.resume import Resume, changes_on_resume, find_resume

SETTINGS = {
    "seed_everything": 1,
    "model": {
        "class_path": "FedRep",
        "init_args": {"local": {"lr": 0.1, "epochs": 1}, "server_optimizer": {"init_args": {"lr": 1.0}}},
    },
    "data": {"class_path": "Digits", "init_args": {"root": "data", "num_clients": 20}},
    "checkpoint": {},
    "percentile_errors": {},
    "trainer": {
        "max_steps": 5,
        "precision": None,
        "callbacks": [{"class_path": "pfl_lightning.callbacks.StageDoubling", "init_args": {"n0": 5}}],
    },
}


SAID = {
    "format": FORMAT,
    "global_step": 2,
    "config": SETTINGS,
    "fingerprint": "0",
    "callbacks": {},
    "monitor": "val/accuracy",
}


def changed(*path, value):
    settings = copy.deepcopy(SETTINGS)
    inner = settings
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return settings


def save(folder, rounds=2):
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({**SAID, "global_step": rounds}, folder / "last.ckpt")
    return folder / "last.ckpt"


def changes(settings, before=SETTINGS):
    return changes_on_resume(Resume(Path("x.ckpt"), {"config": before}, Path("runs/version_0")), settings)


@pytest.mark.parametrize(
    ("path", "before", "now"),
    [
        (("model", "init_args", "local", "lr"), 0.1, 0.2),
        (("model", "init_args", "head_lr"), None, 0.2),
        (("model", "init_args", "server_optimizer", "init_args", "lr"), 1.0, 0.5),
        (("data", "init_args", "root"), "data", "elsewhere"),
        (("model", "init_args", "chunk_size"), None, 4),
        (("checkpoint", "every"), None, 4),
    ],
)
def test_rates_places_and_what_no_number_depends_on_may_change(path, before, now):
    key = ".".join(name for name in path if name != "init_args")
    assert changes(changed(*path, value=now)) == {key: (before, now)}


@pytest.mark.parametrize(
    "path", [("trainer", "max_steps"), ("trainer", "val_check_interval"), ("percentile_errors", "errors")]
)
def test_lengths_and_what_is_logged_change_without_a_word(path):
    assert changes(changed(*path, value=99)) == {}


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("seed_everything",), 2, "seed_everything: 1 in the checkpoint, 2 now"),
        (("model", "class_path"), "FedAvg", "model: FedRep in the checkpoint, FedAvg now"),
        (("model", "init_args", "local", "epochs"), 3, "model.local.epochs: 1 in the checkpoint, 3 now"),
        (("data", "init_args", "num_clients"), 10, "data.num_clients: 20 in the checkpoint, 10 now"),
        (("model", "init_args", "color"), 1, "model.color: None in the checkpoint, 1 now"),
        (("model", "init_args", "xlr"), 1, "model.xlr: None in the checkpoint, 1 now"),
        (("a section",), {"option": 1}, "a section.option: None in the checkpoint, 1 now"),
        (("checkpoint", "monitor"), "val/loss", "checkpoint.monitor: None in the checkpoint, val/loss now"),
        (("trainer", "precision"), "64-true", "trainer.precision: 32-true in the checkpoint, 64-true now"),
        (
            ("trainer", "callbacks"),
            None,
            "trainer.callbacks.StageDoubling: pfl_lightning.callbacks.StageDoubling in the checkpoint",
        ),
    ],
)
def test_what_makes_a_run_may_not_change(path, value, line):
    with pytest.raises(PflError) as refused:
        changes(changed(*path, value=value))
    assert str(refused.value).startswith(line)


def test_the_usual_precision_may_be_written_out():
    assert changes(changed("trainer", "precision", value="32-true")) == {}


def test_a_default_may_be_written_out_but_not_become_another():
    def digits(**options):
        return changed("data", value={"class_path": "pfl_lightning.data.Digits", "init_args": options})

    speeds = {"class_path": "pfl_lightning.system.FixedExponential", "init_args": {"mean": 1.0, "seed": 0}}
    written = digits(num_clients=20, speeds=speeds)
    assert changes(written, digits(num_clients=None, speeds=None)) == changes(digits(), written) == {}
    with pytest.raises(PflError, match=r"^data.num_clients: 20 in the checkpoint, 5 now; .* for '"):
        changes(digits(num_clients=5), digits())


def test_a_new_run_takes_the_next_number(tmp_path):
    (tmp_path / "version_7").mkdir()
    (tmp_path / "version_x").mkdir()
    assert [new_folder(tmp_path).path.name for _ in range(2)] == ["version_8", "version_9"]
    assert new_folder(tmp_path / "new").path.name == "version_0"


def test_last_is_the_newest_run_with_a_readable_checkpoint(tmp_path):
    for number in (2, 10):
        save(tmp_path / f"version_{number}" / "checkpoints", number)
    (tmp_path / "version_11").mkdir()
    resume = find_resume("last", tmp_path)
    assert resume.folder == tmp_path / "version_10"
    assert resume.content["global_step"] == 10


def test_the_tensors_of_a_checkpoint_do_not_stay_in_memory(tmp_path):
    torch.save({**SAID, "state_dict": {"clients.fc1.weight": torch.ones(3)}}, tmp_path / "last.ckpt")
    content = find_resume(str(tmp_path / "last.ckpt"), tmp_path).content
    assert {**content, "format": FORMAT} == {**SAID, "changed": {}, "file": str(tmp_path / "last.ckpt")}


def test_a_truncated_checkpoint_falls_back_with_a_warning(tmp_path):
    folder = tmp_path / "version_0" / "checkpoints"
    last = save(folder, 1).rename(folder / "previous.ckpt")
    last = save(folder, 2)
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="damaged; falling back"):
        resume = find_resume("last", tmp_path)
    assert (resume.content["global_step"], resume.folder) == (1, tmp_path / "version_0")


def test_an_older_checkpoint_starts_a_run_of_its_own(tmp_path):
    folder = tmp_path / "version_0" / "checkpoints"
    assert find_resume(str(save(folder)), tmp_path).folder == tmp_path / "version_0"
    best = save(folder).rename(folder / "best.ckpt")
    assert find_resume(str(best), tmp_path).folder is None


@pytest.mark.parametrize("written", [None, b"not a checkpoint"])
def test_a_missing_or_unreadable_checkpoint_is_an_error(written, tmp_path):
    path = tmp_path / "x.ckpt"
    if written:
        path.write_bytes(written)
    with pytest.raises(PflError, match=r"ckpt_path: .*x\.ckpt"):
        find_resume(str(path), tmp_path)


def test_last_without_any_run_is_an_error(tmp_path):
    with pytest.raises(PflError, match="ckpt_path: last, but no run"):
        find_resume("last", tmp_path)
