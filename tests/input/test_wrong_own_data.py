"""Wrong files of the user's own: each gets one line that names the file, before anything is written.

A row has the data set with its options, what is written, and words of the line.
"""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from pfl_lightning import data
from pfl_lightning.cli import main

N = 40
PICTURE = b"P5 4 4 255 " + bytes(16)
IMAGES, LABELS = np.arange(N * 16, dtype=np.uint8).reshape(N, 4, 4), np.arange(N) % 2
ARRAYS = "Arrays --data.file=my.npz"
TABLE = "Table --data.file=my.csv --data.target=ill --data.client=ward"
FOLDERS = "ImageFolders --data.root=pictures"
LIBSVM = "LibSVM --data.file=a9a --data.test_file=a9a.t"
PT = "--data.file=my.pt"
SAVED = "HuggingFace --data.root=saved"


def arrays(**changes):
    given = {"inputs": IMAGES, "targets": LABELS, **changes}
    return lambda: np.savez("my.npz", **{name: values for name, values in given.items() if values is not None})


def file(name, content):
    def write():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)

    return write


def csv(*lines, header="age,ward,ill"):
    rows = [f"{30 + number % 9},{number % 4},{number % 2}" for number in range(N)]
    return file("my.csv", "\n".join([header, *rows, *lines]).encode())


def pictures(*others, kind="L"):
    """Two good pictures, and others: a name, and bytes or the size of a picture."""

    def write():
        for name, content in (("a/1.png", (4, 4)), ("b/1.png", (4, 4)), *others):
            path = Path("pictures") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                Image.new(kind if name == others[-1][0] else "L", content).save(path)

    return write


def saved(**columns):
    datasets = pytest.importorskip("datasets")
    splits = {columns.pop("split", "train"): datasets.Dataset.from_dict({"label": [0, 1] * 10, **columns})}
    return lambda: datasets.DatasetDict(splits).save_to_disk("saved")


class Run:
    def __reduce__(self):
        return Path.touch, (Path("ran"),)


