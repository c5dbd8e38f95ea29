"""Wrong settings get one line with the key, the value and what is allowed, before anything is built or written."""

import inspect
import json
import sys
import typing
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback

from pfl_lightning import bounds
from pfl_lightning.callbacks import PercentileErrors, RoundCheckpoint
from pfl_lightning.cli import main
from pfl_lightning.cli.parser import PflParser
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.federation.sparsity import Sparsity
from pfl_lightning.methods import Method
from pfl_lightning.registry import KINDS, choices
from pfl_lightning.system import Participation

TEXTS = {str, Path}  # types that take any word
NEEDED = {  # what must be given beside the class of a choice
    "--model.topology": ["--model=DPSGD"],
    "--data.partition.sizes": ["--data.partition=ConsecutiveClasses"],
}
METRIC = "--trainer.callbacks.metric"
METRICS = f"--trainer.callbacks+=ClientMetrics {METRIC}"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pfl"])


class Option(NamedTuple):
    """An option, the words that choose its class, and its type and default."""

    key: str
    words: list[str]
    kind: Any
    default: Any


def options_of(owner: type, key: str, words: list[str], offered: type | None = None) -> Iterator[Option]:
    """The options that a class declares itself, as far as the command line has them for it or for another class."""
    parser = PflParser()
    names = parser.add_class_arguments(offered or owner, "of", skip={"input_shape", "num_classes"}, fail_untyped=False)
    parameters = inspect.signature(owner.__init__).parameters
    hints = typing.get_type_hints(owner.__init__)
    for name in (name.removeprefix("of.") for name in names):
        if name in hints and hints[name] is not Sparsity:  # it has a row for each of its own options
            yield Option(f"{key}.{name}", words, hints[name], parameters[name].default)


def every_option() -> Iterator[Option]:
    """The options of every class that settings can name; what classes inherit is listed once."""
    yield from options_of(Method, "model", [], choices()["model"]["FedAvg"])
    yield from options_of(Sparsity, "model.sparsity", [])
    yield from options_of(FederatedDataModule, "data", [], choices()["data"]["Digits"])
    yield from options_of(Participation, "data.participation", [])
    yield from options_of(PercentileErrors, "percentile_errors", [])
    yield from options_of(RoundCheckpoint, "checkpoint", [])
    for kind in KINDS.values():
        key = kind.option.strip("-+")
        for name, found in choices()[kind.option_name].items():
            if "__init__" in vars(found):
                words = [*NEEDED.get(kind.option, ()), f"{kind.option}={name}", *texts_of(found, key)]
                yield from options_of(
                    found, key, [*words, *([f"{METRIC}=torchmetrics.MeanSquaredError"] * (name == "ClientMetrics"))]
                )


def texts_of(kind: type, key: str) -> list[str]:
    """Words for the texts that a class takes and has no default for, if there are several."""
    hints = typing.get_type_hints(kind.__init__)
    parameters = inspect.signature(kind).parameters.values()
    names = [each.name for each in parameters if each.default is each.empty and hints.get(each.name) is str]
    return [f"--{key}.{name}=word" for name in names] if len(names) > 1 else []


OPTIONS = list(every_option())
OF_EACH_TYPE = list({str(option.kind): option for option in OPTIONS}.values())
NUMBERS = list({option.kind: option for option in OPTIONS if option.kind in vars(bounds).values()}.values())
WRONG = ("null", "nan", "inf", "-1", "word", "10000000000000000000000000000000")


def parts(kind: Any) -> set[Any]:
    """The types that a union consists of."""
    return set(typing.get_args(kind)) if isinstance(kind, UnionType) else {kind}


def admits(kind: Any, value: str) -> bool:
    """Whether a type takes one of the wrong values by design."""
    kinds = parts(kind)
    return bool((value == "null" and NoneType in kinds) or (value != "null" and kinds & TEXTS)) or (
        value == "-1" and bounds.Real in kinds
    )


