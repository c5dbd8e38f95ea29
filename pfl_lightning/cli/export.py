"""``pfl export``."""

from pathlib import Path

from pfl_lightning.bounds import NonNegativeInt
from pfl_lightning.cli.console import CONSOLE
from pfl_lightning.cli.parser import PflParser
from pfl_lightning.experiment import Run
from pfl_lightning.models.export import check_file, example_inputs, export

DESCRIPTION = """Writes the model of one client to a new file. Its ending says how: .pt for tensors, .pt2 for a program
of torch.export, .onnx for an ONNX model; the last two take batches of any size.
Example: pfl export runs/FedRep-Digits/version_0 model.onnx --client 3"""


def export_command(args: list[str]) -> None:
    """Run ``pfl export``.

    Args:
        args: What follows ``export``.

    Raises:
        PflError: If there is no such run, client or model, or the file cannot be written.
    """
    given = export_parser().parse_args(args)
    path = Path(given.file)
    check_file(path)
    run, moved = Run(given.run), {} if given.root is None else {"root": given.root}
    method = run.method()
    module = run.client(given.client, given.model, **moved)
    export(module, example_inputs(method.network.takes, method.built_for["input_shape"]), path)
    CONSOLE.print(f"Client {given.client} after round {method.accounting.clock.rounds}: {path}")


def export_parser() -> PflParser:
    """The arguments of ``pfl export``."""
    parser = PflParser(prog="pfl export", description=DESCRIPTION)
    parser.add_argument("run", help="A run folder, for its last round, or a checkpoint.")
    parser.add_argument("file", help="The new file; its ending is .pt, .pt2 or .onnx.")
    parser.add_argument("--client", type=NonNegativeInt, required=True, help="The client's id.")
    parser.add_argument(
        "--model",
        type=str | None,
        default=None,
        help="Which of the models that the client is evaluated with, such as stored, global, personal or finetuned. "
        "Default: the first that needs no training.",
    )
    parser.add_argument(
        "--root",
        type=str | None,
        default=None,
        help="Folder with the data set's files, if it has moved; for models that are trained on the client's samples.",
    )
    return parser
