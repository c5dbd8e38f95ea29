"""Export of a trained network for use elsewhere."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from pfl_lightning import files
from pfl_lightning.errors import PflError


def export(network: nn.Module, example: Tensor, path: Path) -> None:
    """Write a network to a new file in the format of its ending, see ``FORMATS``.

    Args:
        network: The network, in evaluation mode.
        example: Inputs, ``[batch, ...]`` with at least two samples; the exported program takes any number.
        path: The file.

    Raises:
        PflError: If the ending is unknown, the file exists, or a library is missing.
        OSError: If the file cannot be written.
    """
    check_file(path)
    if example.is_floating_point():
        example = example.to(next(network.parameters()).dtype)
    with files.new_file(path):  # fails early if it cannot be written
        pass
    try:
        FORMATS[path.suffix](network, example, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def check_file(path: Path) -> None:
    """Check the path of an export.

    Raises:
        PflError: If its ending is unknown, or the file exists.
    """
    if path.suffix not in FORMATS:
        raise PflError(f"file: '{path}' is not possible; allowed endings: {', '.join(FORMATS)}")
    if path.exists():
        raise PflError(f"file: '{path}' exists; allowed: a new file")


def write_tensors(network: nn.Module, example: Tensor, path: Path) -> None:
    """Only the tensors, for ``network.load_state_dict(torch.load(path))``."""
    torch.save(network.state_dict(), path)


def write_program(network: nn.Module, example: Tensor, path: Path) -> None:
    """A program of torch, for ``torch.export.load(path).module()``."""
    torch.export.save(_program(network, example), path)


def write_onnx(network: nn.Module, example: Tensor, path: Path) -> None:
    """An ONNX model, with the input ``inputs`` and the output ``outputs``."""
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise PflError('file: .onnx needs other libraries; pip install "pfl_lightning[onnx]"') from None
    program = _program(network, example)
    try:
        torch.onnx.export(
            program, (), path, input_names=["inputs"], output_names=["outputs"], external_data=False, verbose=False
        )
    except Exception as error:  # for example, torch 2.6 with a newer onnxscript
        name = type(network).__name__
        raise PflError(
            f"file: torch {torch.__version__} cannot write {name} as .onnx; allowed: .pt, .pt2, or a newer torch"
        ) from error


def _program(network: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(network, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # whatever torch cannot trace
        name = type(network).__name__
        raise PflError(f"file: torch cannot export {name} for batches of any size; allowed: .pt") from error


FORMATS: dict[str, Callable[[nn.Module, Tensor, Path], None]] = {
    ".pt": write_tensors,
    ".pt2": write_program,
    ".onnx": write_onnx,
}