@pytest.fixture(scope="module")
def parser() -> PflParser:
    """The options of a run but for the trainer's own, which makes it fast."""
    parser = PflParser(prog="pfl fit")
    parser.add_subclass_arguments(Method, "model")
    parser.add_subclass_arguments(FederatedDataModule, "data")
    parser.add_argument("--trainer.callbacks", type=list[Callback] | Callback | None)
    parser.add_lightning_class_args(RoundCheckpoint, "checkpoint")
    parser.add_lightning_class_args(PercentileErrors, "percentile_errors")
    parser.set_defaults({"model": {"class_path": "FedAvg"}, "data": {"class_path": "Digits"}})
    return parser


def said(parser: PflParser, capsys, *words: str) -> str:
    """The only line that the parser says about arguments; empty if it takes them."""
    capsys.readouterr()
    with suppress(SystemExit):
        parser.parse_args(list(words))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 1
    return "".join(lines)


@pytest.mark.parametrize("option", OF_EACH_TYPE, ids=lambda option: option.key)
def test_an_option_takes_what_its_type_admits_and_refuses_the_rest_in_a_line(option, parser, capsys):
    for value in WRONG:
        line = said(parser, capsys, *option.words, f"--{option.key}={value}")
        if admits(option.kind, value) and "missing" not in line:
            assert line == "", f"{value} is possible by design"
        else:
            assert line.startswith(f"pfl: error: {option.key}"), f"{value} is not possible: {line}"
            assert f" {value}" in line.replace("'", "") or "missing" in line, line
            assert "allowed: " in line or "no such option" in line or "missing" in line, line
            assert "<class" not in line
            assert "Namespace" not in line


@pytest.mark.parametrize("option", NUMBERS, ids=lambda option: option.kind.__name__)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.one_of(st.integers(), st.floats(), st.text("0123456789.eE+-_ xn", min_size=1)))
def test_a_number_is_taken_as_its_type_takes_it_or_refused_in_a_line(option, value, parser, capsys):
    text = str(value).strip()
    try:
        option.kind(text)
        is_taken = True
    except ValueError:
        is_taken = False
    line = said(parser, capsys, *option.words, f"--{option.key}={text}")
    if is_taken:
        assert line == "" or "missing" in line, "other options of the class may have no default"
    else:
        assert line.startswith(f"pfl: error: {option.key}: ")


@pytest.mark.parametrize("words", sorted({tuple(option.words) for option in OPTIONS}), ids=" ".join)
def test_options_take_their_defaults(words, parser, capsys):
    texts = {
        option.key: option.default if isinstance(option.default, str) else json.dumps(option.default)
        for option in OPTIONS
        if option.words == list(words) and isinstance(option.default, bool | int | float | str | tuple | NoneType)
    }
    line = said(parser, capsys, *words, *(f"--{key}={text}" for key, text in texts.items()))
    assert line == "" or "missing" in line, "other options of the class may have no default"


def refused(capsys, *args: str) -> tuple[int, str]:
    """Exit code and only line of a command that must leave nothing behind but the files that were there."""
    before = set(Path().rglob("*"))
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    (line,) = capsys.readouterr().err.splitlines()
    assert set(Path().rglob("*")) == before
    return stop.value.code, line


