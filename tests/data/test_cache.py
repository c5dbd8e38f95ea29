import os
import pickle

import pytest
import torch

from pfl_lightning.data.cache import cached
from pfl_lightning.errors import PflError

TYPES = {"inputs": torch.uint8, "calls": torch.int64}


class Run:
    """Makes a file when it is unpickled."""

    def __reduce__(self):
        return open, ("ran", "w")


class Parser:
    """Counts the bytes of its sources, and how often it is called."""

    def __init__(self, folder):
        self.folder = folder
        self.sources = [folder / "a.csv", folder / "b.csv"]
        for source in self.sources:
            source.write_text(source.name)
        self.calls = 0

    def parse(self):
        self.calls += 1
        content = b"".join(source.read_bytes() for source in self.sources)
        return {"inputs": torch.tensor(list(content), dtype=torch.uint8), "calls": torch.tensor(self.calls)}

    def __call__(self, version=1, name="texts", sources=None):
        return cached(self.parse, TYPES, sources or self.sources, self.folder, name, version)

    @property
    def kept(self):
        return sorted((self.folder / ".pfl_cache").iterdir())


@pytest.fixture
def parser(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Parser(tmp_path)


def test_sources_are_parsed_once(parser):
    first, second = parser(), parser()
    assert parser.calls == 1
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=0, atol=0)


def test_neither_time_nor_order_of_the_sources_matters(parser):
    parser()
    os.utime(parser.sources[0], (0, 0))
    parser(sources=parser.sources[::-1])
    assert parser.calls == 1


def test_changed_content_is_parsed_anew(parser):
    parser()
    parser.sources[1].write_text("c.csv")  # as long as before
    assert bytes(parser()["inputs"].tolist()) == b"a.csvc.csv"


def test_content_that_moves_between_sources_is_parsed_anew(parser):
    parser()
    for source, content in zip(parser.sources, ["a.csvb", ".csv"], strict=True):
        source.write_text(content)
    parser()
    assert parser.calls == 2


def test_renamed_source_is_parsed_anew(parser):
    parser()
    parser.sources[1] = parser.sources[1].rename(parser.folder / "c.csv")
    parser()
    assert parser.calls == 2


def test_another_version_is_parsed_anew(parser):
    parser()
    assert parser(version=2)["calls"] == 2


def test_one_file_is_kept_for_each_name(parser):
    for version in (1, 2, 3):
        for name in ("texts", "texts-long", "text[s]"):
            parser(version, name)
    assert sorted(path.stem.rpartition("-")[0] for path in parser.kept) == ["text[s]", "texts", "texts-long"]
    assert parser.calls == 9
    parser(3, "texts")
    assert parser.calls == 9


def test_no_changed_byte_is_believed(parser):
    parser()
    (path,) = parser.kept
    intact = path.read_bytes()
    for place in range(0, len(intact), 7):
        path.write_bytes(intact[:place] + bytes([intact[place] ^ 1]) + intact[place + 1 :])
        assert bytes(parser()["inputs"].tolist()) == b"a.csvb.csv"


def others(parser):
    """What another cache could hold, by what tells it from this one."""
    (path,) = parser.kept
    content, tensors = torch.load(path), parser.parse()
    return path, {
        "key": {**content, "key": "another"},
        "no key": tensors,
        "names": {**content, "tensors": {"inputs": tensors["inputs"]}},
        "types": {**content, "tensors": {**tensors, "inputs": tensors["inputs"].float()}},
        "no tensors": {**content, "tensors": dict.fromkeys(tensors, 1)},
        "a list": [content],
    }


@pytest.mark.parametrize("kind", ["key", "no key", "names", "types", "no tensors", "a list"])
def test_a_file_with_something_else_is_replaced(parser, kind):
    parser()
    path, contents = others(parser)
    calls = parser.calls
    torch.save(contents[kind], path)
    for _ in range(2):
        assert parser()["calls"] == calls + 1


def test_a_file_that_would_run_code_is_replaced(parser):
    parser()
    (path,) = parser.kept
    path.write_bytes(pickle.dumps(Run()))
    assert parser()["calls"] == 2
    torch.save({"key": path.stem.rpartition("-")[2], "tensors": Run()}, path)
    assert parser()["calls"] == 3
    assert not (parser.folder / "ran").exists()


def test_the_file_of_another_name_is_not_believed(parser):
    for name in ("texts", "images"):
        parser(name=name)
    images, texts = parser.kept
    texts.write_bytes(images.read_bytes())
    assert parser(name="texts")["calls"] == 3


def test_a_folder_in_place_of_the_file_costs_one_warning(parser):
    parser()
    (path,) = parser.kept
    path.unlink()
    path.mkdir()
    with pytest.warns(UserWarning, match="cannot keep"):
        assert parser()["calls"] == 2
    assert parser.kept == [path]


@pytest.mark.parametrize("size", [0, 100, -1])
def test_damaged_cache_is_replaced(parser, size):
    parser()
    (path,) = parser.kept
    path.write_bytes(path.read_bytes()[:size])
    assert parser()["calls"] == 2
    assert parser()["calls"] == 2
    assert parser.kept == [path]


def test_tensors_may_be_changed_without_changing_the_cache(parser):
    parser()
    parser()["inputs"].zero_()
    assert bytes(parser()["inputs"].tolist()) == b"a.csvb.csv"


def test_loaded_tensors_outlive_their_file(parser):
    parser()
    tensors = parser()
    parser.kept[0].unlink()
    assert bytes(tensors["inputs"].tolist()) == b"a.csvb.csv"
    assert parser()["calls"] == 2


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), RuntimeError("PytorchStreamWriter\nfailed")]
)
def test_unwritable_folder_costs_one_warning(parser, monkeypatch, error):
    def fail(*args):
        raise error

    monkeypatch.setattr(torch, "save", fail)
    for calls in (1, 2):
        with pytest.warns(UserWarning, match="cannot keep .*(denied|failed)") as caught:
            assert parser()["calls"] == calls
        assert len(caught) == 1
        assert "\n" not in str(caught[0].message)
        assert caught[0].filename == __file__
    assert not parser.kept


def test_cache_that_cannot_be_a_folder_costs_one_warning(parser):
    (parser.folder / ".pfl_cache").write_text("a file")
    with pytest.warns(UserWarning, match="cannot keep"):
        assert parser()["calls"] == 1


def test_parse_that_fails_leaves_nothing(parser):
    def fail():
        raise ValueError("no such column")

    with pytest.raises(ValueError, match="no such column"):
        cached(fail, TYPES, parser.sources, parser.folder, "texts", 1)
    assert not list(parser.folder.glob(".pfl_cache/*"))


def test_source_that_cannot_be_read_is_named(parser):
    parser.sources[1].unlink()
    with pytest.raises(PflError, match=r"^data\.root: cannot read '.*b\.csv' \(No such file or directory\)$"):
        parser()


def test_folder_is_named_when_the_system_names_no_file(parser):
    def fail():
        raise OSError(5, "Input/output error")

    with pytest.raises(PflError) as caught:
        cached(fail, TYPES, parser.sources, parser.folder, "texts", 1)
    assert str(caught.value) == f"data.root: cannot read '{parser.folder}' (Input/output error)"


def test_write_that_breaks_keeps_the_older_file(parser, monkeypatch):
    def fail(tensors, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    parser()
    (path,) = parser.kept
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fail)
        with pytest.warns(UserWarning, match="No space left"):
            parser(version=2)
    assert parser.kept == [path]
    assert parser()["calls"] == 1
