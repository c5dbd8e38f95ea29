"""SVHN's MATLAB files: samples along the last axis, and 10 for the digit 0."""

import numpy as np
from scipy.io import savemat


def write_svhn(root, sizes=(400, 100)):
    """The labels are 1, 2, ..., 10, 1, ...; and the lightest column of a picture is that of its label."""
    random = np.random.default_rng(0)
    for split, count in zip(("train", "test"), sizes, strict=True):
        labels = np.arange(count) % 10 + 1
        pixels = random.integers(0, 128, (32, 32, 3, count), np.uint8)
        pixels[:, labels, :, np.arange(count)] += 100
        savemat(root / f"{split}_32x32.mat", {"X": pixels, "y": labels[:, None].astype(np.uint8)})
