"""Wrong, damaged and hostile files in ``.pfl_cache``: made anew and never believed, without a word."""

import os
import pickle
import shutil
import sys
import warnings
from functools import partial
from pathlib import Path

import fakes
import pytest
import torch
from fakes.harbox import write_harbox

from pfl_lightning import data, files
from pfl_lightning.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:.*is not the official data set")

# the files of a data set in a folder, and others that are cached under the same name
WRITERS = {"HARBox": (partial(write_harbox, users=3, count=1), partial(write_harbox, users=4, count=1))}


class Call:
    """Pickled as a call."""

    def __reduce__(self):
        return os.system, ("touch ran",)


def flip(share):
    """Changes one bit, at a share of the file."""

    def damage(path):
        content = bytearray(path.read_bytes())
        content[int(share * (len(content) - 1))] ^= 1
        path.write_bytes(content)

    return damage


def content(change):
    """Saves what a function makes of the content, as torch saves it."""
    return lambda path: torch.save(change(torch.load(path)), path)


def tensors(change):
    return content(lambda old: {**old, "tensors": {name: change(name, each) for name, each in old["tensors"].items()}})


def folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = {
    **{f"bit at {share}": flip(share) for share in (0, 0.2, 0.4, 0.5, 0.6, 0.8, 0.99, 1)},
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(99)),
    "text": lambda path: path.write_bytes(b"not a cache"),
    "no zip": lambda path: torch.save(torch.load(path), path, _use_new_zipfile_serialization=False),
    "hostile": lambda path: path.write_bytes(pickle.dumps(Call())),
    "hostile content": content(lambda old: {**old, "tensors": Call()}),
    "hostile tensor": tensors(lambda name, each: Call()),
    "another key": content(lambda old: {**old, "key": "0" * 32}),
    "no key": content(lambda old: old["tensors"]),
    "a list": content(lambda old: [old]),
    "numbers": tensors(lambda name, each: 1),
    "floats": tensors(lambda name, each: each.double()),
    "no tensors": content(lambda old: {**old, "tensors": {}}),
    "more tensors": content(lambda old: {**old, "tensors": {**old["tensors"], "more": torch.zeros(3)}}),
}


def write(name, root, which=0):
    key = next(key for key in fakes.WRITERS if key.replace("_", "") == name.lower())
    (WRITERS[name][which] if name in WRITERS else fakes.WRITERS[key])(root)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """The files of a data set with their cache, and what it holds; made once."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            write(name, made[name])
            vars(data)[name](root=str(made[name])).load()
        return made[name]

    return of


@pytest.fixture
def cached(originals, tmp_path, monkeypatch):
    """Copies the files of a data set to ``files`` in an empty working folder, and returns the file of its cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pfl"])

    def copy(name):
        shutil.copytree(originals(name), "files")
        (path,) = Path("files/.pfl_cache").iterdir()
        return path

    return copy


def loaded(name, root="files"):
    splits = vars(data)[name](root=str(root)).load()
    return [tensor for split in splits if split for tensor in split if tensor is not None]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_cache_is_made_anew_without_a_word(cached, originals, capsys, damage):
    path = cached("HARBox")
    intact = torch.load(path)
    DAMAGES[damage](path)
    main(["data", "prepare", "HARBox", "--root=files"])
    assert not capsys.readouterr().err
    assert_same(loaded("HARBox"), loaded("HARBox", originals("HARBox")))
    assert list(path.parent.iterdir()) == [path]
    assert files.is_intact(path)
    assert torch.load(path)["key"] == intact["key"]
    assert not list(Path().rglob("ran"))


@pytest.mark.parametrize("name", ["CINIC10", "FEMNIST", "HARBox", "Sent140"])
def test_a_cache_is_believed_only_while_it_is_intact(cached, originals, name):
    path = cached(name)
    written = path.stat().st_mtime_ns
    assert_same(loaded(name), loaded(name, originals(name)))
    assert path.stat().st_mtime_ns == written, "an intact cache is not written again"
    flip(0.5)(path)
    assert_same(loaded(name), loaded(name, originals(name)))
    assert path.stat().st_mtime_ns > written


def test_the_cache_of_other_files_is_not_believed_under_this_name(cached, tmp_path):
    path = cached("HARBox")
    write("HARBox", tmp_path / "others", which=1)
    expected = loaded("HARBox")
    assert len(expected[0]) != len(loaded("HARBox", "others")[0])
    (other,) = Path("others/.pfl_cache").iterdir()
    shutil.copy(other, path)
    assert_same(loaded("HARBox"), expected)


def test_the_cache_of_another_reading_of_the_same_files_is_not_believed(cached):
    tokens = cached("Sent140")
    expected = loaded("Sent140")
    main(["data", "prepare", "Sent140", "--root=files", "--text=mean"])
    (words,) = set(tokens.parent.iterdir()) - {tokens}
    shutil.copy(words, tokens)
    assert_same(loaded("Sent140"), expected)


@pytest.mark.parametrize("place", ["its file", "its folder"])
def test_where_no_cache_can_be_written_one_warning_tells_so(cached, capsys, monkeypatch, place):
    path = cached("HARBox")
    if place == "its file":
        folder(path)
    else:
        shutil.rmtree(path.parent)
        path.parent.write_text("a file")
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command replaces it
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        main(["data", "prepare", "HARBox", "--root=files"])
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith(f"pfl: warning: cannot keep what was read in '{path}', so it will be read again each time (")
    assert "HARBox in 'files': " in told.out
    assert [each.name for each in path.parent.parent.rglob("*.tmp")] == []


def test_a_full_disk_leaves_no_half_cache(cached, monkeypatch):
    path = cached("HARBox")
    path.unlink()

    def fill(content, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fill)
    with pytest.warns(UserWarning, match="No space left on device"):
        loaded("HARBox")
    assert not list(path.parent.iterdir())
