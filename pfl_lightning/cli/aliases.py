"""Short names for options, and the names that other programs use.

The rule: a name that means exactly one option, with the same values, is that option; what people try beside these gets a
line that says what to write.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

ALIASES = {
    "method": "model",
    "dataset": "data",
    "rounds": "trainer.max_steps",
    "clients": "data.num_clients",
    "lr": "model.lr",
    "epochs": "model.epochs",
    "batch_size": "model.batch_size",
    "seed": "seed_everything",
}
INSTEAD = {
    **dict.fromkeys(("algorithm", "algo"), "--model FedRep, for example"),
    **dict.fromkeys(("num_rounds", "global_rounds", "max_steps"), "--rounds"),
    **dict.fromkeys(("num_clients", "n_clients"), "--clients"),
    **dict.fromkeys(("learning_rate", "local_learning_rate", "local_lr"), "--lr"),
    "local_epochs": "--epochs",
    "local_steps": "--model.epoch_steps 1 with --epochs as the number of steps",
    **dict.fromkeys(("num_seeds", "seeds"), "pfl sweep with --seeds 1 2 3"),
    **dict.fromkeys(("join_ratio", "fraction", "fraction_fit", "frac", "pool_size"), "--data.participation.pool_size"),
    **dict.fromkeys(("alpha", "dirichlet_alpha"), "--data.partition Dirichlet --data.partition.alpha"),
    "partition": "--data.partition",
    "speeds": "--data.speeds",
    **dict.fromkeys(("data_dir", "data_root", "root"), "--data.root"),
    **dict.fromkeys(("network", "net", "arch"), "--model.network"),
    "optimizer": "--model.server_optimizer, or --model.momentum for the clients",
    "momentum": "--model.momentum",
    "weight_decay": "--model.weight_decay",
    "backend": "--model.backend",
    **dict.fromkeys(("device", "cuda"), "--trainer.accelerator cpu, gpu or auto"),
    "accelerator": "--trainer.accelerator",
    **dict.fromkeys(("gpus", "devices"), "--trainer.accelerator gpu --trainer.devices 2, for example"),
    "precision": "--trainer.precision",
    **dict.fromkeys(("eval_every", "eval_gap"), "--trainer.val_check_interval"),
    **dict.fromkeys(("out", "output", "output_dir", "log_dir", "logdir", "save_dir"), "--trainer.default_root_dir"),
    **dict.fromkeys(("resume", "checkpoint_path"), "--ckpt_path last, or --ckpt_path with a run folder"),
    **dict.fromkeys(("wandb", "logger"), "--trainer.logger+ WandbLogger, for example"),
    "callbacks": "--trainer.callbacks+ StageDoubling, for example",
}


def true_setting(word: str) -> str:
    """A setting with its value under the setting's own name: ``model.lr=0.1`` for ``lr=0.1``."""
    name, given, value = word.partition("=")
    return f"{ALIASES.get(name, name)}{given}{value}"


def true_options(words: Iterable[str], refuse: Callable[[str], NoReturn]) -> Iterator[str]:
    """The words of a command line with the options that aliases stand for.

    Args:
        words: The words.
        refuse: Ends the command with a line, for an option that exists under another name alone.
    """
    for word in map(str, words):
        name = word.partition("=")[0].removeprefix("--")
        if word.startswith("--") and name in INSTEAD:
            refuse(f"no such option: --{name}; write {INSTEAD[name]}")
        yield f"--{true_setting(word[2:])}" if word.startswith("--") else word
