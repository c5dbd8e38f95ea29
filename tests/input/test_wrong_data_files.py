"""Wrong, damaged and hostile data files: each gets one line that names the file and the place, and leaves nothing.

A row has a data set, what is done to the files of its fake, and words of the line.
"""

import json
import os
import pickle
import shutil
import tarfile
import urllib.request
from functools import partial
from pathlib import Path
from urllib.error import URLError

import fakes
import numpy as np
import pytest
import requests
from fakes.celeba import write_celeba
from fakes.flowers102 import write_flowers102
from fakes.harbox import write_harbox
from fakes.leaf import write_json
from fakes.medmnist import write_medmnist
from fakes.svhn import write_svhn
from fakes.tiny_imagenet import write_tiny_imagenet
from fakes.torchvision_data import write_idx
from PIL import Image
from scipy.io import loadmat, savemat

from pfl_lightning.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:.*is not the official data set", "ignore:.*no test samples")

BATCH, FINE = "cifar-10-batches-py/data_batch_2", "cifar-100-python/train"
MNIST = "MNIST/raw/"
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
WRITERS = "QMNIST/raw/qmnist-train-labels-idx2-int.gz"
LEAF, TWEETS = "data/train/users.json", "data/train/all_data_0_niid_0_keep_3_train_8.json"
TABLE, GLOVE = "data/raw_data/training.csv", "glove.6B.100d.txt"
MOTION, PLAYS = "large_scale_HARBox/3/Hop_train.txt", "data/raw_data/raw_data.txt"
TINY = "tiny-imagenet-200/"
VAL = f"{TINY}val/val_annotations.txt"
HOUSES = "test_32x32.mat"
CELLS = "pathmnist.npz"
FLOWER, IDS, KINDS = "flowers-102/jpg/image_00005.jpg", "flowers-102/setid.mat", "flowers-102/imagelabels.mat"
FACES, WHO = "celeba/list_attr_celeba.txt", "celeba/identity_CelebA.txt"
BODY = "UCI HAR Dataset/train/Inertial Signals/body_gyro_y_train.txt"
ACTIVITY = "UCI HAR Dataset/test/y_test.txt"
PERSON = "PAMAP2_Dataset/Protocol/subject102.dat"
SITE = "processed.hungarian.data"
NEWS, COMMENTS = "ag_news_csv/test.csv", "data/train/train_0.json"
PICTURE, ARCHIVE = "train/dog/1.png", "CINIC-10.tar.gz"


class Call:
    """Pickled as a call."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def file(name, content):
    """Replaces a file, by bytes or by what a function makes of its bytes."""

    def damage(root):
        path = root / name
        path.write_bytes(content(path.read_bytes()) if callable(content) else content)

    return damage


def cut(name, share=0.6):
    return file(name, lambda content: content[: int(len(content) * share)])


def gone(name):
    return lambda root: (root / name).unlink()


def batch(name, **entries):
    """Replaces entries of a pickled batch; by what a function makes of them, or leaves them out for None."""

    def change(content):
        old = pickle.loads(content, encoding="latin1")
        new = {key: value(old[key]) if callable(value) else value for key, value in entries.items()}
        return pickle.dumps({key: value for key, value in {**old, **new}.items() if value is not None}, protocol=2)

    return file(name, change)


def label(value, name=BATCH, key="labels"):
    """The label of the fourth image of a batch."""
    return batch(name, **{key: lambda labels: [*labels[:3], value, *labels[4:]]})


def idx(name, shape):
    """Replaces an IDX file by one of this shape."""
    return lambda root: write_idx(root / name, np.zeros(shape))


def picture(write):
    """Puts a picture in the place of another."""
    return lambda root: write(root / PICTURE)


def archive(root):
    """Puts an archive that is cut in the place of the folders."""
    with tarfile.open(root / ARCHIVE, "w:gz") as whole:
        whole.add(root / "train", "train")
    for folder in ("train", "test"):
        shutil.rmtree(root / folder)
    cut(ARCHIVE)(root)


def sized(*size):
    return picture(lambda path: Image.new("L", size).save(path))


def user(x=None, y=None, good=([1.0] * 784, 3), **changes):
    """Replaces LEAF's files by one with two users; the second has the inputs and the targets of the row."""

    def damage(root):
        shutil.rmtree(root / "data", ignore_errors=True)
        inputs, targets = ([each] * 2 for each in good)
        write_json(root / LEAF, {"ann": (inputs, targets), "bob": (x or inputs, targets if y is None else y)})
        content = json.loads((root / LEAF).read_text())
        (root / LEAF).write_text(json.dumps({**content, **changes}))

    return damage


