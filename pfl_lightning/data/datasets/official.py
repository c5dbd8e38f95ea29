import warnings

from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.labelled import LabelledData


def warn_unless_official(
    data: FederatedDataModule, splits: tuple[LabelledData, LabelledData], official: tuple[int, int]
) -> None:
    """Warn once if the files have other numbers of samples than the official data set.

    Args:
        data: The data set.
        splits: The training and the test samples in its files.
        official: Official numbers of training and test samples.
    """
    sizes = tuple(len(split.targets) for split in splits)
    if sizes != official:
        warnings.warn(
            f"{type(data).__name__} in '{data.root}' is not the official data set: {sizes[0]:,} training and "
            f"{sizes[1]:,} test samples instead of {official[0]:,} and {official[1]:,}",
            stacklevel=3,
        )
