from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.raw_data import FromPython, RawData, used_splits
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
    "x_val": "val_inputs",
    "y_val": "val_targets",
    "val_images": "val_inputs",
    "val_labels": "val_targets",
}
PARTS = ("inputs", "targets", "clients")
KEYS = tuple(f"{split}{part}" for split in ("", "test_", "val_") for part in PARTS)


class Arrays(OwnData):
    """Arrays, from Python or from a file; or from Python a torch ``Dataset`` for each client.

    A file has ``inputs`` and ``targets``; if the client that has each sample is known, ``clients``; if samples for
    testing are apart, ``test_inputs``, ``test_targets`` and ``test_clients``; and if others are for validation, the
    same with ``val_``. See ``RawData`` for what they can be; texts whose tokens are learned (``target_type``) are
    targets, and need no inputs. ``x_train`` and ``train_images`` are other names of ``inputs``, and so on, as in files
    of Keras and MedMNIST.

    A ``Dataset`` is read once, sample by sample, so random transforms would stay as they are drawn then.

    Args:
        inputs: From Python: the inputs, an array or a tensor ``[samples, ...]``; or alone, the file, or data sets of
            pairs of input and target, in a list, or in a dictionary by names of the clients.
        targets: From Python: classes (numbers or text), or floats for a regression, ``[samples]``; or several labels
            or floats of each sample, ``[samples, columns]``; see ``target_type``.
        clients: From Python: the client that has each sample (number or text), ``[samples]``. Default: unknown.
        test: From Python: inputs, targets and, if given, clients of the samples for testing, in this order or in a
            dictionary; or as many data sets. Default: a share of each client's samples is for testing
            (``test_fraction``).
        val: The same for validation; it needs ``test``. Default: a share of the training samples (``val_fraction``).
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
        val: FromPython | None = None,
        file: str | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(inputs, str | Path):
            file = str(inputs)
            inputs = None
        super().__init__(**kwargs)
        has_arrays = inputs is not None or (self.learns_tokens and targets is not None)
        if has_arrays == (file is not None):
            raise PflError(f"data.file must be a file, or None with inputs and targets from Python, got {file}")
        if inputs is not None and targets is None and not _are_datasets(inputs):
            raise PflError("data.targets are required with inputs, one per sample")
        if val is not None and test is None:
            raise PflError("data.val needs data.test; samples that select no model are for testing")
        self.inputs = inputs
        self.targets = targets
        self.clients = clients
        others = (("test", test), ("val", val))
        self.others = {name: _ordered(name, split, self.learns_tokens) for name, split in others}
        self.file = None if file is None else str(expand_home(file, "data.file"))

    def read(self) -> Sequence[RawData | None]:
        """The arrays, or those of the file.

        Raises:
            PflError: If the file cannot be read.
        """
        if self.file is not None:
            return _read(Path(self.file), self.learns_tokens)
        splits = [(self.inputs, self.targets, self.clients), *self.others.values()]
        return [None if split is None else _raw(split) for split in splits]


def _ordered(name: str, split: Any, learns_tokens: bool) -> Any:
    """Inputs, targets and, if given, clients of a split, in this order; data sets as the inputs alone.

    Args:
        name: The split.
        split: Its arrays.
        learns_tokens: Whether there may be no inputs.

    Raises:
        PflError: If it is something else.
    """
    if split is None or _are_datasets(split):
        return split and (split, None, None)
    if isinstance(split, Mapping) and {*PARTS[learns_tokens:2]} <= {*split} <= {*PARTS}:
        return [split.get(key) for key in PARTS]
    if isinstance(split, Mapping) or len(split) not in (2, 3):
        given = ", ".join(split) if isinstance(split, Mapping) else f"{len(split)} of them"
        raise PflError(f"data.{name} must be inputs, targets and, if known, clients, got {given}")
    return split


def _are_datasets(inputs: Any) -> bool:
    """Whether these are data sets of clients, by name or in a list."""
    datasets = inputs.values() if isinstance(inputs, Mapping) else inputs
    is_list = isinstance(inputs, Mapping | list | tuple) and len(inputs) > 0
    return is_list and all(isinstance(dataset, Dataset) for dataset in datasets)


def _raw(split: Sequence[Any]) -> RawData:
    """The arrays of a split, or what its data sets give.

    Raises:
        PflError: If a data set does not give pairs of arrays of one shape.
    """
    if not _are_datasets(split[0]):
        return RawData(*split)
    datasets = split[0] if isinstance(split[0], Mapping) else dict(enumerate(split[0]))
    inputs, targets, clients = [], [], []
    for client, dataset in datasets.items():
        for number in range(len(dataset)):
            sample = dataset[number]
            if not isinstance(sample, tuple | list) or len(sample) != 2:
                what = f"{len(sample)} of them" if isinstance(sample, tuple | list) else type(sample).__name__
                raise PflError(f"data.inputs: Dataset {client} must give input and target, got {what}")
            inputs.append(np.asarray(sample[0]))
            targets.append(np.asarray(sample[1]))
            if inputs[-1].shape != inputs[0].shape:
                shapes = f"{[*inputs[-1].shape]} in Dataset {client} and {[*inputs[0].shape]}"
                raise PflError(f"data.inputs must have one shape, got {shapes}")
        clients += [client] * len(dataset)
    return RawData(np.stack(inputs), np.stack(targets), clients)


def _read(path: Path, learns_tokens: bool) -> list[RawData]:
    """The splits of a file, which may have no inputs if tokens are learned."""
    with reading(path, "write it with np.savez(file, inputs=..., targets=...)", key="data.file"):
        content = {ALIASES.get(key, key): values for key, values in _content(path).items()}
        if unknown := content.keys() - {*KEYS}:
            raise ValueError(f"'{min(unknown)}' is not the name of an array; allowed: {', '.join(KEYS)}")
        others = [split for split in ("test", "val") if any(f"{split}_{part}" in content for part in PARTS)]
        notes = {"splits": used_splits(others, {}).understood} if others else {}
        splits = []
        for split in ("", *(f"{other}_" for other in others)):
            key = f"{split}inputs"
            inputs = content.get(key) if learns_tokens else content[key]
            splits.append(RawData(inputs, content[f"{split}targets"], content.get(f"{split}clients"), notes=notes))
        return splits


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
