from functools import partial
from typing import Any, Literal

from torch import Tensor
from torchvision import datasets

from pfl_lightning.bounds import NonNegativeInt, PositiveInt
from pfl_lightning.data.datasets.torchvision_data import TorchvisionData
from pfl_lightning.data.labelled import check_classes
from pfl_lightning.data.transforms import ImageTransform

OFFICIAL = {  # training and test samples, number of classes, label of the first class in the files
    "balanced": ((112_800, 18_800), 47, 0),
    "letters": ((124_800, 20_800), 26, 1),
    "byclass": ((697_932, 116_323), 62, 0),
}


class EMNIST(TorchvisionData):
    """EMNIST: handwritten digits and letters of 28 x 28 pixels, white on black.

    SRPFL uses the first ten classes: the digits in ``balanced`` (the paper), the letters a to j in ``letters`` (the
    authors' code). The lower-case a to j of ``byclass``, classes ``[36, 46]``, stand in for SRPFL's FEMNIST.

    Paper: Cohen et al., "EMNIST: an extension of MNIST to handwritten letters", IJCNN 2017, arXiv:1702.05373; used by
    SRPFL, arXiv:2206.02078.

    Differs: SRPFL's FEMNIST is cut from other scans of the same pages, black on white, and it is not normalised.

    Args:
        split: ``balanced`` has 47 classes (similar capital and small letters are merged), ``letters`` has 26
            (regardless of case), ``byclass`` has 62 (digits, capital letters, small letters).
        classes: Range of classes to use, from the first (inclusive) to the second (exclusive); null for all.
        kwargs: See ``FederatedDataModule``.

    Raises:
        PflError: If there are no such classes.
    """

    input_shape = (1, 28, 28)
    source = datasets.EMNIST
    folder = "EMNIST/raw"
    pattern = "*-ubyte"

    def __init__(
        self,
        split: Literal["balanced", "letters", "byclass"] = "balanced",
        classes: tuple[NonNegativeInt, PositiveInt] | None = (0, 10),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = partial(self.source, split=split)
        self.official_sizes, official_classes, self.first_label = OFFICIAL[split]
        self.classes, self.num_classes = classes, check_classes(classes, official_classes)

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """One grey channel, upright: in the files, rows and columns are swapped."""
        images, labels = super().read(train)
        return images.mT.contiguous(), labels - self.first_label

    def transform(self) -> ImageTransform:
        """Normalise with MNIST's constants, as SRPFL does."""
        return ImageTransform([0.1307], [0.3081])
