from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.raw_data import FromPython, RawData
from pfl_lightning.data.reading import read_tensors, reading
from pfl_lightning.errors import PflError
from pfl_lightning.paths import expand_home

ALIASES = {  # names of Keras's and MedMNIST's files
    "x_train": "inputs",
    "y_train": "targets",
    "x_test": "test_inputs",
    "y_test": "test_targets",
    "train_images": "inputs",
    "train_labels": "targets",
    "test_images": "test_inputs",
    "test_labels": "test_targets",
}
NOT_USED = ("x_val", "y_val", "val_images", "val_labels")
KEYS = ("inputs", "targets", "clients", "test_inputs", "test_targets", "test_clients")


class Arrays(OwnData):
    """Arrays, from Python or from a file.

    A file has ``inputs`` and ``targets``; if the client that has each sample is known, ``clients``; and if samples for
    testing are apart, ``test_inputs``, ``test_targets`` and ``test_clients``. See ``RawData`` for what they can be.
    ``x_train`` and ``train_images`` are other names of ``inputs``, and so on, as in files of Keras and MedMNIST.

    Args:
        inputs: From Python: the inputs, an array or a tensor ``[samples, ...]``; or alone, the file.
        targets: From Python: classes (numbers or text), or floats for a regression, ``[samples]``; or several labels
            or floats of each sample, ``[samples, columns]``; see ``target_type``.
        clients: From Python: the client that has each sample (number or text), ``[samples]``. Default: unknown.
        test: From Python: inputs, targets and, if given, clients of the samples for testing, in this order or in a
            dictionary. Default: a share of each client's samples is for testing (``test_fraction``).
        file: The file, ``.npz`` (``np.savez``) or ``.pt`` (``torch.save`` of a dictionary).
        kwargs: See ``OwnData``.

    Raises:
        PflError: If there are arrays and a file, or neither, or inputs without targets, also of the test.
    """

    files_option = "file"

    def __init__(
        self,
        inputs: FromPython | None = None,
        targets: FromPython | None = None,
        clients: FromPython | None = None,
        test: FromPython | None = None,
        file: str | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(inputs, str | Path):
            file = str(inputs)
            inputs = None
        super().__init__(**kwargs)
        if (inputs is None) == (file is None):
            raise PflError(f"data.file must be a file, or None with inputs and targets from Python, got {file}")
        if inputs is not None and targets is None:
            raise PflError("data.targets are required with inputs, one per sample")
        if isinstance(test, Mapping) and {*KEYS[:2]} <= {*test} <= {*KEYS[:3]}:
            test = [test[key] for key in KEYS[:3] if key in test]
        if test is not None and (isinstance(test, Mapping) or len(test) not in (2, 3)):
            given = ", ".join(test) if isinstance(test, Mapping) else f"{len(test)} of them"
            raise PflError(f"data.test must be inputs, targets and, if known, clients, got {given}")
        self.inputs = inputs
        self.targets = targets
        self.clients = clients
        self.test = test
        self.file = None if file is None else str(expand_home(file, "data.file"))

    def read(self) -> tuple[RawData, RawData | None]:
        """The arrays, or those of the file.

        Raises:
            PflError: If the file cannot be read.
        """
        if self.file is not None:
            return _read(Path(self.file))
        train = RawData(self.inputs, self.targets, self.clients)
        return train, None if self.test is None else RawData(*self.test)


def _read(path: Path) -> tuple[RawData, RawData | None]:
    """The training and the test samples of a file."""
    with reading(path, "write it with np.savez(file, inputs=..., targets=...)", key="data.file"):
        content = {ALIASES.get(key, key): values for key, values in _content(path).items()}
        unused = [key for key in NOT_USED if content.pop(key, None) is not None]
        notes = {"splits": f"{', '.join(unused)}: not used"} if unused else {}
        if unknown := content.keys() - {*KEYS}:
            raise ValueError(f"'{min(unknown)}' is not the name of an array; allowed: {', '.join(KEYS)}")
        train = RawData(content["inputs"], content["targets"], content.get("clients"), notes=notes)
        if not any(key.startswith("test_") for key in content):
            return train, None
        return train, RawData(content["test_inputs"], content["test_targets"], content.get("test_clients"))


def _content(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {key: _plain(arrays, key) for key in arrays}
    if path.suffix != ".pt":
        raise ValueError(f"the extension must be .npz or .pt, got '{path.suffix}'")
    content: Mapping[str, Any] = read_tensors(path)
    return content


def _plain(arrays: Mapping[str, Any], key: str) -> Any:
    """An array of a file, which NumPy does not read if it holds objects of Python."""
    try:
        return arrays[key]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise PflError(f"data.file: '{key}' holds objects of Python; save {key}.astype(str), or numbers") from error
