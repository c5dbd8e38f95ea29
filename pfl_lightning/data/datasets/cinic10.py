import gzip
import io
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import rich.progress
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pfl_lightning.data.cache import cached
from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.datasets.official import warn_unless_official
from pfl_lightning.data.download import Remote, fetch
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.partitions import GroupedDirichlet
from pfl_lightning.data.progress import on_terminal
from pfl_lightning.data.reading import reading
from pfl_lightning.data.transforms import ImageTransform
from pfl_lightning.errors import PflError, one_line

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLITS = ("train", "test")
TYPES = {f"{split}/images": torch.uint8 for split in SPLITS} | {f"{split}/labels": torch.int64 for split in SPLITS}
FOLDER = "CINIC-10"
LARGEST = 1 << 26  # bytes of a file in the archive
ARCHIVE = Remote(
    (
        "https://datashare.ed.ac.uk/server/api/core/bitstreams/e8e186cc-2688-48f1-aa5a-3fda1a43f8b6/content",
        "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
    ),
    "CINIC-10.tar.gz",
    "6ee4d0c996905fe93221de577967a372",
    687_544_992,
)


class CINIC10(FederatedDataModule):
    """CINIC-10: colour images of 32 x 32 pixels in CIFAR-10's 10 classes.

    Reads the folders ``train`` and ``test`` with one folder of PNG files for each class, or ``CINIC-10.tar.gz`` with
    them, which is downloaded where there is neither. The 90,000 images of ``valid`` are left out: no experiment has a
    use for them. The images are decoded once and then kept in ``.pfl_cache``.

    Paper: Darlow et al., "CINIC-10 is not ImageNet or CIFAR-10", 2018, arXiv:1810.03505; used by FedMac,
    arXiv:2107.05330.
    """

    num_classes = 10
    input_shape = (3, 32, 32)
    usual_partition = GroupedDirichlet

    @property
    def path(self) -> Path:
        """The root folder."""
        return Path(self.root).expanduser()

    def prepare_data(self) -> None:
        """Download the archive if neither it nor the folders are there.

        Raises:
            PflError: If that fails.
        """
        self._prepared()

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Read both splits, sorted by class and file name.

        Raises:
            PflError: If the files are missing or one of them cannot be read.
        """
        sources = self._prepared()
        tensors = cached(lambda: decode(sources), TYPES, sources, self.path, "cinic10", version=1)
        train, test = (LabelledData(tensors[f"{split}/images"], tensors[f"{split}/labels"]) for split in SPLITS)
        warn_unless_official(self, (train, test), (90_000, 90_000))
        return train, test

    def transform(self) -> ImageTransform:
        """Normalise with CINIC-10's own constants."""
        return ImageTransform((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))

    def _prepared(self) -> list[Path]:
        """The images, or the archive with them, which is downloaded if both are missing."""
        for folder in (self.path, self.path / FOLDER):
            if images := [path for split in SPLITS for path in folder.glob(f"{split}/*/*.png")]:
                return images
        archive = self.path / ARCHIVE.name
        if archive.is_file():
            return [archive]
        try:
            return [fetch(ARCHIVE, self.path)]
        except (PflError, OSError) as error:
            raise PflError(
                f"data.root: no CINIC10 in '{self.root}' (looked for train/<class>/*.png, {FOLDER}/train/<class>/*.png "
                f"and {ARCHIVE.name}), and the download failed: {one_line(error)}; or put that file there by hand"
            ) from error


def decode(sources: Sequence[Path]) -> dict[str, Tensor]:
    """Decode PNG files, or those in an archive; progress is shown on a terminal.

    Args:
        sources: Files ``<split>/<class>/*.png``, or one archive of them.

    Returns:
        ``<split>/images``, uint8 ``[samples, 3, 32, 32]``, and ``<split>/labels``, int64 ``[samples]``.

    Raises:
        PflError: If one of them is damaged, or a split is missing.
    """
    images: dict[str, dict[str, NDArray[np.uint8]]] = {split: {} for split in SPLITS}
    is_archive = sources[0].name == ARCHIVE.name
    for path, name, content in _unpacked(sources[0]) if is_archive else _files(sources):
        with _reading(path, name):
            split, label, _ = name.split("/")
            if label not in CLASSES:
                raise ValueError(f"no such class; allowed: {', '.join(CLASSES)}")
            images[split][name] = _pixels(content)
    tensors = {}
    for split, by_name in images.items():
        with _reading(sources[0] if is_archive else sources[0].parents[2]):
            if not by_name:
                raise ValueError(f"no images in {split}")
        names = sorted(by_name)
        tensors[f"{split}/images"] = torch.from_numpy(np.stack([by_name.pop(name) for name in names]))
        tensors[f"{split}/labels"] = torch.tensor([CLASSES.index(name.split("/")[1]) for name in names])
    return tensors


def _files(sources: Sequence[Path]) -> Iterator[tuple[Path, str, bytes]]:
    for path in rich.progress.track(sources, "Decoding", **on_terminal()):
        yield path, "/".join(path.parts[-3:]), path.read_bytes()


def _unpacked(archive: Path) -> Iterator[tuple[Path, str, bytes]]:
    with (
        _reading(archive),
        rich.progress.open(archive, "rb", description="Decoding", **on_terminal()) as file,
        gzip.open(file) as unzipped,
        tarfile.open(fileobj=unzipped, mode="r|") as members,
    ):
        for member in members:
            if member.size > LARGEST:
                raise ValueError(f"{member.name} has {member.size:,} bytes; allowed: up to {LARGEST:,}")
            parts = Path(member.name).parts[-3:]  # some archives have a folder on top
            is_image = len(parts) == 3 and parts[0] in SPLITS and member.name.endswith(".png")
            if is_image and (content := members.extractfile(member)):
                yield archive, "/".join(parts), content.read()
        while unzipped.read(1 << 20):  # a file that is cut off ends like a complete one for tarfile, not for gzip
            pass


def _pixels(content: bytes) -> NDArray[np.uint8]:
    """Decode an image to ``[3, 32, 32]``; some are grey."""
    image = Image.open(io.BytesIO(content), formats=["PNG"])  # others may start programs
    if image.size != (32, 32):  # before it is decoded, to any size
        raise ValueError(f"{image.width} x {image.height} pixels instead of 32 x 32")
    return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))


def _reading(path: Path, place: str = "") -> AbstractContextManager[None]:
    if path.name == ARCHIVE.name:
        return reading(path, "put it there again; where it is missing, a run downloads it", place)
    return reading(path, f"unpack {ARCHIVE.name} again", place)
