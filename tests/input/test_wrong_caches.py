"""Wrong, damaged and hostile files in ``.pfl_cache``: made anew and never believed, without a word."""

import os
import pickle
from functools import partial
from pathlib import Path

import fakes
import pytest
import torch
from fakes.harbox import write_harbox

from pfl_lightning import data
from pfl_lightning.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:.*is not the official data set")

WRITERS = {**fakes.WRITERS, "harbox": partial(write_harbox, users=3, count=1)}


class Call:
    """Pickled as a call."""

    def __reduce__(self):
        return os.system, ("touch ran",)


def flip(path):
    """Changes a bit of a tensor's bytes."""
    whole, tensor = path.read_bytes(), torch.load(path)["content"]["windows"].numpy().tobytes()
    place = whole.index(tensor) + 5
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])


def content(change):
    """Saves what a function makes of the content, as torch saves it."""
    return lambda path: torch.save(change(torch.load(path)), path)


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "text": lambda path: path.write_bytes(b"not a cache"),
    "hostile": lambda path: path.write_bytes(pickle.dumps(Call())),
    "hostile content": content(lambda old: {**old, "content": Call()}),
    "another key": content(lambda old: {**old, "key": "0" * 32}),
    "a byte": flip,
    "a list": content(lambda old: [old]),
}


@pytest.fixture
def cached(tmp_path):
    """Writes the files of a data set to ``files`` in an empty working folder, and returns those of its cache."""

    def write(name):
        WRITERS[name.lower()](tmp_path / "files")
        loaded(name)
        return sorted(Path("files/.pfl_cache").glob("*.pt"))

    return write


def loaded(name):
    splits = vars(data)[name](root="files").load()
    return [tensor for split in splits if split for tensor in split if tensor is not None]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_cache_is_made_anew_without_a_word(cached, capsys, damage):
    (path,) = cached("HARBox")
    expected, intact = loaded("HARBox"), torch.load(path)
    DAMAGES[damage](path)
    main(["data", "prepare", "HARBox", "--root=files"])
    assert not capsys.readouterr().err
    assert_same(loaded("HARBox"), expected)
    assert torch.load(path)["key"] == intact["key"]
    assert not list(Path().rglob("ran"))


@pytest.mark.parametrize("name", ["CINIC10", "FEMNIST", "HARBox", "Sent140"])
def test_an_intact_cache_is_used_and_a_missing_one_made(cached, name):
    paths = cached(name)
    written, expected = [path.stat().st_mtime_ns for path in paths], loaded(name)
    assert [path.stat().st_mtime_ns for path in paths] == written
    for path in paths:
        path.unlink()
    assert_same(loaded(name), expected)
    assert all(path.is_file() for path in paths)
