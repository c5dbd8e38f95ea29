"""What torchvision reads and unpacks."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import zipfile

import numpy as np
from torchvision import datasets

from pfl_lightning.data import MNIST

# the official file, a Python 2 pickle of the class names: torchvision compares its md5 sum
CIFAR10_META = (
    b"\x80\x02}q\x01(U\x13num_cases_per_batchq\x02M\x10'U\x0blabel_namesq\x03]q\x04(U\x08airplaneq\x05U\nautomobileq\x06"
    b"U\x04birdq\x07U\x03catq\x08U\x04deerq\tU\x03dogq\nU\x04frogq\x0bU\x05horseq\x0cU\x04shipq\rU\x05truckq\x0eeU\x07"
    b"num_visq\x0fM\x00\x0cu."
)


def write_pickle(path, content):
    path.write_bytes(pickle.dumps(content, protocol=2))


def write_cifar10(folder, images, targets):
    batches = {"test_batch": (images["test"], targets["test"])}
    parts = zip(np.array_split(images["train"], 5), np.array_split(targets["train"], 5), strict=True)
    batches |= {f"data_batch_{number}": part for number, part in enumerate(parts, 1)}
    for name, (pixels, labels) in batches.items():
        write_pickle(folder / name, {"data": pixels.reshape(-1, 3072), "labels": labels.tolist()})
    (folder / "batches.meta").write_bytes(CIFAR10_META)


def write_cifar100(folder, images, targets):
    for name in images:
        labels = {"fine_labels": targets[name].tolist(), "coarse_labels": (targets[name] // 5).tolist()}
        write_pickle(folder / name, {"data": images[name].reshape(-1, 3072), **labels})
    write_pickle(folder / "meta", {"fine_label_names": [str(label) for label in range(100)]})


def write_idx(path, array):
    path.write_bytes(
        struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    )


def write_mnist(folder, images, targets):
    for name, prefix in (("train", "train"), ("test", "t10k")):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images[name][:, 0])
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", targets[name])


def write_emnist(folder, images, targets, split="balanced"):
    """Upright images, and labels from 0, as the files have them: on their side, and letters from 1."""
    for name in images:
        write_idx(folder / f"emnist-{split}-{name}-images-idx3-ubyte", images[name][:, 0].transpose(0, 2, 1))
        write_idx(folder / f"emnist-{split}-{name}-labels-idx1-ubyte", targets[name] + (split == "letters"))


WRITERS = {
    datasets.CIFAR10: write_cifar10,
    datasets.CIFAR100: write_cifar100,
    datasets.MNIST: write_mnist,
    datasets.FashionMNIST: write_mnist,
    datasets.EMNIST: write_emnist,
}


def random_images(source, counts):
    random, classes = np.random.default_rng(0), source().num_classes
    images = {
        name: random.integers(0, 256, (count, *source.input_shape), dtype=np.uint8) for name, count in counts.items()
    }
    return images, {name: random.integers(0, classes, count) for name, count in counts.items()}


def write(source, folder, images, targets):
    folder.mkdir(parents=True, exist_ok=True)
    WRITERS[source.source](folder, images, targets)


def write_random(source, root):
    write(source, root / source.folder, *random_images(source, {"train": 400, "test": 100}))


def write_writers(root):
    """Random digits of MNIST, and QMNIST's labels of them: training digits of 20 writers, and test digits of 5 more."""
    images, targets = random_images(MNIST, {"train": 400, "test": 100})
    write(MNIST, root / MNIST.folder, images, targets)
    folder = root / "QMNIST/raw"
    folder.mkdir(parents=True)
    for name, first, writers in (("train", 0, 20), ("test", 20, 5)):
        rows = np.zeros((len(targets[name]) + 3, 8), dtype=">i4")  # those of three digits that MNIST does not have
        rows[:-3, 0] = targets[name]
        rows[:, 2] = first + np.arange(len(rows)) % writers
        content = struct.pack(">III", 0x0C02, *rows.shape) + rows.tobytes()
        (folder / f"qmnist-{name}-labels-idx2-int.gz").write_bytes(gzip.compress(content))


def md5(content):
    return hashlib.md5(content).hexdigest()


def pack(source, folder):
    """The archives that unpack to a folder, by their names, and torchvision's class that takes them for official."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    theirs = source.source
    if issubclass(theirs, datasets.CIFAR10):
        archives = {theirs.filename: tar({f"{folder.name}/{name}": files[name] for name in files})}
        known = {
            kind: [(name, md5(files[name])) for name, _ in getattr(theirs, kind)]
            for kind in ("train_list", "test_list")
        }
        known["meta"] = {**theirs.meta, "md5": md5(files[theirs.meta["filename"]])}
        known["tgz_md5"] = md5(archives[theirs.filename])
    elif theirs is datasets.EMNIST:
        archives = {"gzip.zip": zipped({f"gzip/{name}.gz": gzip.compress(files[name]) for name in files})}
        known = {"md5": md5(archives["gzip.zip"])}
    else:
        archives = {name: gzip.compress(files[name.removesuffix(".gz")]) for name, _ in theirs.resources}
        known = {"resources": [(name, md5(archive)) for name, archive in archives.items()]}
    return archives, type(theirs.__name__, (theirs,), known)


def tar(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def zipped(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()