ROWS = {
    "none": (ARRAYS, lambda: None, "data.file: cannot read 'my.npz' ("),
    "no file": ("Arrays", lambda: None, "data.file must be a file, or None with inputs"),
    "extension": ("Arrays --data.file=my.npy", file("my.npy", b""), "the extension must be .npz or .pt, got '.npy'"),
    "missing": (ARRAYS, arrays(targets=None), "'targets' is missing"),
    "other": (ARRAYS, arrays(x=IMAGES), "'x' is not the name of an array; allowed: inputs, targets"),
    "half a test": (ARRAYS, arrays(test_inputs=IMAGES), "'test_targets' is missing"),
    "pickled": (ARRAYS, arrays(targets=np.array([Run()] * N)), "data.file: 'targets' holds objects"),
    "lengths": (ARRAYS, arrays(targets=LABELS[1:]), "data.file: Arrays in 'my.npz': 40 inputs with 39 targets"),
    "many": (f"{ARRAYS} --data.num_clients=5", arrays(clients=LABELS), "num_clients must be at most 2, the users"),
    "alone": (ARRAYS, arrays(clients=np.arange(N)), "data.test_fraction: no client has a test sample"),
    "pt of code": (
        f"Arrays {PT}",
        lambda: torch.save({"inputs": Run()}, "my.pt"),
        "cannot read 'my.pt' (not what torch.save",
    ),
    "no pt": (f"Arrays {PT}", file("my.pt", pickle.dumps({})), "cannot read 'my.pt'"),
    "no folder": (FOLDERS, lambda: None, "data.root: no pictures in 'pictures'; allowed: class/picture"),
    "flat": (FOLDERS, file("pictures/1.png", b""), "'pictures/1.png' is in the wrong place"),
    "two layouts": (FOLDERS, pictures(("a/b/1.png", (4, 4))), "pictures of both layouts in 'pictures'"),
    "classes": (
        f"{FOLDERS} --data.classes=[a,cat]",
        file("pictures/a/1.png", PICTURE),
        "must be folders of classes in 'pictures', got cat",
    ),
    "no folder of classes": (f"{FOLDERS} --data.classes=[cat]", lambda: None, "data.root: no pictures in 'pictures'"),
    "sizes": (FOLDERS, pictures(("b/2.png", (5, 4))), "'pictures/b/2.png' (5 x 4 pixels instead of 4 x 4"),
    "mode": (FOLDERS, pictures(("b/2.png", (4, 4)), kind="I;16"), "pixels of the mode I;16; allowed: 1, L"),
    "one class": (FOLDERS, file("pictures/a/1.png", PICTURE), "ImageFolders in 'pictures': "),
    "empty table": (TABLE, file("my.csv", b""), "cannot read 'my.csv' ("),
    "no target": (TABLE, csv(header="age,ward,healthy"), "no column 'ill'; allowed: age, ward, healthy"),
    "told": (
        f"{TABLE} --data.features=[age,ill]",
        csv(),
        "data.features must be other columns than",
    ),
    "index": (TABLE, csv(header=",ward,ill"), "a column without a name, 'Unnamed: 0', perhaps the index"),
    "gap": (TABLE, csv(",3,1"), "no value of column 'age' in line 42"),
    "longer": (TABLE, csv("3,1,1,1"), "cannot read 'my.csv' ("),
    "latin": (TABLE, file("my.csv", "ill\nZoë".encode("latin-1")), "cannot read 'my.csv' ("),
    "no libsvm": (LIBSVM, lambda: None, "data.file: cannot read 'a9a' (No such file or directory); files of this"),
    "no test": (LIBSVM, file("a9a", b"+1 1:1\n-1 2:1\n"), "data.test_file: cannot read 'a9a.t' (No such file"),
    "cut pair": (LIBSVM, file("a9a", b"+1 1:1\n-1 2:"), "data.file: cannot read 'a9a' ("),
    "commas": (LIBSVM, file("a9a", b"+1,1:1,2:1\n"), "data.file: cannot read 'a9a' ("),
    "order": (LIBSVM, file("a9a", b"+1 2:1 1:1\n"), "should be sorted and unique"),
    "nan": (
        f"{LIBSVM.split(' --data.test')[0]}",
        file("a9a", b"+1 1:1\n-1 2:nan\n"),
        "must be finite numbers, got nan in sample 1",
    ),
    "empty": (LIBSVM, file("a9a", b""), "data.file: cannot read 'a9a' (no samples)"),
    "no data set": (SAVED, lambda: None, "data.root: cannot read 'saved' (no split 'train' among none); give"),
    "ragged": (
        SAVED,
        saved(image=[[0.5] * (1 + number % 2) for number in range(20)]),
        "must be numbers, all of one",
    ),
}


def made(given):
    """A data set with its options, as the command line would make it."""
    name, *options = given.split()
    pairs = [option.removeprefix("--data.").split("=") for option in options]
    return vars(data)[name](**{key: yaml.safe_load(value) for key, value in pairs})


@pytest.mark.parametrize("name", ROWS)
def test_a_wrong_file_gets_one_line_and_leaves_nothing(name, refusal):
    given, write, words = ROWS[name]
    write()
    line = refusal(lambda: made(given).setup())
    assert line.startswith("data.")
    assert words in line
    assert not Path("pictures/.pfl_cache").exists()


def test_a_network_that_cannot_take_the_inputs_is_refused(refused):
    arrays(inputs=IMAGES[:, 0].astype(int))()
    _, line = refused("fit", *f"--data={ARRAYS} --data.num_clients=4".split())
    assert line.startswith("model.network: MLP takes numbers, Arrays has tokens; allowed: CharGRU")


@pytest.mark.parametrize("given", [ARRAYS, TABLE])
def test_the_intact_files_pass(given, capsys):
    arrays(clients=LABELS)()
    csv()()
    main(["data", "describe", *f"--data={given}".split()])
    assert not capsys.readouterr().err