def windows(x, y="a"):
    """Replaces LEAF's files by one with two roles; the second has the window and the target of the row."""
    return user([x], [y], good=("a" * 80, "b"))


def pixel(value, length=784):
    return user([[1.0] * 784, [value] + [1.0] * (length - 1)])


def leaf(content):
    def damage(root):
        user()(root)
        (root / LEAF).write_bytes(content)

    return damage


def numbers(name, shape, last=1, **options):
    """Replaces a text of numbers by ones of this shape; the last one is another."""

    def damage(root):
        values = np.ones(shape)
        values[-1, -1] = last
        np.savetxt(root / name, values, fmt="%g", **options)

    return damage


def activity(word):
    """The activity of the first row of a person."""
    return file(PERSON, lambda content: content.replace(b" 4 ", b" " + word + b" ", 1))


def tweets(**changes):
    def damage(root):
        content = json.loads((root / TWEETS).read_text())
        first = content["users"][0]
        content["user_data"][first].update(
            {key: change(content["user_data"][first][key]) for key, change in changes.items()}
        )
        (root / TWEETS).write_text(json.dumps(content))

    return damage


def vector(numbers):
    return file(GLOVE, b"happy " + numbers + b"\n")


def matlab(name, **changes):
    def damage(root):
        content = {key: values for key, values in loadmat(root / name).items() if not key.startswith("__")}
        savemat(root / name, content | changes)

    return damage


def cells(**changes):
    def damage(root):
        with np.load(root / CELLS) as arrays:
            content = {**arrays, **changes}
        np.savez(root / CELLS, **{name: values for name, values in content.items() if values is not None})

    return damage


LINE = " ".join(["0.5"] * 100).encode()
CSV = b'"4","1","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","ann","so happy today , yay !"\n'

