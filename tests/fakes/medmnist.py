"""MedMNIST's files: three splits, and labels in a column."""

import numpy as np

SPLITS = ("train", "val", "test")


def write_medmnist(root, name="pathmnist", sizes=(400, 60, 100), shape=(28, 28, 3), classes=9):
    """A picture's level is that of its class, which follow each other; chestmnist has a label for every second one."""
    random = np.random.default_rng(0)
    content = {}
    for split, count in zip(SPLITS, sizes, strict=True):
        labels = np.arange(count)[:, None] % classes
        noise = random.integers(0, 10, (count, *shape))
        pixels = 20 * labels.reshape(-1, *[1] * len(shape)) + noise
        if name == "chestmnist":
            labels = (labels == np.arange(classes)) & (np.arange(count) % 2 == 0)[:, None]
        content |= {f"{split}_images": pixels.astype(np.uint8), f"{split}_labels": labels.astype(np.uint8)}
    np.savez(root / f"{name}{f'_{shape[0]}' * (shape[0] != 28)}.npz", **content)