WRONG_LOSS = "--model.loss=wrong_loss."
LOSSES = """
from torch import nn
from torch.nn import functional as F

class Total(nn.Module):
    def forward(self, outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="sum")

class NoNumber(nn.Module):
    def forward(self, outputs, targets):
        return (outputs / outputs).sum(1)
"""
DP = "--model.aggregator=DPAggregator"
F1 = "torchmetrics.classification.MulticlassF1Score"


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        # nothing where something must be
        ("--model=null", 2, "model: null is not possible; allowed: DPSGD, "),
        ("--trainer=null", 2, "trainer: null is not possible; allowed: the options below this key"),
        ("--model.sparsity=null", 1, "model.sparsity: null is not possible; allowed: the options below this key"),
        ("--seed_everything=null", 2, "seed_everything: null is not possible; allowed: "),
        ("--trainer.default_root_dir=null", 1, "trainer.default_root_dir: null is not possible; allowed: a folder"),
        ("--trainer.max_steps=null", 2, "trainer.max_steps: null is not possible; allowed: a whole number"),
        ("--model.network.hidden=[8,null]", 2, "model.network.hidden: null is not possible; allowed: a whole number"),
        ("--trainer.callbacks+=OracleDoubling", 2, "trainer.callbacks.n0: a value is missing; see --trainer.callbacks"),
        # no such option, class or choice
        ("--model.lrr=0.1", 2, "model.lrr: FedAvg has no such option; did you mean lr?"),
        ("--model.network.hiden=[8]", 2, "model.network.hiden: MLP has no such option; did you mean hidden?"),
        ("--trainer.max_step=3", 2, "--trainer.max_step: no such option; did you mean --trainer.max_steps?"),
        ("--modell=FedRep", 2, "--modell: no such option; did you mean --model?"),
        ("--model=FedRpe", 2, "model: FedRpe is not possible; did you mean FedRep?; allowed: DPSGD, "),
        ("--data.partition.alpha=1", 2, "data.partition: a class is missing; allowed: ClassShards, "),
        ("--model.backend=fast", 2, "model.backend: fast is not possible; allowed: 'auto', 'sequential', 'batched'"),
        # out of all bounds
        ("--seed_everything=4294967296", 2, "seed_everything: 4294967296 "),
        ("--data.num_clients=1000000000", 2, "data.num_clients: 1000000000 is not possible; allowed: a whole number"),
        ("--model.network.hidden=[1000000000,1000000000]", 1, "model.network: too large for the memory, "),
        ("--trainer.max_steps=10000000000", 1, "trainer.max_steps: 10000000000 is not possible; allowed: a number of"),
        # the server's optimizer
        ("--model.server_optimizer.lr=-1", 1, "model.server_optimizer.lr: -1.0 "),
        ("--model.server_optimizer.lr=.inf", 1, "model.server_optimizer.lr: inf "),
        ("--model.server_optimizer.lr=x", 2, "model.server_optimizer.lr: x is not possible; allowed: a number"),
        ("--model.server_optimizer.momentum=-1", 1, "model.server_optimizer: not possible: "),
        ("--model.server_optimizer=SparseAdam", 1, "model.server_optimizer: not possible: "),
        ("--model.server_optimizer=Adaam", 2, "model.server_optimizer: Adaam is not possible; allowed: "),
        # what differential privacy cannot protect
        (DP, 1, "model.weighting: samples is not possible with DPAggregator; allowed: uniform"),
        (
            f"--model=DeltaFL {DP} --model.weighting=uniform",
            1,
            "model.aggregator: DPAggregator is not possible with a ",
        ),
        (f"{DP} --model.weighting=uniform --model.network=WideResNet", 1, "model.batch_norm: average is not possible "),
        (
            f"{DP} --model.weighting=uniform --trainer.callbacks=StageDoubling",
            1,
            "trainer.callbacks: StageDoubling is ",
        ),
        (f"--model=LinearFedRep --data=LinearRepresentation {DP}", 1, "model.init: method_of_moments is not possible "),
        # losses and schedules of rates
        ("--model.loss=torch.nn.functional.cross_entropy", 2, "model.loss: torch.nn.functional.cross_entropy is"),
        ("--model.loss=torch.nn.CrossEntropyLoss --model.loss.gamma=1", 2, "model.loss.gamma: CrossEntropyLoss has no"),
        ("--model.loss=torch.nn.CrossEntropyLoss --model.loss.reduction=sum", 1, "model.loss.reduction: sum is not "),
        ("--model.loss=torch.nn.MSELoss", 1, "model.loss: MSELoss of outputs and targets (4, 10) (torch.float32) and"),
        ("--model.loss=torch.nn.PReLU", 1, "model.loss: PReLU with parameters (weight) is not possible, nothing would"),
        (f"{WRONG_LOSS}Total", 1, "model.loss: Total returns the shape () for 4 samples; allowed: one finite loss for"),
        (f"{WRONG_LOSS}NoNumber", 1, "model.loss: NoNumber returns nan for outputs of zero; allowed: one finite loss"),
        ("--model.lr_schedule=CosineAnnealingLR", 2, "model.lr_schedule.T_max: a value is missing; see --model.lr_sch"),
        ("--model.lr_schedule=torch.optim.lr_scheduler.ReduceLROnPlateau", 1, "model.lr_schedule: ReduceLROnPlateau "),
        (
            "--model.lr_schedule=OneCycleLR --model.lr_schedule.max_lr=1 --model.lr_schedule.total_steps=9",
            1,
            "model.lr_schedule: not possible in round 10: ",
        ),
        (
            "--model.lr_decay=0.5 --model.lr_schedule=StepLR --model.lr_schedule.step_size=1",
            1,
            "model.lr_decay: 0.5 is not possible with model.lr_schedule; allowed: 1",
        ),
        # metrics of the clients
        (f"{METRICS}=torch.nn.Linear", 2, "trainer.callbacks.metric: "),
        (f"{METRICS}={F1} {METRIC}.average=middle", 2, "trainer.callbacks.metric.average: middle is not possible; "),
        (f"{METRICS}=torchmetrics.PearsonCorrCoef", 1, "trainer.callbacks.metric: not possible for Digits: "),
        (f"{METRICS}=torchmetrics.classification.MulticlassAccuracy", 1, "trainer.callbacks.name: accuracy is taken; "),
        (f"{METRICS}={F1} --trainer.callbacks.name=f/1", 1, "trainer.callbacks.name: 'f/1' is not possible; allowed: "),
        # the trainer
        ("--trainer.val_check_interval=0", 1, "trainer.val_check_interval: 0 is not possible"),
        ("--trainer.accelerator=warp", 1, "trainer: "),
        ("--trainer.strategy=FSDPStrategy", 1, "trainer.strategy: FSDPStrategy is not possible; allowed: auto, ddp"),
        ("--trainer.num_nodes=2", 1, "trainer.num_nodes: 2 is not possible in a program; allowed: 1, or pfl fit"),
        ("--trainer.precision=8", 2, "trainer.precision: 8 is not possible; allowed: "),
        ("--trainer.logger=Loger", 2, "trainer.logger: Loger is not possible; allowed: "),
        ("--trainer.callbacks=Logger", 2, "trainer.callbacks: Logger is not possible; allowed: ClientMetrics, "),
        # of another kind
        ("--trainer=3", 2, "trainer: 3 is not possible; allowed: the options below this key"),
        ("--model.decay_biases=7", 2, "model.decay_biases: 7 is not possible; allowed: true or false"),
        ("--model.network=LeNet5 --model.network.channels=[1]", 2, "model.network.channels: [1] is not possible"),
        ("--data=EMNIST --data.classes=[1,x]", 2, "data.classes: x is not possible; allowed: a whole number "),
    ],
)
def test_a_wrong_setting_gets_one_clear_line(words, code, line, capsys, monkeypatch):
    if "wrong_loss." in words:
        monkeypatch.syspath_prepend(".")
        monkeypatch.delitem(sys.modules, "wrong_loss", raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        Path("wrong_loss.py").write_text(LOSSES)
    given_code, given_line = refused(capsys, "fit", *words.split())
    assert given_line.startswith(f"pfl: error: {line}")
    assert given_code == code


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("model: null", "model: null is not possible; allowed: DPSGD"),
        ("checkpoint: null", "checkpoint: null is not possible; allowed: the options below this key"),
        ("modell: {class_path: FedAvg}", "modell: no such option; did you mean model?"),
        ("trainer: {max_step: 3}", "trainer.max_step: no such option; did you mean trainer.max_steps?"),
        (
            "model: {class_path: FedAvg, init_args: {lrr: 0.1}}",
            "model.lrr: FedAvg has no such option; did you mean lr?",
        ),
        ("model: {class_path: FedAvg, init_args: {lr: null}}", "model.lr: null is not possible; allowed: a number"),
        ("model: {class_path: FedAvg, init_args: {epochs: .inf}}", "model.epochs: inf is not possible; allowed: a"),
        ("model: {class_path: FedAvg, init_args: {lr: true}}", "model.lr: True is not possible; allowed: a number"),
        ("- 1", "config: - 1 is not possible; allowed: settings by their names"),
        (f"model: {{class_path: FedAvg, init_args: {{lr: {'9' * 400}}}}}", "Problems parsing config: int too large"),
        ("\x00", "Problems parsing config: "),
        (b"\xff\xfe\xfa", "Problems parsing config: "),
    ],
)
def test_a_wrong_file_gets_one_clear_line(text, line, capsys):
    Path("wrong.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    code, given_line = refused(capsys, "fit", "--config=wrong.yaml")
    assert code in (1, 2)
    assert given_line.startswith(f"pfl: error: {line}")


def test_what_is_not_yaml_is_named_by_file_and_line(capsys):
    Path("wrong.yaml").write_text("data: Digits\nmodel: {class_path: FedAvg, init_args: [}\n")
    assert refused(capsys, "fit", "--config=wrong.yaml")[1].endswith("line 2, column 41 (in wrong.yaml)")


CANARY = """
from pathlib import Path
from torch.optim import Optimizer

def sing(command: str = "") -> Optimizer:
    Path("sung").touch()

def build(shape, classes):
    sing()

class Bird:
    def __init__(self, command: str = "") -> None:
        sing()

    def __call__(self, *_):
        sing()

bird = build
"""


@pytest.mark.parametrize("name", ["sing", "Bird", "build"])
@pytest.mark.parametrize(
    "settings",
    [
        "model: {class_path: FedAvg, init_args: {server_optimizer: CALL}}",
        "model: {class_path: FedAvg, init_args: {network: CALL}}",
        "model: {class_path: FedAvg, init_args: {aggregator: CALL}}",
        "model: {class_path: FedAvg, init_args: {loss: CALL}}",
        "model: {class_path: FedAvg, init_args: {lr_schedule: CALL}}",
        "model: CALL",
        "data: CALL",
        "data: {class_path: Digits, init_args: {speeds: CALL}}",
        "data: {class_path: Digits, init_args: {partition: CALL}}",
        "trainer: {callbacks: [CALL]}",
        "trainer: {callbacks: [{class_path: ClientMetrics, init_args: {metric: CALL}}]}",
        "trainer: {logger: CALL}",
        "trainer: {profiler: CALL}",
        "trainer: {strategy: CALL}",
        "trainer: {plugins: CALL}",
    ],
)
@pytest.mark.parametrize("form", ["{class_path: NAME, init_args: {command: x}}", "{class_path: NAME}", "NAME"])
def test_settings_call_nothing_that_is_no_class_for_its_place(form, settings, name, capsys, monkeypatch):
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "canary", raising=False)
    Path("canary.py").write_text(CANARY)
    Path("wrong.yaml").write_text(settings.replace("CALL", form).replace("NAME", f"canary.{name}"))
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config=wrong.yaml"])
    assert stop.value.code in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pfl: error: {settings.partition(':')[0]}")
    assert not Path("sung").exists()
    assert not Path("runs").exists()


