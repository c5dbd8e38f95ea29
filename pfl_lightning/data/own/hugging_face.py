import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_lightning.data.own.image_folders import decode
from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.raw_data import TRAIN, FromPython, Layout, RawData, used_splits
from pfl_lightning.data.reading import reading
from pfl_lightning.errors import PflError

if TYPE_CHECKING:  # the library is optional
    from datasets import Dataset

PART = re.compile(r"-\d+-of-\d+(-[0-9a-f]+)?$|[-_]\d+$")  # of a split that is in several files
REMEDY = "give a folder that save_to_disk has written, or one with train*.parquet and test*.parquet"


class HuggingFace(OwnData):
    """A data set of Hugging Face's ``datasets``; nothing is downloaded.

    On the command line ``root`` is what ``save_to_disk`` has written, or a folder of Parquet files, as those of a
    repository on the hub: ``train.parquet`` or its numbered parts, such as ``train-00000-of-00002.parquet``, and so on.
    The split ``train`` is for training; ``test``, or without one (or if its targets are all -1, hidden) ``validation``,
    is for testing, and ``validation`` beside ``test`` for validation. Classes are matched by name. Pictures are decoded
    from the bytes in the data set, never from a path or an address that it names, in the formats of ``ImageFolders``.
    Needs ``uv pip install "pfl_lightning[datasets]"``.

    Args:
        dataset: From Python: a ``Dataset``, a ``DatasetDict`` with ``train``, or the folder that is ``root`` on the
            command line. Default: what ``root`` holds.
        input: Name of the column with the inputs: pictures of one size, numbers of one shape (see ``RawData``), or text
            with a ``tokenizer``; or names of the two columns of pairs of texts. Default: ``image``; none if the target
            is a text whose tokens are learned (``target_type``), where it can be the prompt.
        target: Name of the column with the targets: class labels, text, or floats for a regression; or lists of labels
            (1, 0, or -1 for unknown) or of floats.
        client: Name of the column that tells which client has a sample. Default: unknown.
        test_split: Name of the split for testing. Default: see above.
        kwargs: See ``OwnData``.
    """

    def __init__(
        self,
        dataset: FromPython | None = None,
        input: str | list[str] | None = None,
        target: str = "label",
        client: str | None = None,
        test_split: str | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(dataset, str | Path):
            kwargs["root"] = str(dataset)
            dataset = None
        super().__init__(**kwargs)
        self.dataset = dataset
        self.input = input
        self.target = target
        self.client = client
        self.test_split = test_split

    @property
    def error_prefix(self) -> str:
        """What an error begins with: the option that the data came by."""
        return super().error_prefix if self.dataset is None else f"data.dataset: {type(self.dataset).__name__}"

    def read(self) -> Sequence[RawData]:
        """Read the columns of the splits.

        Raises:
            PflError: If the library is not installed, the files cannot be read, or a column is not there.
        """
        root = Path(self.root)
        name, key = (root, "data.root") if self.dataset is None else (type(self.dataset).__name__, "data.dataset")
        with reading(name, REMEDY, key):
            splits = _splits(_open(root) if self.dataset is None else self.dataset)
            reason = ", since its targets are hidden (-1)"
            hidden = {split: reason for split, part in splits.items() if split != TRAIN and self._hides_targets(part)}
            others = [name for name in splits if name not in (TRAIN, *hidden)]
            if self.test_split not in (None, *others):
                allowed = ", ".join(others) or "null"
                raise PflError(f"data.test_split: {self.test_split} is not possible; allowed: {allowed}")
            used = used_splits(splits, hidden, self.test_split)
            train = self._columns(splits[TRAIN])._replace(notes={"splits": used.understood})
            return [train, *(self._columns(splits[name]) for name in (used.test, used.validation) if name)]

    def _hides_targets(self, split: "Dataset") -> bool:
        """Whether each target is -1, as in a benchmark's test split."""
        return self.target in split.column_names and {-1} == {*split.unique(self.target)}

    def _columns(self, split: "Dataset") -> RawData:
        from datasets import Image
        from datasets.features.features import require_decoding

        default = [] if self.learns_tokens else ["image"]
        inputs = [self.input] if isinstance(self.input, str) else self.input or default
        if len(inputs) > 1 and (len(inputs) != 2 or self.tokenizer is None or self.learns_tokens):
            others = ", or two of texts with data.tokenizer" * (not self.learns_tokens)
            raise PflError(f"data.input must be one column{others}, got {self.input}")
        keys = [*(("input", name) for name in inputs), ("target", self.target), ("client", self.client)]
        names = [name for _, name in keys if name is not None]
        for key, name in keys:
            if name in {*names} - {*split.column_names}:
                raise PflError(f"data.{key}: no column '{name}'; allowed: {', '.join(split.column_names)}")
        pictures = [name for name in names if isinstance(split.features[name], Image)]
        values = split.select_columns([name for name in names if name not in pictures])
        for name, feature in values.features.items():
            if require_decoding(feature):
                raise ValueError(f"column '{name}' must be pictures, numbers or text, got {type(feature).__name__}")
        columns = values.with_format("numpy")[:]
        if not inputs:
            return self._raw(split, columns, None, None)
        if len(inputs) == 2:
            pairs = np.stack([columns[name] for name in inputs], axis=1)
            return self._raw(split, columns, pairs, None)
        (name,) = inputs
        kind = split.features[name]
        while hasattr(kind, "feature"):
            kind = kind.feature
        if getattr(kind, "dtype", "") == "uint8":  # of which the format makes int64
            columns[name] = np.asarray(columns[name], np.uint8)
        for column in pictures:
            stored = split.cast_column(column, Image(decode=False))[column]
            columns[column] = decode([_Picture(column, row, picture) for row, picture in enumerate(stored)])
        return self._raw(split, columns, columns[name], "NCHW" if name in pictures else None)

    def _raw(self, split: "Dataset", columns: dict[str, Any], inputs: Any, layout: Layout | None) -> RawData:
        """The inputs with the targets and the clients."""
        from datasets import ClassLabel

        feature = split.features[self.target]
        class_names = tuple(feature.names) if isinstance(feature, ClassLabel) else ()
        clients = None if self.client is None else columns[self.client]
        return RawData(inputs, columns[self.target], clients, class_names, layout)


class _Picture(BytesIO):
    """The bytes of a picture, which an error names by its place."""

    def __init__(self, column: str, row: int, stored: dict[str, Any]) -> None:
        self.place = f"column {column}, row {row}"
        if stored["bytes"] is None:
            raise PflError(f"data.root: {self.place} must have the bytes of a picture, got the name of a file")
        super().__init__(stored["bytes"])

    def __str__(self) -> str:
        return self.place


def _open(root: Path) -> "Dataset | dict[str, Dataset]":
    """What ``save_to_disk`` has written, or the splits in Parquet files."""
    try:
        from datasets import Dataset, load_from_disk
    except ImportError as error:
        raise PflError(f'data: HuggingFace needs uv pip install "pfl_lightning[datasets]" ({error})') from error
    if any((root / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return load_from_disk(str(root))
    from pyarrow import concat_tables
    from pyarrow.parquet import read_table

    files: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*.parquet")):
        files.setdefault(PART.sub("", path.stem), []).append(path)
    if len(folders := sorted({str(path.parent) for path in files.get(TRAIN, [])})) > 1:
        raise PflError(f"data.root: '{root}' has several data sets; allowed: one of {', '.join(folders)}")
    return {split: Dataset(concat_tables(map(read_table, paths))) for split, paths in files.items()}


def _splits(dataset: Any) -> dict[str, "Dataset"]:
    """The splits by name, ``train`` among them."""
    from datasets import Dataset

    splits = {TRAIN: dataset} if isinstance(dataset, Dataset) else dataset
    if not isinstance(splits, dict):
        remedy = "datasets.concatenate_datasets joins several"
        raise PflError(f"data.dataset must be a Dataset or a DatasetDict, got {type(splits).__name__}; {remedy}")
    if TRAIN not in splits:
        raise ValueError(f"no split 'train' among {', '.join(map(str, splits)) or 'none'}")
    return splits
