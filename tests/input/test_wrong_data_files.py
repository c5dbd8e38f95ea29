"""Wrong, damaged and hostile data files: each gets one line that names the file and the place, and leaves nothing.

A row has a data set, what is done to the files of its fake, and words of the line.
"""

import gzip
import io
import json
import os
import pickle
import shutil
import sys
import tarfile
from functools import partial
from pathlib import Path

import fakes
import numpy as np
import pytest
import requests
from fakes.harbox import write_harbox
from fakes.leaf import write_json
from fakes.torchvision_data import write_idx
from PIL import Image

from pfl_lightning.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:.*is not the official data set", "ignore:.*no test samples")

BATCH, FINE = "cifar-10-batches-py/data_batch_2", "cifar-100-python/train"
MNIST, EMNIST = "MNIST/raw/", "EMNIST/raw/emnist-balanced-"
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
LEAF, TWEETS = "data/train/users.json", "data/train/all_data_0_niid_0_keep_3_train_8.json"
TABLE, GLOVE = "data/raw_data/training.csv", "glove.6B.100d.txt"
MOTION, PLAYS = "large_scale_HARBox/3/Hop_train.txt", "data/raw_data/raw_data.txt"
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


def empty(name):
    return file(name, b"")


def folder(name):
    def damage(root):
        (root / name).unlink()
        (root / name).mkdir()

    return damage


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


def hostile(function, *arguments):
    return batch(BATCH, labels=[Call(function, *arguments)])


def idx(name, shape, kind=None):
    """Replaces an IDX file by one of this shape."""

    def damage(root):
        write_idx(root / name, np.zeros(shape))
        if kind is not None:
            content = (root / name).read_bytes()
            (root / name).write_bytes(content[:2] + bytes([kind]) + content[3:])

    return damage


def last_byte(name, value):
    return file(name, lambda content: content[:-1] + bytes([value]))


def picture(write):
    """Puts a picture in the place of another, in the folders that the archive is unpacked to."""

    def damage(root):
        with tarfile.open(root / ARCHIVE) as archive:
            archive.extractall(root, filter="data")
        (root / ARCHIVE).unlink()
        write(root / PICTURE)

    return damage


def sized(size, kind="PNG"):
    return picture(lambda path: Image.new("L", size).save(path, kind))


def archive(*members):
    """Replaces the archive by one with these members: a name, and bytes or the number of bytes that it claims."""

    def damage(root):
        content = io.BytesIO()
        with gzip.open(content, "wb", compresslevel=1) as zipped:
            for name, held in members:
                member = tarfile.TarInfo(name)
                member.size = held if isinstance(held, int) else len(held)
                zipped.write(member.tobuf() + (bytes(1024) if isinstance(held, int) else held))
        (root / ARCHIVE).write_bytes(content.getvalue())

    return damage


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


def motion(shape, value=0.5):
    def damage(root):
        values = np.full(shape, 0.5)
        values[-1, -1] = value
        np.savetxt(root / MOTION, values)

    return damage


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


LINE = " ".join(["0.5"] * 100).encode()
CSV = b'"4","1","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","ann","so happy today , yay !"\n'