@pytest.mark.parametrize("form", ["{class_path: canary.sing}", "canary.sing", "canary.bird"])
@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (
            "trainer: {callbacks: [{class_path: LambdaCallback, init_args: {setup: CALL}}]}",
            "trainer.callbacks.setup",
        ),
        (
            "trainer: {strategy: {class_path: DDPStrategy, init_args: {ddp_comm_hook: CALL}}}",
            "trainer.strategy.ddp_comm_hook",
        ),
    ],
)
def test_settings_hand_no_function_to_a_class(form, settings, key, capsys, monkeypatch):
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "canary", raising=False)
    Path("canary.py").write_text(CANARY)
    Path("wrong.yaml").write_text(settings.replace("CALL", form))
    with pytest.raises(SystemExit):
        main(["fit", "--config=wrong.yaml"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pfl: error: {key}: ")
    assert not Path("runs").exists()


def test_a_class_where_anything_is_possible_stays_a_mapping(monkeypatch):
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "canary", raising=False)
    Path("canary.py").write_text(CANARY)
    parser = PflParser()
    parser.add_argument("--anything", type=Any)
    given = {"class_path": "canary.Bird", "init_args": {"command": "x"}}
    built = parser.instantiate_classes(parser.parse_object({"anything": given}))
    assert built.anything["class_path"] == "canary.Bird"
    assert not Path("sung").exists()


def test_a_class_of_the_users_own_is_called_in_its_place(capsys, monkeypatch):
    monkeypatch.syspath_prepend(".")
    text = "from torch.optim import SGD\n\nclass Mine(SGD):\n    def __init__(self, params, lr: float = 0.5) -> None:\n"
    Path("owned.py").write_text(f"{text}        super().__init__(params, lr=lr)\n")
    main(["fit", "--model.server_optimizer=owned.Mine", "--trainer.fast_dev_run=true"])
    assert "after round 1" in capsys.readouterr().out
