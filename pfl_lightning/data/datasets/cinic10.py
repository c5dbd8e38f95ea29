import tarfile
from collections.abc import Iterator
from pathlib import Path

import torch

from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.download import Remote, find_or_fetch, process_lock
from pfl_lightning.data.labelled import LabelledData, warn_unless_official
from pfl_lightning.data.own.image_folders import read_pictures
from pfl_lightning.data.partitions.dirichlet import GroupedDirichlet
from pfl_lightning.data.reading import reading
from pfl_lightning.data.transforms import ImageTransform
from pfl_lightning.files import new_folder

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLITS = ("train", "test")
FOLDER = "CINIC-10"
ARCHIVE = Remote(
    (
        "https://datashare.ed.ac.uk/server/api/core/bitstreams/e8e186cc-2688-48f1-aa5a-3fda1a43f8b6/content",
        "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
    ),
    "CINIC-10.tar.gz",
    "6ee4d0c996905fe93221de577967a372",
)
MAX_BYTES = 2 << 30  # of the unpacked archive, which takes less than half of it


class CINIC10(FederatedDataModule):
    """CINIC-10: colour images of 32 x 32 pixels in CIFAR-10's 10 classes.

    Reads the folders ``train`` and ``test`` with one folder of PNG files for each class. Where they are missing, the
    official ``CINIC-10.tar.gz`` is unpacked to ``CINIC-10``, after it was downloaded if it is missing too. The 90,000
    images of ``valid`` are left out: no experiment has a use for them. The images are decoded once and then kept in
    ``.pfl_cache``.

    Paper: Darlow et al., "CINIC-10 is not ImageNet or CIFAR-10", 2018, arXiv:1810.03505; used by FedMac,
    arXiv:2107.05330.
    """

    num_classes = 10
    input_shape = (3, 32, 32)
    usual_partition = GroupedDirichlet

    def prepare_data(self) -> None:
        """Download and unpack the archive if the folders are not there.

        Raises:
            PflError: If that fails, or the archive that is there is cut or not the official one.
        """
        if self._folder() is None:
            with process_lock(Path(self.root) / f"{FOLDER}.lock"):
                if self._folder() is None:
                    self._unpack()

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Read both splits, sorted by class and file name.

        Raises:
            PflError: If the files are missing or one of them cannot be read.
        """
        self.prepare_data()
        folder = self._folder() or Path(self.root)
        splits = [sorted(path for name in CLASSES for path in folder.glob(f"{split}/{name}/*.png")) for split in SPLITS]
        with reading(folder, f"unpack {ARCHIVE.name} again"):
            images = read_pictures(splits, Path(self.root), "cinic10", version=2)
        labels = [[CLASSES.index(path.parent.name) for path in split] for split in splits]
        train, test = map(LabelledData, images, map(torch.LongTensor, labels))
        warn_unless_official(f"CINIC10 in '{self.root}'", (train, test), (90_000, 90_000))
        return train, test

    def transform(self) -> ImageTransform:
        """Normalise with CINIC-10's own constants."""
        return ImageTransform((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))

    def _folder(self) -> Path | None:
        """The folder with ``train`` and ``test``, if it is there; some archives have a folder on top."""
        unpacked = Path(self.root) / FOLDER
        places = (Path(self.root), unpacked, unpacked / FOLDER)
        return next((place for place in places if (place / "train" / CLASSES[0]).is_dir()), None)

    def _unpack(self) -> None:
        archive = find_or_fetch([Path(self.root) / ARCHIVE.name], ARCHIVE)
        part = Path(self.root) / f"{FOLDER}.part"
        with reading(archive, "put it there again"), tarfile.open(archive) as files, new_folder(part):
            files.extractall(part, _plain_members(files), filter="data")
            part.replace(Path(self.root) / FOLDER)


def _plain_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The files and folders of an archive.

    Raises:
        ValueError: If it is too large, or holds anything else, such as a link: in some versions of Python, links lead
            tarfile's own filter out of the folder (CVE-2025-4517).
    """
    size = 0
    for member in archive:
        if not (member.isfile() or member.isdir()):
            raise ValueError(f"it must hold files and folders, got a link or a device: {member.name}")
        size += tarfile.BLOCKSIZE + member.size
        if size > MAX_BYTES:
            raise ValueError(f"it must hold at most {MAX_BYTES:,} bytes")
        yield member