ROWS = {
    # a pickle is data, never code
    "cifar10-system": ("CIFAR10", hostile(os.system, "touch ran"), BATCH, "it calls posix.system; allowed: arrays"),
    "cifar10-eval": ("CIFAR10", hostile(eval, "open('ran', 'w')"), BATCH, "it calls __builtin__.eval"),
    "cifar10-import": ("CIFAR10", hostile(__import__, "antigravity"), BATCH, "it calls __builtin__.__import__"),
    "cifar10-open": (
        "CIFAR10",
        file("cifar-10-batches-py/test_batch", pickle.dumps(Call(open, "ran", "w"))),
        "it calls",
    ),
    "cifar100-system": ("CIFAR100", file(FINE, pickle.dumps(Call(os.system, "touch ran"))), FINE, "it calls"),
    "cifar10-objects": (
        "CIFAR10",
        batch(BATCH, data=np.array([{}, None])),
        BATCH,
        "an array of object; allowed: numbers",
    ),
    # a batch that is no batch
    "cifar10-cut": ("CIFAR10", cut(BATCH), BATCH, "truncated", "unpack cifar-10-python.tar.gz there again"),
    "cifar10-empty": ("CIFAR10", empty(BATCH), BATCH, "Ran out of input"),
    "cifar10-text": ("CIFAR10", file(BATCH, b"not a pickle"), BATCH),
    "cifar10-gone": ("CIFAR10", gone(BATCH), BATCH, "No such file"),
    "cifar10-folder": ("CIFAR10", folder(BATCH), BATCH, "Is a directory"),
    "cifar10-list": ("CIFAR10", file(BATCH, pickle.dumps([1, 2])), BATCH, "a list instead of a dictionary"),
    "cifar10-no-labels": ("CIFAR10", batch(BATCH, labels=None), BATCH, "'labels' is missing"),
    "cifar10-no-data": ("CIFAR10", batch(BATCH, data=None), BATCH, "'data' is missing"),
    "cifar100-coarse": ("CIFAR100", batch(FINE, fine_labels=None), FINE, "'fine_labels' is missing"),
    # labels
    "cifar10-1.7": ("CIFAR10", label(1.7), BATCH, "the label 1.7 of sample 3", "whole numbers from 0 to 9"),
    "cifar10-10": ("CIFAR10", label(10), BATCH, "the label 10 of sample 3"),
    "cifar10-minus": ("CIFAR10", label(-1), BATCH, "the label -1 of sample 3"),
    "cifar10-nested": ("CIFAR10", label([3]), BATCH, "the label [3] of sample 3"),
    "cifar10-huge": ("CIFAR10", label(10**30), BATCH, "the label 1000000000", "of sample 3"),
    "cifar10-nan": ("CIFAR10", label(float("nan")), BATCH, "the label nan of sample 3"),
    "cifar10-word": ("CIFAR10", label("cat"), BATCH, "the label 'cat' of sample 3"),
    "cifar10-float-array": ("CIFAR10", batch(BATCH, labels=np.full(80, 1.7)), BATCH, "the label 1.7 of sample 0"),
    "cifar10-table": ("CIFAR10", batch(BATCH, labels=np.zeros((80, 2))), BATCH, "the label [0.0, 0.0] of sample 0"),
    "cifar10-single": ("CIFAR10", batch(BATCH, labels=3), BATCH, "labels 3; allowed: a list"),
    "cifar10-fewer": ("CIFAR10", batch(BATCH, labels=[1] * 79), BATCH, "80 images with 79 labels"),
    "cifar100-100": ("CIFAR100", label(100, FINE, "fine_labels"), FINE, "the label 100 of sample 3", "from 0 to 99"),
    # images
    "cifar10-small": ("CIFAR10", batch(BATCH, data=np.zeros((80, 768), np.uint8)), BATCH, "no images of 3 x 32 x 32"),
    "cifar10-floats": ("CIFAR10", batch(BATCH, data=np.zeros((80, 3072))), BATCH, "no images of 3 x 32 x 32 bytes"),
    "cifar10-flat": ("CIFAR10", batch(BATCH, data=np.zeros(3072, np.uint8)), BATCH, "no images"),
    "cifar10-lists": ("CIFAR10", batch(BATCH, data=[[0] * 3072] * 80), BATCH, "no images"),
    # IDX files
    "mnist-14": ("MNIST", idx(MNIST + IMAGES, (400, 14, 14)), IMAGES, "samples of 14 x 14 instead of 28 x 28"),
    "mnist-14-to-32": ("MNIST", idx(MNIST + IMAGES, (400, 14, 14)), IMAGES, "14 x 14", {"--size=32"}),
    "mnist-cut": ("MNIST", cut(MNIST + IMAGES), IMAGES, "bytes instead of 313,600 for 400 samples"),
    "mnist-longer": ("MNIST", file(MNIST + LABELS, lambda old: old + b"\1"), LABELS, "401 bytes instead of 400"),
    "mnist-empty": ("MNIST", empty(MNIST + LABELS), LABELS, "0 bytes"),
    "mnist-zipped": ("MNIST", file(MNIST + IMAGES, gzip.compress), IMAGES, "no IDX file of bytes"),
    "mnist-swapped": ("MNIST", idx(MNIST + LABELS, (400, 28, 28)), LABELS, "no IDX file of bytes along 1 axes"),
    "mnist-floats": ("MNIST", idx(MNIST + IMAGES, (400, 28, 28), kind=13), IMAGES, "no IDX file of bytes"),
    "mnist-gone": ("MNIST", gone(MNIST + LABELS), LABELS, "No such file", "train-labels-idx1-ubyte.gz there again"),
    "mnist-folder": ("MNIST", folder(MNIST + LABELS), LABELS, "Is a directory"),
    "mnist-label": ("MNIST", last_byte(MNIST + LABELS, 10), LABELS, "the label 10 of sample 399", "from 0 to 9"),
    "mnist-fewer": ("MNIST", idx(MNIST + LABELS, (399,)), LABELS, "400 inputs with 399 targets"),
    "emnist-20": ("EMNIST", idx(EMNIST + IMAGES, (400, 20, 20)), IMAGES, "samples of 20 x 20 instead of 28 x 28"),
    "emnist-label": ("EMNIST", last_byte(EMNIST + LABELS, 47), LABELS, "the label 47 of sample 399", "0 to 46"),
    # CINIC-10
    "cinic10-cut": ("CINIC10", cut(ARCHIVE), ARCHIVE, "ended before"),
    "cinic10-empty": ("CINIC10", empty(ARCHIVE), ARCHIVE, "empty"),
    "cinic10-text": ("CINIC10", file(ARCHIVE, b"<html>not found</html>"), ARCHIVE, "gzip"),
    "cinic10-flipped": ("CINIC10", file(ARCHIVE, lambda old: old[:50] + bytes(50) + old[100:]), ARCHIVE),
    "cinic10-bomb": ("CINIC10", archive((PICTURE, 3 << 30)), ARCHIVE, f"{PICTURE} has 3,221,225,472 bytes"),
    "cinic10-bomb-beside": ("CINIC10", archive(("README", 3 << 30)), ARCHIVE, "README has 3,221,225,472 bytes"),
    "cinic10-no-pictures": ("CINIC10", archive(("README", b"")), ARCHIVE, "no images in train"),
    "cinic10-class": ("CINIC10", archive(("train/boat/1.png", b"")), ARCHIVE, "train/boat/1.png: no such class"),
    "cinic10-no-png": ("CINIC10", picture(lambda path: path.write_bytes(b"text")), PICTURE, "cannot identify"),
    "cinic10-other-format": ("CINIC10", sized((32, 32), "EPS"), PICTURE, "cannot identify"),
    "cinic10-size": ("CINIC10", sized((28, 32)), PICTURE, "28 x 32 pixels instead of 32 x 32"),
    "cinic10-huge": ("CINIC10", sized((9000, 9000)), PICTURE, "9000 x 9000 pixels instead of 32 x 32"),
    "cinic10-half": ("CINIC10", picture(lambda path: path.write_bytes(path.read_bytes()[:200])), PICTURE),
    "cinic10-folder": ("CINIC10", picture(lambda path: (path.unlink(), path.mkdir())), PICTURE, "Is a directory"),
    "cinic10-link": (
        "CINIC10",
        picture(lambda path: (path.unlink(), path.symlink_to("none"))),
        PICTURE,
        "No such file",
    ),
    # LEAF's JSON
    "femnist-empty": ("FEMNIST", leaf(b""), LEAF, "Expecting value"),
    "femnist-cut": ("FEMNIST", leaf(b'{"users": ["ann'), LEAF, "line 1 column 12"),
    "femnist-list": ("FEMNIST", leaf(b"[1, 2]"), LEAF, "a list instead of users and user_data"),
    "femnist-other": ("FEMNIST", leaf(b'{"images": []}'), LEAF, "'users' is missing"),
    "femnist-deep": ("FEMNIST", leaf(b"[" * 100_000), LEAF, "recursion"),
    "femnist-latin": ("FEMNIST", leaf('{"users": ["Zoë"]}'.encode("latin-1")), LEAF, "utf-8"),
    "femnist-binary": ("FEMNIST", leaf(bytes(range(256))), LEAF, "utf-8"),
    "femnist-nobody": ("FEMNIST", user(users=[]), "data/train", "no users"),
    "femnist-absent": ("FEMNIST", user(users=["ann", "eve"]), LEAF, "'eve' is missing"),
    "femnist-no-x": ("FEMNIST", user(user_data={"ann": {"y": []}, "bob": {}}), LEAF, "'x' is missing"),
    "femnist-no-list": (
        "FEMNIST",
        user(user_data={"ann": {"x": "ab", "y": "cd"}}),
        LEAF,
        "x and y of ann are no lists",
    ),
    "femnist-fewer": ("FEMNIST", user(y=[3]), LEAF, "2 inputs and 1 targets of bob"),
    "femnist-1.7": ("FEMNIST", user(y=[3, 1.7]), LEAF, "bob: the label 1.7 of sample 1", "whole numbers from 0 to 61"),
    "femnist-nested": ("FEMNIST", user(y=[[3], [4]]), LEAF, "bob: the label [3] of sample 0"),
    "femnist-huge": ("FEMNIST", user(y=[3, 10**30]), LEAF, "bob: the label 1000"),
    "femnist-minus": ("FEMNIST", user(y=[3, -1]), LEAF, "bob: the label -1 of sample 1"),
    "femnist-62": ("FEMNIST", user(y=[3, 62]), LEAF, "bob: the label 62 of sample 1"),
    "femnist-null": ("FEMNIST", user(y=[3, None]), LEAF, "bob: the label None of sample 1"),
    "femnist-word": ("FEMNIST", user(y=[3, "4"]), LEAF, "bob: the label '4' of sample 1"),
    "femnist-nan": ("FEMNIST", pixel(float("nan")), LEAF, "bob: pixels of sample 1 are outside [0, 1]"),
    "femnist-inf": ("FEMNIST", pixel(float("inf")), LEAF, "bob: pixels of sample 1 are outside [0, 1]"),
    "femnist-bright": ("FEMNIST", pixel(255), LEAF, "bob: pixels of sample 1 are outside [0, 1]"),
    "femnist-dark": ("FEMNIST", pixel(-0.1), LEAF, "bob: pixels of sample 1 are outside [0, 1]"),
    "femnist-20": ("FEMNIST", pixel(1.0, 400), LEAF, "bob: sample 1 has 400 pixels instead of 784"),
    "femnist-flat": ("FEMNIST", user([0.5, 0.5]), LEAF, "bob: "),
    "femnist-lists": ("FEMNIST", pixel([1.0]), LEAF, "bob: "),
    # texts
    "shakespeare-79": ("Shakespeare", windows("a" * 79), LEAF, "bob: strings of other than 80", {"--text=leaf"}),
    "shakespeare-two": ("Shakespeare", windows("a" * 80, "ab"), LEAF, "bob: strings of other than 1", {"--text=leaf"}),
    "shakespeare-sign": ("Shakespeare", windows("€" * 80), LEAF, "bob: ", {"--text=leaf"}),
    "shakespeare-number": ("Shakespeare", windows(5), LEAF, "bob: ", {"--text=leaf"}),
    "shakespeare-empty": ("Shakespeare", empty(PLAYS), PLAYS, "no roles"),
    "shakespeare-binary": ("Shakespeare", file(PLAYS, bytes(range(256)) * 99), PLAYS, "no roles"),
    "shakespeare-folder": ("Shakespeare", folder(PLAYS), PLAYS),
    "sent140-target": ("Sent140", tweets(y=lambda old: [2, *old[1:]]), TWEETS, "the label 2 of sample 0"),
    "sent140-half": ("Sent140", tweets(y=lambda old: [0.5, *old[1:]]), TWEETS, "the label 0.5 of sample 0"),
    "sent140-text": ("Sent140", tweets(x=lambda old: ["hello", *old[1:]]), TWEETS, "sample 0 is no tweet"),
    "sent140-number": ("Sent140", tweets(x=lambda old: [[0, 1, 2, 3, 4], *old[1:]]), TWEETS, "sample 0 is no tweet"),
    "sent140-label": (
        "Sent140",
        file(TABLE, CSV + CSV.replace(b"4", b"3", 1)),
        TABLE,
        "line 2 is no tweet",
        {"--source=csv"},
    ),
    "sent140-columns": ("Sent140", file(TABLE, CSV + b"4,5\n"), TABLE, "line 2 is no tweet", {"--source=csv"}),
    "sent140-quote": ("Sent140", file(TABLE, CSV + b'"4","'), TABLE, "unexpected end", {"--source=csv"}),
    "sent140-empty": ("Sent140", empty(TABLE), "no tweets to train on", {"--source=csv"}),
    "glove-empty": ("Sent140", empty(GLOVE), GLOVE, "data.glove_root", "it is empty"),
    "glove-nan": ("Sent140", vector(LINE.replace(b"0.5", b"nan", 1)), GLOVE, "line 1 has no 100 finite numbers"),
    "glove-inf": ("Sent140", vector(LINE.replace(b"0.5", b"inf", 1)), GLOVE, "line 1 has no 100 finite numbers"),
    "glove-word": ("Sent140", vector(LINE.replace(b"0.5", b"big", 1)), GLOVE, "line 1 has no 100 finite numbers"),
    "glove-short": ("Sent140", vector(LINE[:-4]), GLOVE, "line 1 has no 100 numbers"),
    "glove-long": ("Sent140", file(GLOVE, lambda old: old + b"word " + LINE + b" 1\n"), GLOVE, "has no 100 numbers"),
    "glove-binary": ("Sent140", file(GLOVE, bytes(range(256))), GLOVE, "line 1 has no 100 numbers"),
    "glove-mean": ("Sent140", vector(LINE.replace(b"0.5", b"nan", 1)), GLOVE, "line 1 has no", {"--text=mean"}),
    # tables of numbers
    "harbox-cut": ("HARBox", cut(MOTION), MOTION, "unzip large_scale_HARBox.zip again"),
    "harbox-empty": ("HARBox", empty(MOTION), MOTION, "no data"),
    "harbox-99": ("HARBox", motion((99, 10)), MOTION, "99 lines of 10 numbers; allowed: 100, 200, ... lines of 10"),
    "harbox-wide": ("HARBox", motion((50, 20)), MOTION, "50 lines of 20 numbers"),
    "harbox-narrow": ("HARBox", motion((1000, 1)), MOTION, "1000 lines of 1 numbers"),
    "harbox-nan": ("HARBox", motion((100, 10), np.nan), MOTION, "line 100 has a number that is not finite"),
    "harbox-large": ("HARBox", motion((100, 10), 1e300), MOTION, "line 100 has a number that is not finite"),
    "harbox-word": ("HARBox", file(MOTION, lambda old: old + b"a b c d e f g h i j\n"), MOTION, "string 'a'"),
    "harbox-folder": ("HARBox", folder(MOTION), MOTION, "Is a directory"),
    "harbox-activity": ("HARBox", file("large_scale_HARBox/3/Sleep_train.txt", b""), "Sleep", "allowed: Call, Hop"),
}


