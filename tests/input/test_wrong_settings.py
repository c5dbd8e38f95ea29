"""Wrong settings get one line with the key, the value and what is allowed, before anything is built or written."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from pfl_lightning.cli import main
from pfl_lightning.settings.parser import SettingsParser

METRIC = "--trainer.callbacks.metric"
METRICS = f"--trainer.callbacks+=ClientMetrics {METRIC}"
RATES = "--model.local.lr_schedule"
LOSS = "--model.task=Classification --model.task.loss"
DP = "--model.aggregator=DPAggregator"
NOBODY = "~no-such-user/x"
UNKNOWN = "~no-such-user in ~no-such-user/x is not known here"
F1 = "torchmetrics.classification.MulticlassF1Score"


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        # nothing where something must be
        ("--model=null", 2, "model: null is not possible; allowed: APFL, "),
        ("--trainer=null", 2, "trainer: null is not possible; allowed: the options below this key"),
        ("--model.sparsity=null", 1, "model.sparsity: null is not possible; allowed: the options below this key"),
        ("--seed_everything=null", 2, "seed_everything: null is not possible; allowed: "),
        ("--trainer.default_root_dir=null", 1, "trainer.default_root_dir must be a folder, got null"),
        ("--model.network.hidden=[8,null]", 2, "model.network.hidden: null is not possible; allowed: a whole number"),
        ("--lr", 2, "--model.local.lr: a value is missing"),
        ("--model=FedRep --lr --rounds=1", 2, "--model.local.lr: a value is missing"),
        ("--model.dict_kwargs.a=1", 2, "model.dict_kwargs: dict_kwargs is not possible; allowed: init_args"),
        ("--trainer.callbacks+=OracleDoubling", 2, "trainer.callbacks.n0: a value is missing; see --trainer.callbacks"),
        ("--data.test_fraction=2", 2, "data.test_fraction: 2 is not possible; allowed: a number > 0 and < 1, or null"),
        ("--data.val_fraction=2", 2, "data.val_fraction: 2 is not possible; allowed: a number >= 0 and <= 1"),
        # words that YAML takes for something else
        ("--data=Table --data.target=[no]", 2, "data.target: False is not possible; as a word it needs quotes, as y"),
        # no such option, class or choice
        ("--model.local.lrr=0.1", 2, "model.local.lrr: "),
        ("--model.epochs=5", 2, "model.epochs: FedAvg has no such option; did you mean local.epochs?"),
        ("--model.network.hiden=[8]", 2, "model.network.hiden: MLP has no such option; did you mean hidden?"),
        ("--trainer.max_step=3", 2, "--trainer.max_step: no such option; did you mean --trainer.max_steps?"),
        (
            "--model.uplink=SignFlip",
            2,
            "model.uplink: SignFlip is not possible; write --model.uplink+=SignFlip; allowed: ",
        ),
        (
            "--model.aggregator=pfl_lightning.server.Vote",
            2,
            "model.aggregator: pfl_lightning.server.Vote lacks combine, ",
        ),
        ("--modell=FedRep", 2, "--modell: no such option; did you mean --model?"),
        ("--model=FedRpe", 2, "model: FedRpe is not possible; did you mean FedRep?; allowed: "),
        ("--model=FedAdam", 2, "model: FedAdam is not possible; write --config methods/fedadam; allowed: "),
        ("--data.partition.alpha=1", 2, "data.partition: a class is missing, which comes first; allowed: Class"),
        ("quickstart.yaml", 2, "quickstart.yaml: the option before it is missing"),
        # paths of users who are not here, and of nothing
        (f"--data.root={NOBODY}", 1, f"data.root: {UNKNOWN}"),
        (f"--data=Sent140 --data.glove_root={NOBODY}", 1, f"data.glove_root: {UNKNOWN}"),
        (f"--data=Arrays --data.file={NOBODY}", 1, f"data.file: {UNKNOWN}"),
        (f"--data=Table --data.target=y --data.file={NOBODY}", 1, f"data.file: {UNKNOWN}"),
        (f"--model.pretrained={NOBODY}", 1, f"model.pretrained: {UNKNOWN}"),
        (
            f"--model=DPSGD --model.topology=GraphFile --model.topology.path={NOBODY}",
            1,
            f"model.topology.path: {UNKNOWN}",
        ),
        (f"--config={NOBODY}", 2, f"config: {NOBODY} is not possible; allowed: a file that exists"),
        ("--data.root=", 1, "data.root must be a path, such as . for this folder, got ''"),
        (
            "--trainer.default_root_dir=",
            1,
            "trainer.default_root_dir must be a path, such as . for this folder, got ''",
        ),
        # bytes that are no text
        ("--model.local.lr=\udcff", 2, "model: 'utf-8' codec can't encode character"),
        # out of all bounds
        ("--seed_everything=4294967296", 2, "seed_everything: 4294967296 "),
        ("--model.network.hidden=[1000000000,1000000000]", 1, "model.network: too large for the memory: "),
        ("--trainer.max_steps=10000000000", 1, "trainer.max_steps must be a number of rounds, 1 to"),
        # the optimizers
        (
            "--model.local.optimizer=AdamW --model.local.momentum=0.5",
            1,
            "model.local.momentum must be 0 with AdamW, got 0.5",
        ),
        ("--model.local.optimizer=RMSprop", 2, "model.local.optimizer: RMSprop is not possible; allowed: "),
        (
            "--model=SCAFFOLD --model.local.optimizer=Adam",
            1,
            "model.local.optimizer must be SGD with SCAFFOLD, got",
        ),
        ("--model.server_optimizer.lr=-1", 1, "model.server_optimizer.lr: -1.0 "),
        ("--model.server_optimizer.lr=x", 2, "model.server_optimizer.lr: x is not possible; allowed: a number"),
        ("--model.server_optimizer.momentum=-1", 1, "model.server_optimizer: not possible: "),
        ("--model.server_optimizer=SparseAdam", 1, "model.server_optimizer: not possible: "),
        ("--model.server_optimizer=Adaam", 2, "model.server_optimizer: Adaam is not possible; allowed: "),
        # what differential privacy cannot protect
        (f"--model=FedAvg {DP} --model=DisPFL", 2, "model.aggregator: DisPFL has no such option"),
        (DP, 1, "model.weighting: samples is not possible with DPAggregator; allowed: uniform"),
        (f"{DP} --model.weighting=uniform --model.network=WideResNet", 1, "model.batch_norm: average is not possible "),
        (
            f"{DP} --model.weighting=uniform --trainer.callbacks=StageDoubling",
            1,
            "trainer.callbacks: StageDoubling does",
        ),
        (f"--model=LinearFedRep --data=LinearRepresentation {DP}", 1, "model.init: method_of_moments is not possible "),
        # losses and schedules of rates
        (f"{LOSS}=torch.nn.functional.cross_entropy", 2, "model.task.loss: torch.nn.functional.cross_entropy is"),
        (f"{LOSS}=torch.fx.graph_module.reduce_graph_module", 2, "model.task.loss: torch.fx.graph_module.reduce_graph"),
        (
            f"{LOSS}=torch.nn.CrossEntropyLoss --model.task.loss.gamma=1",
            2,
            "model.task.loss.gamma: CrossEntropyLoss has",
        ),
        (f"{RATES}={{}}", 2, "model.local.lr_schedule: {} is not possible; allowed: the import path of a class"),
        (f"{RATES}=CosineAnnealingLR", 2, "model.local.lr_schedule.T_max: a value is missing; see --model.local."),
        (
            f"--model.local.lr_decay=0.5 {RATES}=StepLR {RATES}.step_size=1",
            1,
            "model.local.lr_decay: 0.5 is not possible with mod",
        ),
        # metrics of the clients
        (f"{METRICS}=torch.nn.Linear", 2, "trainer.callbacks.metric: "),
        (f"{METRICS}={F1} {METRIC}.average=middle", 2, "trainer.callbacks.metric.average: middle is not possible; "),
        (f"{METRICS}=torchmetrics.PearsonCorrCoef", 1, "trainer.callbacks.metric: not possible for Digits: "),
        (
            f"{METRICS}={F1} --trainer.callbacks.name=f/1",
            1,
            "trainer.callbacks.name must consist of letters, digits and _",
        ),
        # the trainer
        ("--trainer.min_steps=1", 1, "trainer.min_steps: 1 is not possible; allowed: null"),
        (
            "--trainer.callbacks=EarlyStopping --trainer.callbacks.monitor=train/loss "
            "--trainer.callbacks.check_on_train_epoch_end=true",
            1,
            "trainer.callbacks.check_on_train_epoch_end must be null, got True: all rounds are one epoch",
        ),
        ("--trainer.val_check_interval=0", 1, "trainer.val_check_interval must be a number of rounds, or null"),
        (
            "--trainer.accelerator=warp",
            1,
            "trainer: You selected an invalid accelerator name: `accelerator='warp'`. Ava",
        ),
        ("--trainer.strategy=FSDPStrategy", 1, "trainer.strategy: FSDPStrategy is not possible; allowed: auto, ddp"),
        *(
            (f"--trainer.profiler={name}", 1, f"trainer.profiler: {name} is not possible; allowed: null, simple, ")
            for name in ("xla", "XLAProfiler")
        ),
        ("--trainer.num_nodes=2", 1, "trainer.num_nodes must be 1 in a program, got 2; use pfl fit for more"),
        ("--trainer.logger=tensorboard", 2, "trainer.logger: tensorboard is not possible; did you mean TensorBoardLog"),
        ("--trainer.callbacks=Logger", 2, "trainer.callbacks: Logger is not possible; allowed: AggregationError, "),
        # of another kind
        ("--trainer=3", 2, "trainer: 3 is not possible; allowed: the options below this key"),
        ("--model.network=LeNet5 --model.network.channels=[1]", 2, "model.network.channels: [1] is not possible"),
        ("--data=EMNIST --data.classes=[1,x]", 2, "data.classes: x is not possible; allowed: a whole number "),
    ],
)
def test_a_wrong_setting_gets_one_clear_line(words, code, line, refused):
    given_code, given_line = refused("fit", *words.split())
    assert given_line.startswith(line)
    assert given_code == code


def test_a_line_is_no_longer_than_anybody_reads(refused):
    _, line = refused("fit", f"--checkpoint.monitor={'x' * 2000}")
    assert len(line) < 1000
    assert line.startswith("checkpoint.monitor: xxx")
    assert " ... " in line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("model: null", "model: null is not possible; allowed: APFL"),
        (
            "model: {class_path: FedAvg, dict_kwargs: {a: 1}}",
            "model.dict_kwargs: dict_kwargs is not possible; allowed: init_args",
        ),
        ("model: {class_path: 3}", "Problems parsing config: class_path must be the import path of a class, got 3"),
        ("data: {class_path: [a]}", "Problems parsing config: class_path must be the import path of a class, got a "),
        ("checkpoint: null", "checkpoint: null is not possible; allowed: the options below this key"),
        ("modell: {class_path: FedAvg}", "modell: no such option; did you mean model?"),
        ("trainer:\n#  max_steps: 3", "trainer: null is not possible; allowed: the options below this key"),
        ("trainer: {max_step: 3}", "trainer.max_step: no such option; did you mean trainer.max_steps?"),
        (
            "model: {class_path: FedAvg, init_args: {lr: 0.1}}",
            "model.lr: FedAvg has no such option; did you mean local.lr?",
        ),
        (
            "model: {class_path: FedAvg, lr: 0.1}",
            "model: options beside class_path are not possible; allowed: below in",
        ),
        (
            "model: {class_path: FedAvg, init_args: {local: {lr: null}}}",
            "model.local.lr: null is not possible; allowed: a number",
        ),
        (
            "model: {class_path: FedAvg, init_args: {local: {epochs: .inf}}}",
            "model.local.epochs: inf is not possible; allowed: a",
        ),
        (
            "model: {class_path: FedAvg, init_args: {local: {lr: true}}}",
            "model.local.lr: True is not possible; allowed: a number",
        ),
        ("model: FedAvg\ndata: Digits\nmodel: FedRep", "Problems parsing config: model is there twice"),
        (
            "data: Digits\nmodel:\n  class_path: FedAvg\n  init_args: {local: {lr: 1, lr: 2}}",
            "Problems parsing config: lr is ",
        ),
        ("", "config: an empty file is not possible; allowed: settings by their names"),
        ("- 1", "config: - 1 is not possible; allowed: settings by their names"),
        (f"model: {{class_path: FedAvg, init_args: {{local: {{lr: {'9' * 400}}}}}}}", "Problems parsing config: "),
        ("\x00", "Problems parsing config: "),
        (b"\xff\xfe\xfa", "Problems parsing config: "),
    ],
)
def test_a_wrong_file_gets_one_clear_line(text, line, refused):
    Path("wrong.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    if "trainer:\n" in str(text):
        assert refused("fit", "--config=wrong.yaml", "--trainer.max_steps=5")[1].startswith(line)
    assert refused("fit", "--config=wrong.yaml")[1].startswith(line)


def test_what_is_not_yaml_is_named_by_file_and_line(refused):
    Path("wrong.yaml").write_text("data: Digits\nmodel: {class_path: FedAvg, init_args: [}\n")
    assert refused("fit", "--config=wrong.yaml")[1].endswith("line 2, column 41 (in wrong.yaml)")


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


PLACES = [
    *(f"model: {{class_path: FedAvg, init_args: {{{option}: CALL}}}}" for option in ("server_optimizer", "network")),
    *(f"model: {{class_path: FedAvg, init_args: {{{option}: CALL}}}}" for option in ("aggregator", "loss")),
    "model: {class_path: FedAvg, init_args: {lr_schedule: CALL}}",
    "model: CALL",
    "data: CALL",
    *(f"data: {{class_path: Digits, init_args: {{{option}: CALL}}}}" for option in ("speeds", "partition")),
    "trainer: {callbacks: [CALL]}",
    "trainer: {callbacks: [{class_path: ClientMetrics, init_args: {metric: CALL}}]}",
    *(f"trainer: {{{option}: CALL}}" for option in ("logger", "profiler", "strategy", "plugins")),
]
FORMS = ["{class_path: NAME, init_args: {command: x}}", "{class_path: NAME}", "NAME"]
NAMES = ["canary.sing", "canary.Bird", "canary.build"]


@pytest.mark.parametrize("place", range(len(PLACES)), ids=PLACES.__getitem__)
def test_settings_call_nothing_that_is_no_class_for_its_place(place, refused):
    """Each place with each name, each place with each form, and each name with each form."""
    Path("canary.py").write_text(CANARY)
    for name, form in enumerate(FORMS):
        text = PLACES[place].replace("CALL", form).replace("NAME", NAMES[(name + place) % len(NAMES)])
        Path("wrong.yaml").write_text(text)
        code, line = refused("fit", "--config=wrong.yaml")
        assert code in (1, 2)
        assert line.startswith(text.partition(":")[0])


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ("trainer: {callbacks: [{class_path: LambdaCallback, init_args: {setup: CALL}}]}", "trainer.callbacks.setup"),
        (
            "trainer: {strategy: {class_path: DDPStrategy, init_args: {ddp_comm_hook: CALL}}}",
            "trainer.strategy.ddp_comm",
        ),
    ],
)
def test_settings_hand_no_function_to_a_class(settings, key, refused):
    Path("canary.py").write_text(CANARY)
    for form in ("{class_path: canary.sing}", "canary.sing", "canary.bird"):
        Path("wrong.yaml").write_text(settings.replace("CALL", form))
        assert refused("fit", "--config=wrong.yaml")[1].startswith(key)


def test_settings_hand_no_function_to_a_class_in_a_list(refused):
    Path("canary.py").write_text(CANARY)
    for form in ("canary.sing", "canary.bird", "os.getpid"):
        line = refused("fit", f"{RATES}=LambdaLR", f"{RATES}.lr_lambda=[{form}]")[1]
        assert re.match(r"model\.local\.lr_schedule\.lr_lambda: \S+ is not possible", line)
    assert not Path("sung").exists()


@pytest.mark.parametrize(
    "payload",
    [
        "{class_path: sympy.Lambda, init_args: {signature: x, expr: \"__import__('pathlib').Path('sung').touch()\"}}",
        "{class_path: torch.distributed.launcher.api.elastic_launch, init_args: {entrypoint: touch, config: "
        "{min_nodes: 1, max_nodes: 1, nproc_per_node: 1}}}",
    ],
    ids=["sympy", "torch"],
)
@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ("trainer: {callbacks: [{class_path: LambdaCallback, init_args: {setup: CALL}}]}", "trainer.callbacks"),
        ("trainer: {strategy: {class_path: DDPStrategy, init_args: {ddp_comm_hook: CALL}}}", "trainer.strategy"),
        ("model: {class_path: FedAvg, init_args: {local: {lr_schedule: SCHEDULE}}}", "model.local.lr_schedule"),
    ],
    ids=["callback", "strategy", "schedule"],
)
def test_settings_make_no_library_s_object_to_be_called(settings, key, payload, refused):
    text = settings.replace("SCHEDULE", "{class_path: LambdaLR, init_args: {lr_lambda: CALL}}").replace("CALL", payload)
    Path("wrong.yaml").write_text(text)
    assert refused("fit", "--config=wrong.yaml")[1].startswith(key)
    assert not Path("sung").exists()


def test_an_object_of_the_users_own_can_be_called(capsys):
    Path("owned.py").write_text("class Halving:\n    def __call__(self, rounds):\n        return 0.5**rounds\n")
    main(["fit", f"{RATES}=LambdaLR", f"{RATES}.lr_lambda=owned.Halving", "--trainer.fast_dev_run=true"])
    assert "after round 1" in capsys.readouterr().out


def test_a_class_where_anything_is_possible_stays_a_mapping():
    Path("canary.py").write_text(CANARY)
    parser = SettingsParser()
    parser.add_argument("--anything", type=Any)
    given = {"class_path": "canary.Bird", "init_args": {"command": "x"}}
    built = parser.instantiate(parser.parse_object({"anything": given}))
    assert built.anything["class_path"] == "canary.Bird"
    assert not Path("sung").exists()


def test_a_class_of_the_users_own_is_called_in_its_place(capsys):
    text = "from torch.optim import SGD\n\nclass Mine(SGD):\n    def __init__(self, params, lr: float = 0.5) -> None:\n"
    Path("owned.py").write_text(f"{text}        super().__init__(params, lr=lr)\n")
    main(["fit", "--model.server_optimizer=owned.Mine", "--trainer.fast_dev_run=true"])
    assert "after round 1" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["model: &a {class_path: FedAvg, init_args: *a}", "[" * 3 + "&a [*a, *a]" + "]" * 3])
def test_settings_that_hold_themselves_are_refused(text, refused):
    Path("endless.yaml").write_text(text)
    code, line = refused("fit", "--config=endless.yaml")
    assert code == 2
    assert line.endswith("more than 100,000 values, or an alias within its own anchor (in endless.yaml)")


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ("--config=pipe", 2, "config: pipe is not possible; allowed: a file that exists, or a name such as "),
        ("--model.pretrained=pipe", 1, "model.pretrained: cannot read 'pipe' (no regular file); "),
        ("--data=Arrays --data.file=pipe", 1, "data.file: cannot read 'pipe' (no regular file); "),
        ("--data=Table --data.file=pipe --data.target=y", 1, "data.file: cannot read 'pipe' (no regular file); "),
        (
            "--model=DPSGD --model.topology=GraphFile --model.topology.path=pipe",
            1,
            "model.topology.path: 'pipe' is ",
        ),
    ],
)
def test_a_pipe_or_a_device_is_not_read(words, code, line, refused):
    os.mkfifo("pipe")
    found = refused("fit", "--trainer.max_steps=1", *words.split())
    assert found[0] == code
    assert found[1].startswith(line)