ROWS = {
    # a pickle is data, never code
    "cifar10-system": (
        "CIFAR10",
        batch(BATCH, labels=[Call(os.system, "touch ran")]),
        BATCH,
        "a call of posix.system",
    ),
    # a batch that is no batch
    "cifar10-cut": ("CIFAR10", cut(BATCH), BATCH, "delete 'files/cifar-10-batches-py' for a new download"),
    "cifar10-gone": ("CIFAR10", gone(BATCH), BATCH),
    "cifar100-coarse": ("CIFAR100", batch(FINE, fine_labels=None), FINE, "'fine_labels' is missing"),
    "cifar10-10": ("CIFAR10", label(10), "CIFAR10 in 'files': training samples: labels must be ", "got 10 in sample"),
    "cifar10-1.7": ("CIFAR10", label(1.7), BATCH, "labels must be whole numbers, got 1.7 in sample 3"),
    "cifar10-fewer": ("CIFAR10", batch(BATCH, labels=[1] * 79), BATCH, "80 images with 79 labels"),
    # IDX files
    "mnist-14": (
        "MNIST",
        idx(MNIST + IMAGES, (400, 14, 14)),
        "MNIST in 'files'",
        "the shape [1, 28, 28], got [1, 14, 14]",
    ),
    "mnist-cut": ("MNIST", cut(MNIST + IMAGES), "cannot read 'files/MNIST/raw'"),
    "mnist-fewer": ("MNIST", idx(MNIST + LABELS, (399,)), "400 inputs with 399 targets"),
    "writers-gone": (
        "MNISTWriters",
        gone(WRITERS),
        "no writers in 'files' (looked for 'qmnist-train-labels-idx2-int.gz'",
    ),
    "writers-cut": ("MNISTWriters", cut(WRITERS), WRITERS),
    "writers-other": (
        "MNISTWriters",
        idx(MNIST + LABELS, (400,)),
        WRITERS,
        "its classes are not those of MNIST's digits",
    ),
    # CINIC-10
    "cinic10-cut": ("CINIC10", archive, ARCHIVE),
    "cinic10-no-png": ("CINIC10", picture(lambda path: path.write_bytes(b"text")), PICTURE),
    "cinic10-size": ("CINIC10", sized(28, 32), PICTURE, "28 x 32 pixels instead of 32 x 32"),
    # LEAF's JSON
    "femnist-cut": ("FEMNIST", leaf(b'{"users": ["ann'), LEAF),
    "femnist-list": ("FEMNIST", leaf(b"[1, 2]"), LEAF),
    "femnist-nobody": ("FEMNIST", user(users=[]), "cannot read 'files'"),
    "femnist-absent": ("FEMNIST", user(users=["ann", "eve"]), LEAF, "'eve' is missing"),
    "femnist-fewer": ("FEMNIST", user(y=[3]), LEAF),
    "femnist-1.7": ("FEMNIST", user(y=[3, 1.7]), LEAF, "labels must be whole numbers, got 1.7 in sample 1"),
    "femnist-62": ("FEMNIST", user(y=[3, 62]), "from 0 to 61, got 62 in sample 3"),
    "femnist-bright": ("FEMNIST", pixel(255), LEAF, "pixels are outside [0, 1]"),
    # texts
    "shakespeare-79": ("Shakespeare", windows("a" * 79), LEAF, {"--text=leaf"}),
    "shakespeare-letter": ("Shakespeare", windows("%" * 80), "from 0 to 79, got 80 in sample", {"--text=leaf"}),
    "shakespeare-other": ("Shakespeare", file(PLAYS, bytes(range(256)) * 99), PLAYS, "no roles"),
    "sent140-0.7": ("Sent140", tweets(y=lambda old: [0.7, *old[1:]]), TWEETS, "got 0.7 in sample 0"),
    "sent140-text": ("Sent140", tweets(x=lambda old: ["hello", *old[1:]]), TWEETS),
    "sent140-label": ("Sent140", file(TABLE, CSV.replace(b"4", b"3", 1)), TABLE, "'3' is missing", {"--source=csv"}),
    "glove-word": ("Sent140", vector(LINE.replace(b"0.5", b"big", 1)), GLOVE, "data.glove_root", "big"),
    # tables of numbers
    # pictures beside lists
    "tiny-gone": ("TinyImageNet", gone(f"{TINY}val/images/val_2.JPEG"), VAL, "only one of them for val_2.JPEG"),
    "tiny-no-class": (
        "TinyImageNet",
        lambda root: shutil.rmtree(root / TINY / "train/n01443537"),
        "train/n01443537/images'",
    ),
    "tiny-cut": ("TinyImageNet", cut(f"{TINY}train/n02124075/images/n02124075_1.JPEG"), "n02124075_1.JPEG"),
    "tiny-size": (
        "TinyImageNet",
        lambda root: Image.new("L", (64, 32)).save(root / TINY / "val/images/val_2.JPEG"),
        "val_2.JPEG",
        "64 x 32 pixels instead of 64 x 64",
    ),
    "tiny-fewer": ("TinyImageNet", cut(VAL, share=0.5), VAL),
    "tiny-other": (
        "TinyImageNet",
        file(VAL, lambda content: content.replace(b"n02124075", b"n00000001")),
        "line 3 must be",
    ),
    "tiny-comma": ("TinyImageNet", file(VAL, lambda content: content.replace(b"\t", b",")), VAL, "with tabs"),
    "flowers-gone": ("Flowers102", gone(FLOWER), FLOWER, "No such file"),
    "flowers-cut": ("Flowers102", cut(FLOWER, share=0.5), FLOWER),
    "flowers-no-ids": ("Flowers102", gone(IDS), "no 'setid.mat' in 'files'"),
    "flowers-no-labels": ("Flowers102", gone(KINDS), KINDS),
    "flowers-cut-ids": ("Flowers102", cut(IDS), IDS),
    "flowers-0": ("Flowers102", matlab(KINDS, labels=np.arange(24)), KINDS, "labels must be", "got 0 in sample 0"),
    "flowers-103": (
        "Flowers102",
        matlab(KINDS, labels=np.arange(80, 104)),
        KINDS,
        "from 1 to 102, got 103 in sample 23",
    ),
    "flowers-nan": (
        "Flowers102",
        matlab(KINDS, labels=np.full(24, np.nan)),
        KINDS,
        "whole numbers, got nan in sample 0",
    ),
    "flowers-fewer": ("Flowers102", matlab(KINDS, labels=np.arange(1, 21)), IDS, "whole numbers from 1 to 20, got 2"),
    "flowers-twice": ("Flowers102", matlab(IDS, trnid=np.arange(1, 25)), IDS, "more than once"),
    # faces
    "celeba-gone": ("CelebA", gone("celeba/img_align_celeba/000003.jpg"), "000003.jpg", "No such file"),
    "celeba-cut": ("CelebA", cut("celeba/img_align_celeba/000003.jpg", share=0.3), "000003.jpg"),
    "celeba-no-people": ("CelebA", gone(WHO), "no LEAF files in 'files'", "download img_align_celeba.zip, identity_"),
    "celeba-no-attributes": ("CelebA", gone(FACES), FACES),
    "celeba-fewer": ("CelebA", file(FACES, lambda content: content[:-9]), FACES),
    "celeba-lines": (
        "CelebA",
        file(FACES, lambda content: b"".join(content.splitlines(keepends=True)[:-1])),
        FACES,
        "the first line says 24 pictures, got 23",
    ),
    "celeba-2": (
        "CelebA",
        file(FACES, lambda content: content.replace(b"-1", b" 2")),
        FACES,
        "must be 1 or -1, got [2]",
    ),
    "celeba-nan": ("CelebA", file(FACES, lambda content: content.replace(b"-1", b"nan")), FACES, "'nan'"),
    "celeba-comma": ("CelebA", file(WHO, lambda content: content.replace(b" ", b",")), WHO),
    "celeba-other": (
        "CelebA",
        file(WHO, lambda content: content.replace(b"000003", b"000099")),
        WHO,
        "000003.jpg is in one of them only",
    ),
    "celeba-nobody": (
        "CelebA",
        file(WHO, b"".join(b"%06d.jpg %d\n" % (number, number) for number in range(1, 25))),
        WHO,
        "nobody has 5 pictures or more",
    ),
    "celeba-unknown": ("CelebA", lambda root: None, "data.attributes must be of 5_o_Clock", {"--attributes=Smile"}),
    # NumPy's files
    "medmnist-gone": ("MedMNIST", gone(CELLS), "no 'pathmnist.npz' in 'files'", f"/{CELLS}"),
    "medmnist-cut": ("MedMNIST", cut(CELLS), CELLS, f"/{CELLS} again"),
    "medmnist-no-val": ("MedMNIST", cells(val_labels=None), CELLS, "'val_labels' is missing"),
    "medmnist-volumes": (
        "MedMNIST",
        cells(test_images=np.zeros((20, 28, 28, 28), np.uint8)),
        CELLS,
        "test_images must",
    ),
    "medmnist-floats": ("MedMNIST", cells(val_images=np.zeros((9, 28, 28, 3))), CELLS, "val_images must be uint8"),
    "medmnist-fewer": (
        "MedMNIST",
        cells(test_labels=np.zeros((19, 1), int)),
        CELLS,
        "numbers [20, 1], got int64 [19, 1]",
    ),
    "medmnist-9": ("MedMNIST", cells(test_labels=np.full((20, 1), 9)), CELLS, "from 0 to 8, got 9 in sample 0"),
    "medmnist-nan": ("MedMNIST", cells(val_labels=np.full((9, 1), np.nan)), CELLS, "val_labels must be whole numbers"),
    "medmnist-code": ("MedMNIST", cells(val_labels=np.array([Call(os.system, "touch ran")])), CELLS, "Object arrays"),
    # MATLAB's files
    "svhn-gone": ("SVHN", gone(HOUSES), f"no '{HOUSES}' in 'files'", f"/{HOUSES}"),
    "svhn-cut": ("SVHN", cut(HOUSES), HOUSES),
    "svhn-text": ("SVHN", file(HOUSES, b"not found"), HOUSES),
    "svhn-hdf5": ("SVHN", file(HOUSES, b"\x89HDF\r\n\x1a\n" + b"\0" * 600), HOUSES),
    "svhn-first": (
        "SVHN",
        matlab(HOUSES, X=np.zeros((20, 32, 32, 3), np.uint8)),
        HOUSES,
        "[32, 32, 3, 20], one for each label",
    ),
    "svhn-floats": ("SVHN", matlab(HOUSES, X=np.zeros((32, 32, 3, 20))), HOUSES, "must be uint8", "got float64"),
    "svhn-0": ("SVHN", matlab(HOUSES, y=np.arange(20) % 10), HOUSES, "from 1 to 10, got 0 in sample 0"),
    "svhn-nan": ("SVHN", matlab(HOUSES, y=np.full(20, np.nan)), HOUSES, "labels must be"),
    "svhn-no-y": ("SVHN", lambda root: savemat(root / HOUSES, {"X": np.zeros(3)}), HOUSES, "'y' is missing"),
    "harbox-99": ("HARBox", numbers(MOTION, (99, 10)), MOTION, "unzip large_scale_HARBox.zip again"),
    "harbox-nan": ("HARBox", numbers(MOTION, (100, 10), np.nan), "inputs must be finite numbers, got nan in sample"),
    "ucihar-gone": ("UCIHAR", gone(BODY), BODY, "No such file"),
    "ucihar-cut": ("UCIHAR", cut(BODY), BODY, "unzip the archive again"),
    "ucihar-commas": ("UCIHAR", file(BODY, lambda content: content.replace(b" ", b",")), BODY),
    "ucihar-shape": ("UCIHAR", numbers(BODY, (48, 127)), BODY, "[48, 127] numbers instead of [48, 128]"),
    "ucihar-7": ("UCIHAR", numbers(ACTIVITY, (24, 1), 7), ACTIVITY, "must be 1 to 6, got 7 in sample 23"),
    "ucihar-nan": ("UCIHAR", numbers(BODY, (48, 128), np.nan), BODY, "finite numbers, got nan in sample 47"),
    "pamap2-gone": (
        "PAMAP2",
        lambda root: shutil.rmtree(root / "PAMAP2_Dataset"),
        "no PAMAP2 in 'files' (looked for PAMAP2_Dataset/Protocol/subject*.dat",
    ),
    "pamap2-cut": ("PAMAP2", cut(PERSON), PERSON, "unzip the archive again"),
    "pamap2-tabs": ("PAMAP2", file(PERSON, lambda content: content.replace(b" ", b";")), PERSON),
    "pamap2-shape": ("PAMAP2", numbers(PERSON, (300, 53)), PERSON, "53 columns instead of 54"),
    "pamap2-25": ("PAMAP2", activity(b"25"), PERSON, "must be ids of the data set, got 25.0 in sample 0"),
    "pamap2-nan": ("PAMAP2", activity(b"NaN"), PERSON, "must be ids of the data set, got nan in sample 0"),
    "pamap2-mute": ("PAMAP2", file(PERSON, b"0 1" + 52 * b" NaN" + b"\n"), PERSON, "column 5 has no number"),
    "heart-gone": ("HeartDisease", gone(SITE), "no heart disease in 'files' (looked for processed.hungarian.data)"),
    "heart-cut": ("HeartDisease", file(SITE, lambda content: content[:-12]), SITE, "unzip heart+disease.zip again"),
    "heart-semicolons": ("HeartDisease", file(SITE, lambda content: content.replace(b",", b";")), SITE, "1 columns"),
    "heart-13": ("HeartDisease", numbers(SITE, (9, 13), delimiter=","), SITE, "13 columns instead of 14"),
    "heart-5": ("HeartDisease", numbers(SITE, (9, 14), 5, delimiter=","), SITE, "column 14 must be one of (0, 1,"),
    "heart-nan": ("HeartDisease", numbers(SITE, (9, 14), np.nan, delimiter=","), SITE, "got nan in sample 8"),
    "heart-word": ("HeartDisease", file(SITE, lambda content: content.replace(b"?", b"-")), SITE, "'-'"),
    "agnews-gone": ("AGNews", gone(NEWS), "no AG News in 'files' (looked for test.csv, there and in ag_news_csv)"),
    "agnews-cut": ("AGNews", file(NEWS, lambda content: content[:-3]), NEWS, "download it again"),
    "agnews-tabs": ("AGNews", file(NEWS, b'"1"\t"oil"\t"oil"\n'), NEWS),
    "agnews-0": (
        "AGNews",
        file(NEWS, b'"0","oil","oil"\n'),
        NEWS,
        "from 1 to 4 and two texts, got 0 and 2 texts in row 1",
    ),
    "agnews-short": ("AGNews", file(NEWS, b'"1","oil"\n'), NEWS, "got 1 and 1 texts in row 1"),
    "reddit-gone": ("Reddit", gone(COMMENTS), "no LEAF files in 'files'"),
    "reddit-cut": ("Reddit", file(COMMENTS, lambda content: content[:-9]), COMMENTS, "create it again"),
    "reddit-x": ("Reddit", file(COMMENTS, lambda content: content.replace(b'"x"', b'"z"')), COMMENTS, "x"),
    "reddit-words": (
        "Reddit",
        file(COMMENTS, lambda content: content.replace(b'"<PAD>"', b'"<PAD>", "cat"', 1)),
        COMMENTS,
        "words, target_tokens and count_tokens must be as many, got 11, 10 and 10",
    ),
    "reddit-counts": (
        "Reddit",
        file(COMMENTS, lambda content: content.replace(b"count_", b"")),
        COMMENTS,
        "count_tokens",
    ),
    "reddit-numbers": ("Reddit", file(COMMENTS, lambda content: content.replace(b'"cat"', b"7")), COMMENTS, "got int"),
    "reddit-latin": ("Reddit", file(COMMENTS, lambda content: content.replace(b"cat", b"ca\xe9")), COMMENTS, "utf-8"),
    "agnews-latin": ("AGNews", file(NEWS, '"1","Zoë",""'.encode("latin-1")), NEWS, "utf-8"),
}


