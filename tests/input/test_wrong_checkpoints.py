"""Checkpoints that lack or distort an entry, or name what they must not: one line with the file and the entry."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies

from pfl_lightning import load_method
from pfl_lightning.cli import main
from pfl_lightning.errors import PflError
from pfl_lightning.runs.resume import changes_on_resume, find_resume

OPTIONS = [
    *("--model=FedRep", "--model.network=MLP", "--model.network.hidden=[4]", "--data.num_clients=4"),
    *("--model.server_optimizer=torch.optim.Adam", "--trainer.enable_progress_bar=false", "--trainer.logger=false"),
]
GONE = object()
WRONG_VALUES = strategies.sampled_from([GONE, None, -1, 0.5, float("nan"), "x", [], [1], {}, {"a": 1}])
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
class Called(Other):
    def __call__(self, *_):
        call()
"""
# objects that can be called, with constructors that run what they are given, or that do so when they are called
EVALUATING = {
    "class_path": "sympy.Lambda",
    "init_args": {"signature": "x", "expr": "__import__('pathlib').Path('called').touch()"},
}
LAUNCHING = {
    "class_path": "torch.distributed.launcher.api.elastic_launch",
    "init_args": {"config": {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1}, "entrypoint": "/usr/bin/touch"},
}
OWN = {"class_path": "hostile.Called", "init_args": {}}
COMPOSED, OPERANDS = "torchmetrics.metric.CompositionalMetric", {"metric_a": 1.0, "metric_b": 1.0}
OPTIMIZER = ("optimizer_states", 0)
BIAS = ("state_dict", "network.fc1.bias")

