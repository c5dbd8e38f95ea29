from typing import Any, Literal

import numpy as np
import torch

from pfl_lightning.data.datasets.official_data import OfficialData
from pfl_lightning.data.own.raw_data import Array, Layout, RawData, used_splits
from pfl_lightning.data.reading import find_folder, reading
from pfl_lightning.errors import PflError
from pfl_lightning.tasks import check_values

SPLITS = ("train", "test", "val")
SOURCE = "https://zenodo.org/records/10519652/files/"
ORGANS = "bladder|femur-left|femur-right|heart|kidney-left|kidney-right|liver|lung-left|lung-right|pancreas|spleen"
CHEST = (
    "atelectasis|cardiomegaly|effusion|infiltration|mass|nodule|pneumonia|pneumothorax|consolidation|edema|emphysema|"
    "fibrosis|pleural|hernia"
)
CLASSES = {  # of each set, in the order of their numbers
    "pathmnist": "adipose|background|debris|lymphocytes|mucus|smooth muscle|normal colon mucosa|"
    "cancer-associated stroma|colorectal adenocarcinoma epithelium",
    "chestmnist": CHEST,
    "dermamnist": "actinic keratoses and intraepithelial carcinoma|basal cell carcinoma|benign keratosis-like lesions|"
    "dermatofibroma|melanoma|melanocytic nevi|vascular lesions",
    "octmnist": "choroidal neovascularization|diabetic macular edema|drusen|normal",
    "pneumoniamnist": "normal|pneumonia",
    "retinamnist": "grade 0|grade 1|grade 2|grade 3|grade 4",
    "breastmnist": "malignant|normal or benign",
    "bloodmnist": "basophil|eosinophil|erythroblast|immature granulocytes|lymphocyte|monocyte|neutrophil|platelet",
    "tissuemnist": "collecting duct or connecting tubule|distal convoluted tubule|glomerular endothelial cells|"
    "interstitial endothelial cells|leukocytes|podocytes|proximal tubule segments|thick ascending limb",
    "organamnist": ORGANS,
    "organcmnist": ORGANS,
    "organsmnist": ORGANS,
}


class MedMNIST(OfficialData):
    """MedMNIST v2: twelve sets of medical pictures of one size, in colour or in grey.

    A set is one file, ``bloodmnist.npz`` or ``bloodmnist_64.npz``, with the arrays ``train_images``, ``train_labels``,
    and the same of ``val`` and ``test``. An input is ``[3, size, size]``, or ``[1, size, size]`` of the grey sets. The
    classes are those of the paper; ``chestmnist`` has 14 labels, of which a picture can have several or none. The
    grades of ``retinamnist`` are taken for classes without an order.

    The official splits are the splits.

    Paper: Yang et al., "MedMNIST v2 - A large-scale lightweight benchmark for 2D and 3D biomedical image
    classification", Scientific Data 2023, arXiv:2110.14795.

    Args:
        root: The folder with the files, or with a folder ``medmnist``.
        name: The set, such as ``pathmnist``. Those of volumes are none: no network here takes them.
        size: Pixels of a side.
        kwargs: See ``OfficialData``.

    Raises:
        PflError: If there is no such set.
    """

    def __init__(
        self, root: str = "data", name: str = "pathmnist", size: Literal[28, 64, 128, 224] = 28, **kwargs: Any
    ) -> None:
        super().__init__(root=root, **kwargs)
        if name not in CLASSES:
            raise PflError(f"data.name must be one of {', '.join(CLASSES)}, got {name}")
        self.name: str = name
        self.size = size

    def read(self) -> list[RawData]:
        """Read the file.

        Raises:
            PflError: If it is missing or cannot be read, or holds something else.
        """
        file = f"{self.name}.npz" if self.size == 28 else f"{self.name}_{self.size}.npz"
        path = find_folder(self.root, "medmnist", file, f"download {SOURCE}{file}") / file
        names = CLASSES[self.name].split("|")
        self.target_type = "labels" if self.name == "chestmnist" else "classes"
        shape = (len(names), 2) if self.target_type == "labels" else (1, len(names))
        # NumPy leaves damaged files open that it has opened
        with reading(path, f"download {SOURCE}{file} again"), path.open("rb") as content:
            arrays = np.load(content, allow_pickle=False)
            splits = [_split(arrays, split, self.size, *shape) for split in SPLITS]
        layout: Layout = "NHWC" if splits[0][0].ndim == 4 else "NHW"
        notes = {"splits": used_splits(SPLITS, {}).understood}
        return [RawData(images, labels, None, names, layout, notes) for images, labels in splits]


def _split(arrays: Any, split: str, size: int, columns: int, values: int) -> tuple[Array, Array]:
    """Images ``[samples, size, size]``, in colour ``[samples, size, size, 3]``, and labels ``[samples, columns]``."""
    keys = [f"{split}_images", f"{split}_labels"]
    if missing := {*keys} - {*arrays}:
        raise ValueError(f"'{min(missing)}' is missing")
    images, labels = (arrays[key] for key in keys)
    if images.dtype != np.uint8 or images.shape[1:] not in ((size, size), (size, size, 3)):
        wanted = f"uint8 [samples, {size}, {size}] or [samples, {size}, {size}, 3]"
        raise ValueError(f"{keys[0]} must be {wanted}, got {images.dtype} {list(images.shape)}")
    if labels.dtype.kind not in "iu" or labels.shape != (len(images), columns):
        wanted = f"whole numbers [{len(images)}, {columns}]"
        raise ValueError(f"{keys[1]} must be {wanted}, got {labels.dtype} {list(labels.shape)}")
    numbers = torch.from_numpy(labels.astype(np.int64))
    check_values(numbers, (numbers >= 0) & (numbers < values), keys[1], f"from 0 to {values - 1}")
    return images, labels
