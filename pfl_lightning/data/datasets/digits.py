import torch

from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.transforms import ImageTransform


class Digits(FederatedDataModule):
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels: real images without a download.

    A quarter of each class is the test split; it is the same in every run.
    """

    num_classes = 10
    input_shape = (1, 8, 8)

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Read the digits from scikit-learn's own files."""
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        images = torch.from_numpy(digits.images / 16 * 255).round().to(torch.uint8)[:, None]
        targets = torch.from_numpy(digits.target).long()
        train, test = train_test_split(
            torch.arange(len(targets)).numpy(), test_size=0.25, stratify=targets, random_state=0
        )
        return LabelledData(images[train], targets[train]), LabelledData(images[test], targets[test])

    def transform(self) -> ImageTransform:
        """Centre and scale the grey values."""
        return ImageTransform(mean=[0.306], std=[0.376])