METHOD_ROWS = [  # refused wherever a checkpoint is read: an entry that is missing, of another type, or out of range
    (("state_dict",), GONE),
    (("state_dict",), [torch.zeros(2)]),
    (BIAS, [0.0] * 4),
    (("shape",), 7),
    (("shape", "num_clients"), "4"),
    (("given",), {"loss": 7}),
    (("accounting",), GONE),
    (("accounting", "ledger", "samples"), {"a": 1}),
    (("accounting", "clock", "compute"), float("nan")),
    (("format",), GONE),
    (("format",), 0),
    # what only the method and its network can tell
    (("given", "loss"), "torch.nn.CrossEntropyLoss"),
    (BIAS, GONE),
    (("state_dict", "network.fc9.bias"), torch.zeros(4)),
    (BIAS, torch.zeros(5)),
    (BIAS, torch.tensor([0.0, float("nan"), 0.0, 0.0])),
]
CHANGED_ROWS = [  # of a checkpoint that has the rows of some clients
    (("clients",), {}),
    (("clients", "ids"), [0, 1]),
    (("clients", "ids"), torch.tensor([0, 1, 2, 4])),  # of 4 clients
    (("clients", "ids"), torch.tensor([0, 1, 2, 2])),
    (("clients", "ids"), torch.arange(3)),  # of 4 rows
    (("clients", "start", "fc2.bias"), GONE),
    (("clients", "start", "fc2.bias"), torch.zeros(9)),
    (("state_dict", "clients.fc2.bias"), GONE),
]


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """A checkpoint after two rounds."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["fit", *OPTIONS, "--trainer.max_steps=2"])
    (path,) = folder.rglob("last.ckpt")
    return torch.load(path, weights_only=True)


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


def places(entry, *above):
    """The keys of everything in a checkpoint."""
    for key, inner in entry.items() if isinstance(entry, dict) else ():
        yield (*above, key)
        yield from places(inner, *above, key)


@pytest.fixture
def unread(refusal):
    """Saves what no method is made of; the reading says in one line what is wrong with the file."""

    def of(content):
        torch.save(content, "x.ckpt")
        assert refusal(lambda: load_method("x.ckpt")).startswith("ckpt_path: 'x.ckpt'")

    return of


def resume(settings):
    return changes_on_resume(find_resume("x.ckpt", Path("runs")), settings)


def rows(table):
    names = [f"{'.'.join(map(str, key))}-{'gone' if value is GONE else n}" for n, (key, value) in enumerate(table)]
    return pytest.mark.parametrize(("key", "value"), table, ids=names)


def test_the_checkpoint_itself_passes(content):
    torch.save(content, "x.ckpt")
    assert resume(content["config"]) == {}
    assert type(load_method("x.ckpt")).__name__ == "FedRep"
    main(["fit", *OPTIONS, "--trainer.max_steps=3", "--ckpt_path=x.ckpt"])


@rows(METHOD_ROWS)
def test_no_method_is_made_of_a_wrong_entry_or_of_tensors_that_do_not_fit_it(key, value, content, unread):
    unread(changed(content, key, value))


def said_by(read):
    """What is said against a checkpoint when it is read; nothing if nothing is wrong."""
    try:
        read()
    except PflError as error:
        return str(error)
    return ""


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(strategies.data())
def test_whatever_is_wrong_is_said_in_one_line(content, data):
    key = data.draw(strategies.sampled_from([key for key in places(content) if key[0] != "config"]))
    torch.save(changed(content, key, data.draw(WRONG_VALUES)), "x.ckpt")
    assert "\n" not in said_by(lambda: load_method("x.ckpt"))


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(strategies.data())
def test_a_resume_goes_on_or_says_in_one_line_what_is_wrong(content, capsys, data):
    key = data.draw(strategies.sampled_from([key for key in places(content) if key[0] not in ("config", "state_dict")]))
    torch.save(changed(content, key, data.draw(WRONG_VALUES)), "x.ckpt")
    capsys.readouterr()
    try:
        main(["fit", *OPTIONS, "--trainer.max_steps=3", "--ckpt_path=x.ckpt"])
    except SystemExit:
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.fixture(scope="module")
def with_changed_rows(content):
    """The same checkpoint as one that has the rows of those clients alone that have changed: all of them have."""
    held = {name.removeprefix("clients."): t for name, t in content["state_dict"].items() if name.startswith("clients")}
    return {**content, "clients": {"ids": torch.arange(4), "start": {name: stack[0] for name, stack in held.items()}}}


def test_a_checkpoint_with_changed_rows_passes(with_changed_rows):
    torch.save(with_changed_rows, "x.ckpt")
    rows_now = load_method("x.ckpt").clients.stack("fc2.bias")
    assert torch.equal(rows_now, with_changed_rows["state_dict"]["clients.fc2.bias"])


@rows(CHANGED_ROWS)
def test_rows_must_be_those_of_the_clients(key, value, with_changed_rows, unread):
    unread(changed(with_changed_rows, key, value))


@pytest.mark.parametrize(
    ("subcommand", "key", "value"),
    [
        *((subcommand, BIAS, torch.zeros(5)) for subcommand in ("fit", "validate", "test")),
        *((subcommand, ("config",), GONE) for subcommand in ("fit", "test")),  # pfl fit has not written it
        ("fit", ("callbacks",), GONE),
        ("fit", (*OPTIMIZER, "state", 1, "exp_avg"), torch.zeros(3)),  # training needs states that fit
        ("fit", ("shape", "outputs"), 11),
        # what says which rounds were done, and of which data
        *((subcommand, ("global_step",), value) for subcommand in ("fit", "test") for value in (-5, "2", True, GONE)),
        *((subcommand, ("fingerprint",), value) for subcommand in ("fit", "test") for value in (7, GONE)),
        ("fit", ("global_step",), 1),
        # Lightning's part, of which it leaves out what is not there
        *(("fit", (entry,), value) for entry in ("optimizer_states", "loops") for value in (GONE, [], None, {})),
        *(("fit", ("lr_schedulers",), value) for value in (GONE, [{}], None)),
        ("fit", ("loops", "fit_loop"), {}),
        ("fit", ("loops", "fit_loop", "state_dict"), {}),
        ("fit", ("loops", "fit_loop", "epoch_loop.batch_progress", "total", "ready"), float("nan")),
        ("fit", ("loops", "fit_loop", "epoch_loop.manual_optimization.optim_step_progress"), {}),
        ("fit", ("optimizer_states", 0, "param_groups"), []),
        *(("fit", ("tables",), value) for value in (7, {"clients.csv": "2"})),
        ("fit", ("callbacks",), {"EvaluateStartAndEnd": 3}),
    ],
)
def test_every_subcommand_refuses_in_one_line(subcommand, key, value, content, refused):
    torch.save(changed(content, key, value), "x.ckpt")
    code, line = refused(subcommand, *OPTIONS, "--trainer.max_steps=3", "--ckpt_path=x.ckpt")
    assert code == 1
    assert line.startswith("ckpt_path: 'x.ckpt'")


@pytest.mark.parametrize("fingerprint", ["", "0" * 32])
def test_data_with_another_fingerprint_are_others(fingerprint, content, refused):
    torch.save({**content, "fingerprint": fingerprint}, "x.ckpt")
    line = "data.root: 'data' holds other data than the checkpoint was trained on; allowed: the same"
    assert refused("fit", *OPTIONS, "--trainer.max_steps=3", "--ckpt_path=x.ckpt") == (1, line)


class Touching:
    """Makes a file wherever it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("called"),)


