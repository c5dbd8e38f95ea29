"""Oxford Flowers 102: pictures of several sizes, labels from 1, and splits that list pictures in no order."""

import numpy as np
from PIL import Image
from scipy.io import savemat

KINDS = 6


def write_flowers102(root, count=400):
    """Picture ``number``, from 1, is of the kind ``number % 6 + 1``, has a level of its own, and one is grey."""
    folder = root / "flowers-102"
    (folder / "jpg").mkdir(parents=True)
    numbers = np.arange(1, count + 1)
    for number in numbers:
        pixels = np.full((40 + number % 3, 50, 3), level(number), np.uint8)
        picture = Image.fromarray(pixels).convert("L" if number == 2 else "RGB")
        picture.save(folder / f"jpg/image_{number:05}.jpg")
    savemat(folder / "imagelabels.mat", {"labels": numbers[None] % KINDS + 1})
    shuffled = np.random.default_rng(0).permutation(numbers)
    train, valid, test = np.split(shuffled, [count // 4, count // 2])
    savemat(folder / "setid.mat", {"trnid": train[None], "valid": valid[None], "tstid": test[None]})


def level(number):
    return 4 * (number % 60)
