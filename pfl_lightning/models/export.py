"""Export of a trained network for use elsewhere."""

from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn

from pfl_lightning import files
from pfl_lightning.errors import PflError

TENSORS = ".pt"
PROGRAM = ".pt2"


def check_file(path: Path) -> None:
    """Check the path of an export.

    Raises:
        PflError: If its extension is unknown, or the file exists.
    """
    if path.suffix not in (TENSORS, PROGRAM):
        raise PflError(f"file: '{path}' is not possible; allowed endings: {TENSORS}, {PROGRAM}")
    if path.exists():
        raise PflError(f"file: '{path}' exists; allowed: a new file")


def export(network: nn.Module, example: Tensor, path: Path) -> None:
    """Write a network to a new file in the format that the file extension selects.

    ``.pt`` has only the tensors, for ``network.load_state_dict(torch.load(path))``; ``.pt2`` is a program of torch, for
    ``torch.export.load(path).module()``.

    Args:
        network: The network, in evaluation mode.
        example: Inputs, ``[batch, ...]`` with at least two samples; the exported program takes any number.
        path: The file.

    Raises:
        PflError: If the extension is unknown, the file exists, or torch cannot trace the network.
        OSError: If the file cannot be written.
    """
    check_file(path)
    with files.whole_file(path) as file:  # fails early if it cannot be written
        if path.suffix == TENSORS:
            torch.save(network.state_dict(), file)
        else:
            program = BytesIO()  # torch aborts the process if it cannot write to a file
            torch.export.save(_program(network, example), program)
            file.write(program.getbuffer())


def _program(network: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    if example.is_floating_point():
        example = example.to(next(network.parameters()).dtype)
    try:
        return torch.export.export(network, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # whatever torch cannot trace
        name = type(network).__name__
        raise PflError(f"file: torch cannot export {name} for batches of any size; allowed: {TENSORS}") from error
