import copy

import pytest
import torch

from pfl_lightning.callbacks.run_folder import new_folder
from pfl_lightning.errors import PflError
from pfl_lightning.federation.checkpoints import FORMAT
from pfl_lightning.runs import find_resume, refuse_changes

SETTINGS = {
    "seed_everything": 1,
    "model": {
        "class_path": "FedRep",
        "init_args": {"lr": 0.1, "epochs": 1, "server_optimizer": {"init_args": {"lr": 1.0}}},
    },
    "data": {"class_path": "Digits", "init_args": {"root": "data", "num_clients": 20}},
    "trainer": {
        "max_steps": 5,
        "precision": None,
        "callbacks": [{"class_path": "pfl_lightning.callbacks.StageDoubling", "init_args": {"n0": 5}}],
    },
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
    torch.save({"format": FORMAT, "global_step": rounds}, folder / "last.ckpt")
    return folder / "last.ckpt"


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("model", "init_args", "lr"), 0.2, "model.lr: 0.1 in the checkpoint, 0.2 from now on"),
        (("model", "init_args", "server_optimizer", "init_args", "lr"), 0.5, "model.server_optimizer.lr: 1.0"),
        (("data", "init_args", "root"), "elsewhere", "data.root"),
    ],
)
def test_rates_and_places_may_change(path, value, line):
    (said,) = refuse_changes(SETTINGS, changed(*path, value=value))
    assert said.startswith(line)


@pytest.mark.parametrize("key", ["max_steps", "val_check_interval"])
def test_lengths_change_without_a_word(key):
    assert refuse_changes(SETTINGS, changed("trainer", key, value=99)) == []


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("seed_everything",), 2, "seed_everything: 1 in the checkpoint, 2 now"),
        (("model", "class_path"), "FedAvg", "model: FedRep in the checkpoint, FedAvg now"),
        (("model", "init_args", "epochs"), 3, "model.epochs: 1 in the checkpoint, 3 now"),
        (("data", "init_args", "num_clients"), 10, "data.num_clients: 20 in the checkpoint, 10 now"),
        (("trainer", "precision"), "64-true", "trainer.precision: None in the checkpoint, 64-true now"),
        (
            ("trainer", "callbacks"),
            None,
            "StageDoubling: pfl_lightning.callbacks.StageDoubling in the checkpoint",
        ),
    ],
)
def test_what_makes_a_run_may_not_change(path, value, line):
    with pytest.raises(PflError) as refused:
        refuse_changes(SETTINGS, changed(*path, value=value))
    assert str(refused.value).startswith(line)


FULL = {
    **SETTINGS,
    "model": {
        "class_path": "pfl_lightning.methods.FedRep",
        "init_args": {"epochs": 1, "network": {"class_path": "pfl_lightning.models.MLP", "init_args": {"hidden": [8]}}},
    },
    "data": {"class_path": "pfl_lightning.data.EMNIST", "init_args": {"classes": None, "participation": None}},
}


def told(*path, value, old=FULL):
    """What is said of one other setting now."""
    new = copy.deepcopy(old)
    inner = new
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return refuse_changes(old, new)


@pytest.mark.parametrize(
    ("path", "default", "other"),
    [
        (("model", "init_args", "head_epochs"), 10, 3),
        (("model", "init_args", "chunk_size"), None, 5),
        (("model", "init_args", "network", "init_args", "dropouts"), [], [0.5]),
        (("data", "init_args", "num_clients"), None, 10),
        (("data", "init_args", "participation"), None, {"pool_size": 5}),
        (("trainer", "callbacks", 0, "init_args", "rounds_per_stage"), 10, 4),
    ],
)
def test_an_option_that_is_younger_than_the_checkpoint_had_its_default_there(path, default, other):
    assert told(*path, value=default) == []
    with pytest.raises(PflError, match=rf"{path[-1]}.*: .* in the checkpoint, .* now; keep the old value"):
        told(*path, value=other)


def test_a_null_in_the_checkpoint_is_no_missing_option():
    # EMNIST has the classes 0 to 9 by default
    with pytest.raises(PflError, match=r"data\.classes: None in the checkpoint, \[0, 10\] now"):
        told("data", "init_args", "classes", value=[0, 10])


@pytest.mark.parametrize("part", [("model",), ("model", "init_args", "network"), ("trainer", "callbacks", 0)])
def test_an_option_that_its_class_no_longer_has_is_no_change(part):
    old = copy.deepcopy(FULL)
    inner = old
    for key in part:
        inner = inner[key]
    inner["init_args"]["gone"] = 1
    assert refuse_changes(old, FULL) == []


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
