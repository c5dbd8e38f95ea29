"""``pfl export``."""

from pathlib import Path
from typing import Literal

from pfl_lightning.bounds import NonNegativeInt
from pfl_lightning.cli.console import show
from pfl_lightning.errors import PflError
from pfl_lightning.models.export import check_file, export
from pfl_lightning.models.network import Network, two_inputs
from pfl_lightning.models.peft_folder import check_folder, write_peft
from pfl_lightning.runs.run import Run
from pfl_lightning.settings.parser import SettingsParser


def export_command(args: list[str]) -> None:
    """Run ``pfl export``.

    Args:
        args: What follows ``export``.

    Raises:
        PflError: If there is no such run, client or model, or the file cannot be written.
    """
    options = export_parser().parse_args(args)
    path = Path(options.file)
    is_peft = options["as"] == "peft"
    (check_folder if is_peft else check_file)(path)
    run = Run(options.run)
    method = run.method()
    data_options = {} if options.root is None else {"root": options.root}
    module = run.client(options.client, options.model, merged=not is_peft, **data_options)
    try:
        if is_peft:
            assert method.adapter is not None, "or client has refused"
            head = {method.network.original_name(name) for name in method.parts["head"]}
            write_peft(module, method.adapter, head, path, task_type(method.network))
        else:
            export(module, two_inputs(method.built_for["input_shape"], method.network.takes), path)
    except OSError as error:
        raise PflError(f"file: cannot write '{path}' ({error.strerror}); allowed: a place for a new file") from error
    show(f"Client {options.client} after round {method.accounting.clock.rounds}: {path}")


def task_type(network: Network) -> str | None:
    """What peft calls the task of a network; None for networks that take no tokens."""
    if network.takes == "numbers":
        return None
    return "CAUSAL_LM" if network.adapters_alone else "SEQ_CLS"


def export_parser() -> SettingsParser:
    """The arguments of ``pfl export``; ``help/export.txt`` says what they do."""
    parser = SettingsParser(prog="pfl export")
    parser.add_argument("run")
    parser.add_argument("file")
    parser.add_argument("--as", type=Literal["file", "peft"], default="file")
    parser.add_argument("--client", type=NonNegativeInt, required=True)
    parser.add_argument("--model", type=str | None, default=None)
    parser.add_argument("--root", type=str | None, default=None)
    return parser