OWN_WRITERS = {
    "CelebA": partial(write_celeba, people=4),
    "Flowers102": partial(write_flowers102, count=24),
    "MedMNIST": partial(write_medmnist, sizes=(40, 9, 20)),
    "SVHN": partial(write_svhn, sizes=(40, 20)),
    "HARBox": partial(write_harbox, users=3, count=1),
    "TinyImageNet": partial(write_tiny_imagenet, count=3),
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Writes the fake of a data set, once."""
    folders = {}

    def of(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            key = next(key for key in fakes.WRITERS if key.replace("_", "") == name.lower())
            OWN_WRITERS.get(name, fakes.WRITERS[key])(folders[name])
        return folders[name]

    return of


@pytest.fixture
def files(originals, monkeypatch):
    """Copies the fake of a data set to ``files`` in an empty working folder; there is no network."""
    monkeypatch.setattr(requests, "get", refuse)
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return lambda name: Path(shutil.copytree(originals(name), "files"))


def refuse(url, **_):
    raise URLError(f"no way to {getattr(url, 'full_url', url)}")


@pytest.mark.parametrize("name", ROWS)
def test_a_wrong_file_gets_one_line_and_leaves_nothing(files, refused, name):
    source, damage, *expected = ROWS[name]
    damage(files(source))
    options = [option for each in expected if isinstance(each, set) for option in each]
    code, line = refused("data", "prepare", source, "--root=files", *options)
    assert code == 1
    missing = [words for words in expected if isinstance(words, str) and words not in line]
    assert not missing, line
    assert not Path("files/.pfl_cache").exists()


@pytest.mark.parametrize("name", sorted({row[0] for row in ROWS.values()}))
def test_the_intact_files_pass(files, capsys, name):
    files(name)
    for options in ([], ["--source=csv"], ["--text=mean"]) if name == "Sent140" else ([],):
        main(["data", "prepare", name, "--root=files", *options])
        captured = capsys.readouterr()
        assert f"{name} in 'files': " in captured.out
        assert not captured.err


def test_leafs_windows_pass(files, capsys):
    windows("a" * 80)(files("Shakespeare"))
    main(["data", "prepare", "Shakespeare", "--root=files", "--text=leaf"])
    assert "3 samples of 2 users" in capsys.readouterr().out


FIT = ["fit", "--trainer.max_steps=1", "--model.network=MLP", "--model.network.hidden=[4]"]
USERS = "num_clients must be at most 2, the users with at least 1 samples"
COMMANDS = {
    "fit-hostile": ("cifar10-system", [*FIT, "--data=CIFAR10"]),
    "fit-label": ("femnist-62", [*FIT, "--data=FEMNIST"]),
    "fit-glove": ("glove-word", ["fit", "--data=Sent140", "--model.network=TweetLSTM"]),
    "describe-hostile": ("cifar10-system", ["data", "describe", "--data=CIFAR10"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_wrong_file_before_it_writes(files, refused, command):
    name, args = COMMANDS[command]
    source, damage, *expected = ROWS[name]
    damage(files(source))
    code, line = refused(*args, "--data.root=files")
    assert code == 1
    assert all(words in line for words in expected), line


GRAPH = ["--model=DPSGD", "--model.topology=GraphFile"]
SPLITS = {
    "users": (user(), ["--data=FEMNIST", "--data.root=files", "--data.num_clients=3"], USERS),
    "samples": (
        None,
        ["--data=Digits", "--data.num_clients=2000"],
        "num_clients must be at most",
        "of the 1347 training",
    ),
    "no files": (None, ["--data=FEMNIST", "--data.root=none"], "no LEAF files in 'none'"),
    "no network": (None, ["--data=MNIST", "--data.root=none"], "no MNIST in 'none'", "no way to https://"),
    "root is a file": (None, ["--data=CIFAR10", "--data.root=graph.txt"], "data.root: no CIFAR10 in 'graph.txt'"),
    "figure": (None, ["--figure=split.doc"], "figure: split.doc is not possible"),
    "figure is a folder": (None, ["--figure=files/folder.png"], "figure: files/folder.png is not possible"),
    "torus": (None, ["--model=DPSGD", "--model.topology=Torus", "--data.num_clients=7"], "model.topology: Torus"),
    "graph": (None, [*GRAPH, "--model.topology.path=graph.txt"], "'graph.txt' is not possible: 2 nodes from 0 to 1"),
    "no graph": (None, [*GRAPH, "--model.topology.path=none.txt"], "'none.txt' is not possible: "),
}


@pytest.mark.parametrize("name", SPLITS)
def test_describe_refuses_what_it_cannot_show_before_it_writes(files, refused, name):
    damage, args, *expected = SPLITS[name]
    Path("files/folder.png").mkdir(parents=True)
    Path("none/MNIST/raw").mkdir(parents=True)  # which torchvision makes
    Path("graph.txt").write_text("0 1\n2\n")
    if damage:
        damage(Path("files"))
    code, line = refused("data", "describe", *args)
    assert code == 1
    assert all(words in line for words in expected), line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "data: a subcommand is missing; allowed: prepare, describe"),
        (["fetch"], "data: fetch is not possible; allowed: prepare, describe"),
        (["prepare"], "name"),
        (["prepare", "mnist"], "data: mnist is not possible; did you mean MNIST?"),
        (["prepare", "MNIST", "--rot=files"], "data.rot: MNIST has no such option; did you mean root?"),
        (["prepare", "MNIST", "--size=14"], "size: 14 is not possible; allowed: 28, 32"),
        (["describe", "--data=MNISTT"], "data: MNISTT is not possible; did you mean MNIST?"),
        (["describe", "--data.num_clients=0"], "data.num_clients: 0 is not possible"),
    ],
)
def test_a_wrong_command_is_refused(files, refused, args, words):
    code, line = refused("data", *args)
    assert code == 2
    assert words in line