@pytest.mark.parametrize("held", [[1, 2], None, {"config": Path("x")}, {"config": Touching()}])
def test_what_is_no_mapping_of_plain_values_is_no_checkpoint_and_nothing_is_called(held, content, unread):
    unread({**content, **held} if isinstance(held, dict) else held)
    assert not Path("called").exists()


@pytest.mark.parametrize("damage", ["byte", "end", "empty"])
def test_a_damaged_file_is_not_read(damage, content):
    torch.save(content, "x.ckpt")
    whole, tensor = Path("x.ckpt").read_bytes(), content["state_dict"]["network.fc1.weight"].numpy().tobytes()
    place = whole.index(tensor) + 5
    flipped = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    Path("x.ckpt").write_bytes({"byte": flipped, "end": whole[:-100], "empty": b""}[damage])
    for read in (lambda: load_method("x.ckpt"), lambda: resume(content["config"])):
        with pytest.raises(PflError, match="is damaged or not complete"):
            read()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("network", f"hostile.{name}") for name in ("call", "network", "optimizer", "Other")),
        *((option, "hostile.Other") for option in ("server_optimizer", "aggregator", "sparsity")),
        ("network", {"class_path": "hostile.Other", "init_args": {}}),
    ],
    ids=str,
)
def test_settings_of_a_checkpoint_call_no_function_and_no_other_class(option, value, content, unread):
    Path("hostile.py").write_text(HOSTILE)
    unread(changed(content, ("config", "model", "init_args", option), value))
    with pytest.raises(PflError, match=f"model.{option}"):
        resume(content["config"])
    assert not Path("called").exists()


@pytest.mark.parametrize("payload", [EVALUATING, LAUNCHING, OWN], ids=["sympy", "torch", "own"])
@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("local", lambda call: {"lr_schedule": schedule(call)}),
        ("network", lambda call: {"class_path": COMPOSED, "init_args": {**OPERANDS, "operator": call}}),
    ],
    ids=["schedule", "metric"],
)
def test_a_checkpoint_hands_no_object_that_can_be_called_to_torch(option, settings, payload, content, unread):
    Path("hostile.py").write_text(HOSTILE)
    unread(changed(content, ("config", "model", "init_args", option), settings(payload)))
    assert not Path("called").exists()


def test_a_module_of_torch_may_be_called(content):
    wrong = changed(content, ("config", "model", "init_args", "network"), "torch.nn.Flatten")
    torch.save(
        changed(wrong, ("config", "model", "init_args", "local"), {"lr_schedule": schedule("torch.nn.Tanh")}), "x"
    )
    with pytest.raises(PflError, match="Flatten"):  # all settings are taken, and the network has no parameters
        load_method("x")


def schedule(call):
    return {"class_path": "torch.optim.lr_scheduler.LambdaLR", "init_args": {"lr_lambda": call}}


@pytest.mark.parametrize("key", [("config", "model"), ("shape", "task"), ("config", "data")], ids=lambda key: key[-1])
def test_no_module_of_a_library_is_run_to_find_a_class(key, content, monkeypatch):
    Path("site-packages").mkdir()
    Path("site-packages/installed.py").write_text(f"{HOSTILE}\ncall()\n")
    monkeypatch.syspath_prepend(Path("site-packages").resolve())
    torch.save(changed(content, (*key, "class_path"), "installed.Other"), "x.ckpt")
    with pytest.raises(PflError, match=r"installed\.Other"):
        load_method("x.ckpt") if key[-1] != "data" else resume(content["config"])
    assert not Path("called").exists()


@pytest.mark.parametrize("path", ["hostile.call", "hostile.Other", "no.such"])
def test_only_a_subclass_of_method_is_made_by_its_name(path, content, unread):
    Path("hostile.py").write_text(HOSTILE)
    unread(changed(content, ("config", "model", "class_path"), path))
    unread(changed(changed(content, ("config",), GONE), ("model", "class_path"), path))
    assert not Path("called").exists()


def test_a_resume_imports_no_class_that_it_does_not_use(content):
    Path("bystander.py").write_text(HOSTILE)
    wrong = changed(content, ("config", "model", "init_args", "network", "class_path"), "bystander.Other")
    torch.save(wrong, "x.ckpt")
    with pytest.raises(PflError, match=r"model\.network: bystander\.Other in the checkpoint"):
        resume(content["config"])
    assert "bystander" not in sys.modules
