"""``pfl fit --help``, and that of validate and test: the options that most runs need, which are few of all."""

from collections.abc import Iterator
from textwrap import wrap
from typing import NamedTuple

from pfl_lightning.cli.aliases import ALIASES


class Option(NamedTuple):
    """An option: what it takes, what it is for, and its default if it has one that is worth knowing."""

    key: str
    takes: str
    line: str
    default: str = ""


USAGE = {
    "fit": "pfl fit [--config FILE ...] [--model NAME] [--data NAME] [options]",
    "validate": "pfl validate RUN [options]",
    "test": "pfl test RUN [options]",
}
ABOUT = {
    "fit": "Trains a method on a data set. Every option has a default: pfl fit alone trains\nFedAvg on scikit-learn's "
    "digits.",
    **{
        name: f"Evaluates a run again on its {split} samples. RUN is a run folder or a\ncheckpoint; its settings come "
        "along, and options change them."
        for name, split in (("validate", "validation"), ("test", "test"))
    },
}
GROUPS = {
    "settings": [
        Option("config", "FILE", "a YAML file of settings; several compose, and the last one wins"),
        Option("ckpt_path", "last", "resume the newest run of this method and data set, or a run folder or checkpoint"),
        Option("seed_everything", "N", "seed of everything but the split into clients and their speeds", "1"),
        Option("print_config", "", "print all settings, and do nothing"),
        Option("verbose", "", "say at the end how each layer was trained (-v)"),
    ],
    "method (pfl list methods)": [
        Option("model", "NAME", "the method", "FedAvg"),
        Option("model.network", "NAME", "the network (pfl list networks); its options follow: --model.network.hidden"),
        Option("model.lr", "X", "local learning rate"),
        Option("model.epochs", "N", "local epochs of a round"),
        Option("model.batch_size", "N", "local batch size"),
        Option("model.momentum", "X", "local momentum"),
        Option("model.weight_decay", "X", "local weight decay"),
        Option("model.eval_epochs", "N", "epochs for which a client fine-tunes its part before it is evaluated", "10"),
        Option("model.server_optimizer", "NAME", "the server's optimizer", "SGD"),
        Option("model.backend", "NAME", "how clients are run: auto, sequential or batched", "auto"),
        Option("model.help", "NAME", "all options of a method"),
    ],
    "data (pfl list data)": [
        Option("data", "NAME", "the data set", "Digits"),
        Option("data.root", "DIR", "folder with its files; pfl data prepare downloads them", "data"),
        Option("data.num_clients", "N", "number of clients"),
        Option("data.partition", "NAME", "how samples are split among clients (pfl list partitions)"),
        Option("data.participation.pool_size", "N", "clients that are sampled in a round, instead of all"),
        Option("data.speeds", "NAME", "simulated seconds of each client's round (pfl list speeds)", "FixedExponential"),
        Option("data.communication_time", "X", "simulated seconds of communication per round", "0.0"),
        Option("data.val_fraction", "X", "share of a client's training samples for validation", "0.1"),
        Option("data.partition_seed", "N", "seed of the split into clients", "0"),
        Option("data.help", "NAME", "all options of a data set"),
    ],
    "rounds, evaluation and hardware": [
        Option("trainer.max_steps", "N", "number of rounds", "100"),
        Option("trainer.val_check_interval", "N", "rounds between two evaluations", "10"),
        Option("trainer.default_root_dir", "DIR", "where run folders are made", "runs"),
        Option("trainer.logger", "NAME", "TensorBoardLogger, CSVLogger, WandbLogger, MLFlowLogger or false"),
        Option("trainer.accelerator", "NAME", "cpu, gpu or auto", "auto"),
        Option("trainer.devices", "N", "processes, one for each device", "1"),
        Option("trainer.num_nodes", "N", "machines", "1"),
        Option("trainer.precision", "NAME", "32-true, bf16-mixed, bf16-true or 64-true"),
        Option("trainer.fast_dev_run", "true", "try one round, and write nothing", "false"),
    ],
    "callbacks (pfl list callbacks), and those of every run": [
        Option("trainer.callbacks+", "NAME", "add one: StageDoubling for SRPFL and FLANP, EarlyStopping and so on"),
        Option("trainer.callbacks.n0", "N", "an option of the callback that was added last"),
        Option("checkpoint.monitor", "NAME", "logged value that selects best.ckpt"),
        Option("checkpoint.every", "N", "rounds between two checkpoints, instead of those of evaluations"),
        Option("percentile_errors.percentiles", "[N,...]", "percentiles of the clients' scores that are logged"),
    ],
}
TRAINS = {
    "ckpt_path",
    "verbose",
    "trainer.max_steps",
    "trainer.val_check_interval",
    "trainer.fast_dev_run",
    "trainer.logger",
}
EXAMPLES = {
    "fit": "pfl fit --model FedRep --data Digits --rounds 30 --clients 50\n"
    "  pfl fit --model FedRep --trainer.callbacks+ StageDoubling --rounds 50",
    "validate": "pfl validate runs/FedRep-Digits/version_0",
    "test": "pfl test runs/FedRep-Digits/version_0 --data.new_clients 5",
}
ALL = "--help.all"  # the option for the parser's own help
COLUMN, WIDTH = 34, 80


def short_help(command: str) -> str:
    """The help of ``fit``, ``validate`` or ``test``, in 80 columns.

    Args:
        command: Which of them.
    """
    lines = [f"usage: {USAGE[command]}", "", ABOUT[command]]
    known = options_of(command)
    for title, options in GROUPS.items():
        if shown := [option for option in options if option in known]:
            lines += ["", f"{title}:", *(line for option in shown for line in _lines(option))]
    lines += ["", "help:", *_row(ALL, "all options, Lightning's too")]
    return "\n".join([*lines, "", "examples:", f"  {EXAMPLES[command]}"])


def options_of(command: str) -> list[Option]:
    """The options in the help of a command, of which an evaluation has fewer than training."""
    return [
        option
        for title, options in GROUPS.items()
        for option in options
        if command == "fit" or not (option.key in TRAINS or title.startswith("callbacks"))
    ]


def _lines(option: Option) -> Iterator[str]:
    """An option with its short name, in as many lines as it takes."""
    short = next((f", --{alias}" for alias, key in ALIASES.items() if key == option.key), "")
    default = f" (default: {option.default})" if option.default else ""
    return _row(f"--{option.key}{short} {option.takes}".rstrip(), f"{option.line}{default}")


def _row(left: str, right: str) -> Iterator[str]:
    """Two columns; the right one begins a line below if the left one is too wide."""
    texts = wrap(right, WIDTH - COLUMN)
    if len(left) > COLUMN - 4:
        yield f"  {left}"
        left = ""
    yield f"  {left:<{COLUMN - 2}}{texts[0]}"
    yield from (" " * COLUMN + text for text in texts[1:])
