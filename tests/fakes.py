"""Tiny data sets in the real layout of the files."""

import pickle
import struct

import numpy as np

from pfl_lightning.data import CIFAR10

# the official file, a Python 2 pickle of the class names: torchvision compares its md5 sum
CIFAR10_META = (
    b"\x80\x02}q\x01(U\x13num_cases_per_batchq\x02M\x10'U\x0blabel_namesq\x03]q\x04(U\x08airplaneq\x05U\nautomobileq\x06"
    b"U\x04birdq\x07U\x03catq\x08U\x04deerq\tU\x03dogq\nU\x04frogq\x0bU\x05horseq\x0cU\x04shipq\rU\x05truckq\x0eeU\x07"
    b"num_visq\x0fM\x00\x0cu."
)


def write_cifar10(folder, images, targets):
    def write(name, rows):
        entry = {"data": images[name][rows].reshape(-1, 3072), "labels": targets[name][rows].tolist()}
        return pickle.dumps(entry, protocol=2)

    total = len(images["train"])
    for number in range(5):
        (folder / f"data_batch_{number + 1}").write_bytes(
            write("train", slice(total * number // 5, total * (number + 1) // 5))
        )
    (folder / "test_batch").write_bytes(write("test", slice(None)))
    (folder / "batches.meta").write_bytes(CIFAR10_META)


def write_idx(path, array):
    path.write_bytes(
        struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    )


def write_mnist(folder, images, targets):
    for name, prefix in (("train", "train"), ("test", "t10k")):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images[name][:, 0])
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", targets[name])


def random_images(source, counts):
    random = np.random.default_rng(0)
    images = {
        name: random.integers(0, 256, (count, *source.input_shape), dtype=np.uint8) for name, count in counts.items()
    }
    return images, {name: random.integers(0, source.num_classes, count) for name, count in counts.items()}


def write(source, folder, images, targets):
    (write_cifar10 if source is CIFAR10 else write_mnist)(folder, images, targets)
