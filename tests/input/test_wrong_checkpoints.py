"""Checkpoints that lack or distort an entry, or name what they must not: one line with the file and the entry."""

import copy
import sys
from pathlib import Path

import pytest
import torch

from pfl_lightning.cli import main
from pfl_lightning.errors import PflError
from pfl_lightning.methods import load_method
from pfl_lightning.runs import find_resume, refuse_changes

OPTIONS = [
    *("--model=FedRep", "--model.network=MLP", "--model.network.hidden=[4]", "--data.num_clients=4"),
    *("--model.server_optimizer=torch.optim.Adam", "--trainer.enable_progress_bar=false", "--trainer.logger=false"),
]
GONE = object()
HOSTILE = """
from pathlib import Path
from torch.optim import Optimizer
from pfl_lightning.models import Network
def call(*_, **__):
    Path("called").touch()
def network(shape: tuple[int, ...], classes: int) -> Network:
    call()
def optimizer(parameters) -> Optimizer:
    call()
class Other:
    def __init__(self, *_, **__):
        call()
"""
STEPS = ("loops", "fit_loop", "epoch_loop.manual_optimization.optim_step_progress")
OPTIMIZER = ("optimizer_states", 0)

METHOD_ROWS = [  # refused wherever a checkpoint is read
    (("pytorch-lightning_version",), "new", "a version"),
    (("pytorch-lightning_version",), GONE, "is missing"),
    (("method",), GONE, "is missing"),
    (("method",), ["os", "system"], "allowed: the path of a class"),
    (("global_step",), GONE, "is missing"),
    (("global_step",), -5, "-5 is not possible; allowed: a whole number from 0"),
    (("global_step",), True, "allowed: a whole number from 0"),
    (("global_step",), 2.0, "allowed: a whole number from 0"),
    (("state_dict",), GONE, "is missing"),
    (("state_dict",), {}, "{} is not possible; allowed: tensors with names"),
    (("state_dict",), [torch.zeros(2)], "allowed: tensors with names"),
    (("state_dict", "network.fc1.bias"), [0.0] * 4, "allowed: a tensor, or a packed one"),
    (("state_dict", "network.fc1.bias"), (torch.zeros(1), torch.zeros(1), (-4,)), "allowed: a tensor, or a packed one"),
    (("shape",), GONE, "shape.input_shape is missing"),
    (("shape",), 7, "shape.input_shape is missing"),
    (("shape", "input_shape"), (1, 0, 8), "allowed: whole numbers from 1"),
    (("shape", "num_classes"), 0, "0 is not possible; allowed: a whole number from 1"),
    (("shape", "num_clients"), "4", "'4' is not possible; allowed: a whole number from 1"),
    (("shape", "test_only"), None, "None is not possible; allowed: true, false"),
    (("hyper_parameters",), GONE, "is missing"),
    (("hyper_parameters",), {1: 2}, "allowed: a mapping with names"),
    (("given",), GONE, "is missing"),
    (("given",), {"loss": 7}, "allowed: import paths, or null, by option"),
    (("clock",), GONE, "is missing"),
    (("clock", "compute"), GONE, "allowed: a mapping with compute, ready, rounds, total"),
    (("clock", "minutes"), 1.0, "allowed: a mapping with compute, ready, rounds, total"),
    (("clock", "rounds"), 1, "1 is not possible; allowed: 2, as global_step says"),
    (("clock", "total"), -1.0, "-1.0 is not possible; allowed: a finite number from 0"),
    (("clock", "total"), float("nan"), "nan is not possible"),
    (("clock", "ready"), {"a": 1.0}, "allowed: seconds by client"),
    (("ledger", "total"), GONE, "allowed: a mapping with down, paper, samples, total, up"),
    (("ledger", "total"), 1.5, "1.5 is not possible; allowed: a whole number from 0"),
    (("sums",), (1, 2, 3), "allowed: two whole numbers from 0"),
    (("sparsity",), {"weight": 0.0}, "allowed: a mapping with floor"),
    (("engine",), GONE, "engine.limit is missing"),
    (("engine", "limit"), 0, "0 is not possible; allowed: null, or a whole number from 1"),
    (("monitor",), 7, "7 is not possible; allowed: a text"),
    (("config", "model", "class_path"), GONE, "is missing"),
    (("config", "model", "init_args"), [1], "allowed: a mapping with names"),
]
RUN_ROWS = [  # refused by the command line
    (("config",), GONE, "is missing"),
    (("config",), {"model": torch.zeros(2)}, "allowed: settings of plain values"),
    (("config", "checkpoint"), None, "allowed: a mapping with names"),
    (("config", "data", "class_path"), 7, "allowed: the path of a class"),
    (("config", "trainer"), 7, "allowed: a mapping with names"),
    (("config", "trainer", "callbacks"), "StageDoubling", "allowed: null, a callback or a list of callbacks"),
    (("fingerprint",), GONE, "is missing"),
    (("fingerprint",), 7, "7 is not possible; allowed: a text"),
]
TRAINING_ROWS = [  # refused where training continues
    (("loops",), GONE, "loops.fit_loop.epoch_progress is missing"),
    (("loops", "fit_loop", "epoch_loop.batch_progress"), GONE, "is missing"),
    (("loops", "fit_loop", "epoch_loop.batch_progress", "total"), 3, "allowed: Lightning's progress"),
    (("loops", "fit_loop", "epoch_loop.batch_progress", "current", "ready"), -1, "allowed: Lightning's progress"),
    (("loops", "fit_loop", "epoch_loop.batch_progress", "is_last_batch"), 1, "1 is not possible; allowed: true, false"),
    ((*STEPS, "total", "completed"), 7, "7 is not possible; allowed: 2, as global_step says"),
    (("loops", "fit_loop", "state_dict", "combined_loader"), [], "allowed: 2, as global_step says"),
    (("loops", "fit_loop", "state_dict", "combined_loader", 0, "done"), 0, "allowed: 2, as global_step says"),
    (("callbacks",), GONE, "is missing"),
    (("callbacks", "RoundCheckpoint"), 7, "allowed: states by callback"),
    (("optimizer_states",), [], "[] is not possible; allowed: a list of one state"),
    ((*OPTIMIZER, "state"), [1], "allowed: states by parameter"),
    ((*OPTIMIZER, "param_groups"), 7, "param_groups.0.params is missing"),
    (("lr_schedulers",), [{}], "allowed: an empty list"),
]
BUILT_ROWS = [  # what only the method, the network and the callbacks can tell
    (("given", "loss"), "torch.nn.CrossEntropyLoss", "loss: torch.nn.CrossEntropyLoss in the checkpoint, none now"),
    (("state_dict", "network.fc1.bias"), GONE, "state_dict.network.fc1.bias is missing"),
    (("state_dict", "network.fc9.bias"), torch.zeros(4), "state_dict.network.fc9.bias is one too many"),
    (
        ("state_dict", "network.fc1.bias"),
        torch.zeros(5),
        "torch.float32 (5,) is not possible; allowed: torch.float32 (4,)",
    ),
    (
        ("state_dict", "network.fc1.bias"),
        torch.zeros(4).long(),
        "torch.int64 (4,) is not possible; allowed: torch.float",
    ),
    (("state_dict", "network.fc1.bias"), torch.zeros(4).double(), "torch.float64 (4,) is not possible"),
    (("state_dict", "network.fc1.bias"), (torch.ones(1), torch.ones(9), (4,)), "state_dict"),
]
CHANGED_ROWS = [  # of a checkpoint that has the rows of some clients
    (("clients",), 7, "clients.ids is missing"),
    (("clients",), {}, "clients.ids is missing"),
    (("clients", "ids"), GONE, "clients.ids is missing"),
    (("clients", "ids"), [0, 1], "[0, 1] is not possible; allowed: ids of clients"),
    (("clients", "ids"), torch.arange(4).float(), "allowed: ids of clients"),
    (("clients", "ids"), torch.zeros(2, 2).long(), "allowed: ids of clients"),
    (("clients", "ids"), torch.tensor([0, 1, 2, 4]), "tensor([0, 1, 2, 4]) is not possible; allowed: different ids"),
    (("clients", "ids"), torch.tensor([0, 1, 2, -1]), "allowed: different ids below 4"),
    (("clients", "ids"), torch.tensor([0, 1, 2, 2]), "allowed: different ids below 4"),
    (("clients", "ids"), torch.arange(3), "state_dict.clients.fc2.bias: torch.float32 (4, 10) is not possible"),
    (("clients", "start"), GONE, "clients.start is missing"),
    (("clients", "start"), torch.zeros(10), "allowed: tensors with names"),
    (("clients", "start", "fc2.bias"), None, "allowed: tensors with names"),
    (("clients", "start", "fc2.bias"), GONE, "clients.start.fc2.bias is missing"),
    (("clients", "start", "fc3.bias"), torch.zeros(10), "clients.start.fc3.bias is one too many"),
    (("clients", "start", "fc2.bias"), torch.zeros(9), "torch.float32 (9,) is not possible; allowed: torch.float32 (1"),
    (("clients", "start", "fc2.bias"), torch.zeros(10).double(), "torch.float64 (10,) is not possible"),
    (("state_dict", "clients.fc2.bias"), GONE, "state_dict.clients.fc2.bias is missing"),
]
FITTED_ROWS = [
    (("callbacks", "RoundCheckpoint", "best_score"), GONE, "callbacks.RoundCheckpoint.best_score is missing"),
    (("callbacks", "RoundCheckpoint", "best_round"), "2", "'2' is not possible; allowed: a number"),
    ((*OPTIMIZER, "state", 1, "exp_avg"), torch.zeros(3), "optimizer_states.0.state.1.exp_avg: "),
    ((*OPTIMIZER, "state", 9), {"exp_avg": torch.zeros(3)}, "optimizer_states.0.state.9.exp_avg: "),
    (("shape", "num_classes"), 11, "shape.num_classes: 11 is not possible; allowed: 10"),
]


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """A checkpoint after two rounds."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["pfl"])
        main(["fit", *OPTIONS, "--trainer.max_steps=2"])
    (path,) = folder.rglob("last.ckpt")
    return torch.load(path, weights_only=True)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def changed(content, key, value):
    """The same with another entry, or without it."""
    content = copy.deepcopy(content)
    inner = content
    for step in key[:-1]:
        inner = inner[step]
    if value is GONE:
        del inner[key[-1]]
    else:
        inner[key[-1]] = value
    return content


def refused(act, *words):
    """The one line of a PflError, which names the file."""
    with pytest.raises(PflError) as refusal:
        act()
    line = str(refusal.value)
    assert "\n" not in line
    assert line.startswith("ckpt_path: 'x.ckpt'")
    assert all(word in line for word in words), line


def resume(settings):
    return refuse_changes(find_resume("x.ckpt", Path("runs")).content["config"], settings)


def names(rows):
    return [f"{'.'.join(map(str, key))}-{'gone' if value is GONE else n}" for n, (key, value, _) in enumerate(rows)]


def test_the_checkpoint_itself_passes(content):
    torch.save(content, "x.ckpt")
    assert resume(content["config"]) == []
    assert type(load_method("x.ckpt")).__name__ == "FedRep"
    main(["fit", *OPTIONS, "--trainer.max_steps=3", "--ckpt_path=x.ckpt"])


@pytest.mark.parametrize(("key", "value", "words"), METHOD_ROWS, ids=names(METHOD_ROWS))
def test_no_method_is_made_of_a_wrong_entry(key, value, words, content):
    torch.save(changed(content, key, value), "x.ckpt")
    refused(lambda: load_method("x.ckpt"), words, key[0])
    refused(lambda: resume(content["config"]), words, key[0])


@pytest.mark.parametrize(("key", "value", "words"), RUN_ROWS + TRAINING_ROWS, ids=names(RUN_ROWS + TRAINING_ROWS))
def test_no_run_continues_from_a_wrong_entry(key, value, words, content):
    torch.save(changed(content, key, value), "x.ckpt")
    refused(lambda: resume(content["config"]), words, key[0])


@pytest.mark.parametrize(("key", "value", "words"), BUILT_ROWS, ids=names(BUILT_ROWS))
def test_tensors_must_fit_the_method_and_its_network(key, value, words, content):
    torch.save(changed(content, key, value), "x.ckpt")
    refused(lambda: load_method("x.ckpt"), words)


@pytest.fixture(scope="module")
def with_changed_rows(content):
    """The same checkpoint as one that has the rows of those clients alone that have changed: all of them have."""
    rows = {name.removeprefix("clients."): t for name, t in content["state_dict"].items() if name.startswith("clients")}
    return {**content, "clients": {"ids": torch.arange(4), "start": {name: stack[0] for name, stack in rows.items()}}}


def test_a_checkpoint_with_changed_rows_passes(with_changed_rows):
    torch.save(with_changed_rows, "x.ckpt")
    assert torch.equal(
        load_method("x.ckpt").clients.stack("fc2.bias"), with_changed_rows["state_dict"]["clients.fc2.bias"]
    )


@pytest.mark.parametrize(("key", "value", "words"), CHANGED_ROWS, ids=names(CHANGED_ROWS))
def test_rows_must_be_those_of_the_clients(key, value, words, with_changed_rows):
    torch.save(changed(with_changed_rows, key, value), "x.ckpt")
    refused(lambda: load_method("x.ckpt"), words)


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test"])
@pytest.mark.parametrize(("key", "value", "words"), [METHOD_ROWS[5], BUILT_ROWS[3]], ids=["entry", "tensor"])
def test_every_subcommand_refuses_in_one_line(subcommand, key, value, words, content, capsys):
    torch.save(changed(content, key, value), "x.ckpt")
    with pytest.raises(SystemExit) as stop:
        main([subcommand, *OPTIONS, "--ckpt_path=x.ckpt"])
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 1
    assert line.startswith("pfl: error: ckpt_path: 'x.ckpt': ")
    assert words in line


@pytest.mark.parametrize(("key", "value", "words"), FITTED_ROWS, ids=names(FITTED_ROWS))
def test_training_needs_states_that_fit(key, value, words, content, capsys):
    torch.save(changed(content, key, value), "x.ckpt")
    with pytest.raises(SystemExit) as stop:
        main(["fit", *OPTIONS, "--trainer.max_steps=3", "--ckpt_path=x.ckpt"])
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 1
    assert line.startswith("pfl: error: ckpt_path: 'x.ckpt': ")
    assert words in line


@pytest.mark.parametrize("held", [[1, 2], torch.zeros(3), "text", None])
def test_what_is_no_mapping_is_no_checkpoint(held):
    torch.save(held, "x.ckpt")
    refused(lambda: load_method("x.ckpt"), "allowed: a checkpoint of pfl fit")


def test_a_checkpoint_of_anything_but_plain_values_is_refused(content):
    torch.save({**content, "config": Path("x")}, "x.ckpt")
    refused(lambda: load_method("x.ckpt"), "allowed: a checkpoint of pfl fit")


@pytest.mark.parametrize("damage", ["byte", "end", "empty"])
def test_a_damaged_file_is_not_read(damage, content):
    torch.save(content, "x.ckpt")
    data, tensor = Path("x.ckpt").read_bytes(), content["state_dict"]["network.fc1.weight"].numpy().tobytes()
    place = data.index(tensor) + 5
    flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    Path("x.ckpt").write_bytes({"byte": flipped, "end": data[:-100], "empty": b""}[damage])
    refused(lambda: load_method("x.ckpt"), "is damaged or not complete")
    refused(lambda: resume(content["config"]), "is damaged or not complete")


@pytest.mark.parametrize("name", ["call", "network", "optimizer", "Other"])
@pytest.mark.parametrize("option", ["network", "server_optimizer", "aggregator", "sparsity"])
@pytest.mark.parametrize("form", [str, lambda path: {"class_path": path, "init_args": {}}], ids=["text", "class"])
def test_settings_of_a_checkpoint_call_no_function_and_no_other_class(name, option, form, content):
    Path("hostile.py").write_text(HOSTILE)
    torch.save(changed(content, ("config", "model", "init_args", option), form(f"hostile.{name}")), "x.ckpt")
    refused(lambda: load_method("x.ckpt"), "config.model")
    with pytest.raises(PflError, match=f"model.{option}"):
        resume(content["config"])
    assert not Path("called").exists()


@pytest.mark.parametrize("path", ["hostile.call", "hostile.Other", "torch.nn.Linear", "no.such", "FedRep"])
def test_only_a_subclass_of_method_is_made_by_its_name(path, content):
    Path("hostile.py").write_text(HOSTILE)
    if path != "FedRep":  # which the parser knows
        torch.save(changed(content, ("config", "model", "class_path"), path), "x.ckpt")
        refused(lambda: load_method("x.ckpt"), "config.model")
    del (python := copy.deepcopy(content))["config"]
    torch.save({**python, "method": path}, "x.ckpt")
    refused(lambda: load_method("x.ckpt"), "method: ")
    assert not Path("called").exists()


def test_a_resume_imports_no_class_that_it_does_not_use(content):
    Path("bystander.py").write_text(HOSTILE)
    wrong = changed(content, ("config", "model", "init_args", "network", "class_path"), "bystander.Other")
    torch.save(wrong, "x.ckpt")
    with pytest.raises(PflError, match=r"model\.network: bystander\.Other in the checkpoint"):
        resume(content["config"])
    assert "bystander" not in sys.modules
