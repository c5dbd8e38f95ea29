import os
from collections.abc import Collection, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import rich.progress
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.data.cache import cached
from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.raw_data import TRAIN, RawData, used_splits
from pfl_lightning.data.reading import bar_options, reading
from pfl_lightning.errors import PflError

FORMATS = ["JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP"]  # others may start programs
GREY = ("1", "L", "LA")
COLOR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
LAYOUTS = "class/picture, client/class/picture, and both below train and test"

Pixels = NDArray[np.uint8]
Places: TypeAlias = dict[Path, tuple[str, ...]]  # pictures with the names that lead to each
Size: TypeAlias = PositiveInt | tuple[PositiveInt, PositiveInt]


class ImageFolders(OwnData):
    """Pictures in folders: a folder for each class, or for each client with a folder for each of its classes.

    The pictures are ``class/picture`` or ``client/class/picture`` below ``root``; or below ``root/train`` and a folder
    for testing: ``test`` or, without one, ``validation``, ``valid``, ``val`` or ``dev``, which beside ``test`` is for
    validation. A level of folders below the
    classes that have one name, such as ``images``, does not count. Files without the extension of a picture are left
    out. Pictures are turned as their camera says, drawn on white where they are transparent, and grey if all are. They
    are decoded once: the pixels are kept in ``root/.pfl_cache``.

    Args:
        root: The folder.
        size: Pixels of a side that pictures are resized to, or height and width. Default: none is resized, and all must
            be of one size.
        grey: Whether to make grey pictures of those in colour.
        classes: The folders of classes that are read. Default: all.
        kwargs: See ``OwnData``.
    """

    def __init__(
        self,
        root: str = "data",
        size: Size | None = None,
        grey: bool = False,
        classes: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(root=root, tokenizer=None, max_length=1, **kwargs)
        self.size = size
        self.grey = grey
        self.classes = classes

    def read(self) -> Sequence[RawData]:
        """Decode the pictures, or read the pixels if they were decoded before.

        Raises:
            PflError: If there are none, their folders are not as above, or one of them cannot be decoded.
        """
        root = Path(self.root)
        folders = sorted(path.name for path in root.glob("*") if path.is_dir() and not path.name.startswith("."))
        found = {name: _pictures(root / name) for name in folders} if TRAIN in folders else {TRAIN: _pictures(root)}
        found = self._chosen(found)
        classes = {name: {names[-2] for names in pictures.values()} for name, pictures in found.items()}
        reason = ", since its folders are no classes of train"
        other = {name: reason for name in found if classes[name].isdisjoint(classes.get(TRAIN, ()))}
        used = used_splits(found, other)
        splits = [found[name] for name in (TRAIN, used.test, used.validation) if name in found]
        if len(depths := {len(names) for split in splits for names in split.values()}) != 1:
            content = "pictures of both layouts" if depths else "no pictures"
            raise PflError(f"data.root: {content} in '{root}'; allowed: {LAYOUTS}")
        height, width = _sides(self.size) or ("own", "")
        cache = f"images-{height}-{width}-{'grey' if self.grey else 'color'}"
        images = read_pictures(splits, root, cache, version=3, size=self.size, grey=self.grey)
        notes = {"splits": used.understood} if TRAIN in folders else {}
        raw = []
        for pixels, split in zip(images, splits, strict=True):
            labels, clients = ([names[place] for names in split.values()] for place in (-2, 0))
            raw.append(RawData(pixels, labels, clients if depths == {3} else None, (), "NCHW", notes))
        return raw

    def _chosen(self, found: dict[str, Places]) -> dict[str, Places]:
        """The pictures of the classes that are read, of each folder that has some.

        Raises:
            PflError: If there is no such class.
        """
        there = {names[-2] for pictures in found.values() for names in pictures.values()}
        classes = self.classes or there
        if there and (missing := {*classes} - there):
            raise PflError(f"data.classes must be folders of classes in '{self.root}', got {min(missing)}")
        chosen = {
            folder: {path: names for path, names in pictures.items() if names[-2] in classes}
            for folder, pictures in found.items()
        }
        return {folder: pictures for folder, pictures in chosen.items() if pictures}


def read_pictures(
    splits: Sequence[Collection[Path]],
    folder: Path,
    cache: str,
    version: int,
    size: Size | None = None,
    grey: bool = False,
) -> tuple[Tensor, ...]:
    """Pixels of the pictures of each split: decoded the first time, and from a cache in the folder later.

    Args:
        splits: The files.
        folder: Where the cache is.
        cache: Its name.
        version: See ``cached``.
        size: See ``decode``.
        grey: See ``decode``.
    """
    paths = [*chain(*splits)]
    content = cached(lambda: {"images": decode(paths, size, grey)}, paths, folder, cache, version)
    images: Tensor = content["images"]
    return torch.split(images, [*map(len, splits)])


def decode(files: Sequence[Path | BytesIO], size: Size | None = None, grey: bool = False) -> Tensor:
    """Decode pictures; progress is shown on a terminal.

    Args:
        files: The files, or their bytes; an error names them as ``str`` does.
        size: Pixels of a side that they are resized to, or height and width; None for their own.
        grey: Whether to make them grey.

    Returns:
        uint8 ``[pictures, channels, height, width]``; with 1 channel if all are grey, otherwise with 3.

    Raises:
        PflError: If one of them cannot be decoded, or they are not of one size; it names the file.
    """
    pictures: list[Pixels] = []
    for file in rich.progress.track(files, "Decoding", **bar_options()):
        with reading(file, "pictures must have 8 bits a channel; data.size resizes them"):
            pictures.append(_decode(file, size, grey))
            if pictures[-1].shape[1:] != pictures[0].shape[1:]:
                size_of = [" x ".join(map(str, picture.shape[:0:-1])) for picture in pictures]
                raise ValueError(f"{size_of[-1]} pixels instead of {size_of[0]}, as '{files[0]}' has")
    channels = max(len(picture) for picture in pictures)
    same = [np.broadcast_to(picture, (channels, *picture.shape[1:])) for picture in pictures]  # grey in all channels
    return torch.from_numpy(np.stack(same))


def _decode(file: Path | BytesIO, size: Size | None, grey: bool) -> Pixels:
    """One picture, ``[channels, height, width]``."""
    with Image.open(file, formats=FORMATS) as image:
        if image.mode not in (*GREY, *COLOR):
            raise ValueError(f"pixels of the mode {image.mode}; allowed: {', '.join((*GREY, *COLOR))}")
        upright = ImageOps.exif_transpose(image)
        if upright.has_transparency_data:
            upright = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright)
        plain = upright.convert("L" if grey or image.mode in GREY else "RGB")
        if sides := _sides(size):
            plain = plain.resize(sides[::-1], Image.Resampling.BILINEAR)
        pixels = np.asarray(plain)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _sides(size: Size | None) -> tuple[int, int] | None:
    """Height and width."""
    return (size, size) if isinstance(size, int) else size


def _pictures(folder: Path) -> Places:
    """The pictures below a folder, in the order of their paths, with the names that lead to each."""
    pictures = {}
    for path in sorted(Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names):
        names = path.relative_to(folder).parts
        if path.suffix.lower() in IMG_EXTENSIONS and not any(name.startswith(".") for name in names):
            if len(names) not in (2, 3):
                raise PflError(f"data.root: '{path}' is in the wrong place; allowed: {LAYOUTS}")
            pictures[path] = names
    is_deep = all(len(names) == 3 for names in pictures.values())
    if is_deep and len({names[1] for names in pictures.values()}) == 1:
        return {path: (names[0], names[2]) for path, names in pictures.items()}
    return pictures