OWN_WRITERS = {"HARBox": partial(write_harbox, users=3, count=1)}


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
def files(originals, tmp_path, monkeypatch):
    """Copies the fake of a data set to ``files`` in an empty working folder; there is no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pfl"])
    monkeypatch.setattr(requests, "get", refuse)
    return lambda name: Path(shutil.copytree(originals(name), "files"))


def refuse(url, **_):
    raise requests.ConnectionError(f"no way to {url}")


def everything():
    """All files but the cache of what was right."""
    return sorted(path for path in Path().rglob("*") if ".pfl_cache" not in path.parts)


def complaint(capsys, args):
    """The only line of a command that fails."""
    with pytest.raises(SystemExit) as stop:
        main(args)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pfl: error: ")
    assert stop.value.code == 1
    return line


@pytest.mark.parametrize("name", ROWS)
def test_a_wrong_file_gets_one_line_and_leaves_nothing(files, capsys, name):
    source, damage, *expected = ROWS[name]
    damage(files(source))
    before = everything()
    options = [option for each in expected if isinstance(each, set) for option in each]
    line = complaint(capsys, ["data", "prepare", source, "--root=files", *options])
    missing = [words for words in expected if isinstance(words, str) and words not in line]
    assert not missing, line
    assert everything() == before


def control(name):
    """The commands that must work with the intact files of a data set."""
    leaf = [["--source=csv"], ["--text=mean"]] if name == "Sent140" else [[]]
    return [["data", "prepare", name, "--root=files", *options] for options in ([], *leaf)]


@pytest.mark.parametrize("name", sorted({row[0] for row in ROWS.values()}))
def test_the_intact_files_pass(files, capsys, name):
    files(name)
    before = everything()
    for args in control(name):
        main(args)
        captured = capsys.readouterr()
        assert f"{name} in 'files': " in captured.out
        assert not captured.err
    assert everything() == before


def test_leafs_windows_pass(files, capsys):
    windows("a" * 80)(files("Shakespeare"))
    main(["data", "prepare", "Shakespeare", "--root=files", "--text=leaf"])
    assert "3 samples of 2 users" in capsys.readouterr().out


FIT = ["fit", "--trainer.max_steps=1", "--model.network=MLP", "--model.network.hidden=[4]"]
USERS = "allowed: 1 to 2, the users with at least 1 samples"
COMMANDS = {
    "fit-hostile": ("cifar10-system", [*FIT, "--data=CIFAR10"]),
    "fit-label": ("femnist-1.7", [*FIT, "--data=FEMNIST"]),
    "fit-size": ("emnist-20", [*FIT, "--data=EMNIST"]),
    "fit-glove": ("glove-nan", ["fit", "--data=Sent140", "--model.network=TweetLSTM"]),
    "describe-hostile": ("cifar10-system", ["data", "describe", "--data=CIFAR10"]),
    "describe-label": ("femnist-1.7", ["data", "describe", "--data=FEMNIST"]),
    "describe-archive": ("cinic10-bomb", ["data", "describe", "--data=CINIC10"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_wrong_file_before_it_writes(files, capsys, command):
    name, args = COMMANDS[command]
    source, damage, *expected = ROWS[name]
    damage(files(source))
    before = everything()
    line = complaint(capsys, [*args, "--data.root=files"])
    assert all(words in line for words in expected), line
    assert everything() == before


GRAPH = ["--model=DPSGD", "--model.topology=GraphFile"]
SPLITS = {
    "users": (user(), ["--data=FEMNIST", "--data.root=files", "--data.num_clients=3"], "num_clients: 3", USERS),
    "samples": (None, ["--data=Digits", "--data.num_clients=2000"], "num_clients: 2000", "of the 1347 training"),
    "no files": (None, ["--data=FEMNIST", "--data.root=none"], "no LEAF files in 'none'"),
    "no network": (None, ["--data=MNIST", "--data.root=none"], "no MNIST in 'none'", "no way to https://"),
    "root is a file": (None, ["--data=CIFAR10", "--data.root=graph.txt"], "data.root: no CIFAR10 in 'graph.txt'"),
    "figure": (None, ["--figure=split.doc"], "figure: split.doc is not possible; allowed extensions: "),
    "no figure": (None, ["--figure="], "figure: . is not possible; allowed extensions: "),
    "figure is a folder": (None, ["--figure=files/folder.png"], "figure: files/folder.png is not possible"),
    "figure in a file": (None, ["--figure=graph.txt/split.png"], "figure: graph.txt/split.png is not possible"),
    "graph": (None, ["--model=DPSGD", "--model.topology=Torus", "--data.num_clients=7"], "model.topology: Torus"),
    "graph line": (
        None,
        [*GRAPH, "--model.topology.path=graph.txt"],
        "'graph.txt' is not possible: its text (line 2",
    ),
    "no graph": (None, [*GRAPH, "--model.topology.path=none.txt"], "'none.txt' is not possible: No such file"),
}


@pytest.mark.parametrize("name", SPLITS)
def test_describe_refuses_what_it_cannot_show_before_it_writes(files, capsys, name):
    damage, args, *expected = SPLITS[name]
    Path("files/folder.png").mkdir(parents=True)
    Path("graph.txt").write_text("0 1\n2\n")
    if damage:
        damage(Path("files"))
    before = everything()
    line = complaint(capsys, ["data", "describe", *args])
    assert all(words in line for words in expected), line
    assert everything() == before


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "data: a subcommand is missing; allowed: prepare, describe"),
        (["fetch"], "data: fetch is not possible; allowed: prepare, describe"),
        (["prepare"], "name"),
        (["prepare", "MNISTT"], "MNISTT"),
        (["prepare", "MNIST", "--rot=files"], "--rot: no such option; did you mean --root?"),
        (["prepare", "MNIST", "--size=14"], "size: 14 is not possible; allowed: 28, 32"),
        (["describe", "--data=MNISTT"], "data: MNISTT is not possible; did you mean MNIST?"),
        (["describe", "--data.num_clients=0"], "data.num_clients: 0 is not possible"),
    ],
)
def test_a_wrong_command_is_refused(files, capsys, args, words):
    with pytest.raises(SystemExit) as stop:
        main(["data", *args])
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2
    assert words in line
    assert not everything()
