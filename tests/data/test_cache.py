import multiprocessing
import os

import pytest
import torch

from pfl_lightning.data.cache import cached


class Parser:
    """Counts how often it is called."""

    def __init__(self, folder):
        self.folder = folder
        self.sources = [folder / "a.csv", folder / "b.csv"]
        for source in self.sources:
            source.write_text(source.name)
        self.calls = 0

    def parse(self):
        self.calls += 1
        content = b"".join(source.read_bytes() for source in self.sources)
        return {"inputs": torch.tensor(list(content), dtype=torch.uint8), "words": ["one", "\ud83d"]}

    def __call__(self, version=1, name="texts", sources=None):
        return cached(self.parse, sources or self.sources, self.folder, name, version)

    @property
    def kept(self):
        return sorted((self.folder / ".pfl_cache").glob("*.pt"))


@pytest.fixture
def parser(tmp_path):
    return Parser(tmp_path)


def test_sources_are_parsed_once_whatever_their_order(parser):
    first, second = parser(), parser(sources=parser.sources[::-1])
    assert parser.calls == 1
    assert torch.equal(first["inputs"], second["inputs"])
    assert first["words"] == second["words"]


def test_names_need_not_be_utf8(parser):
    parser.sources[1] = parser.sources[1].rename(os.fsdecode(os.fsencode(parser.folder) + b"/caf\xe9.csv"))
    parser()
    parser()
    assert parser.calls == 1


@pytest.mark.parametrize("change", ["content", "time", "name", "version"])
def test_another_source_or_version_is_parsed_anew(parser, change):
    parser()
    if change == "content":
        parser.sources[1].write_text("longer")
    elif change == "time":
        os.utime(parser.sources[1], (0, 0))
    elif change == "name":
        parser.sources[1] = parser.sources[1].rename(parser.folder / "c.csv")
    parser(version=2 if change == "version" else 1)
    assert parser.calls == 2


def test_one_file_is_kept_for_each_name(parser):
    for version, name in ((1, "texts"), (1, "images"), (2, "texts"), (2, "texts")):
        parser(version, name)
    assert [path.stem for path in parser.kept] == ["images", "texts"]
    assert parser.calls == 3


def test_tensors_are_mapped_and_may_be_changed_without_changing_the_file(parser):
    parser()
    parser()["inputs"].zero_()
    tensors = parser()
    parser.kept[0].unlink()
    assert bytes(tensors["inputs"].tolist()) == b"a.csvb.csv"


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), RuntimeError("PytorchStreamWriter\nfailed")]
)
def test_write_that_breaks_costs_one_warning_and_keeps_the_older_file(parser, monkeypatch, error):
    def fail(content, file):
        file.write(b"half")
        raise error

    parser()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fail)
        with pytest.warns(UserWarning, match="cannot keep .*(denied|failed)") as caught:
            parser(version=2)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    parser()
    assert parser.calls == 2


def test_what_fails_leaves_nothing(parser):
    def fail():
        raise ValueError("no such column")

    with pytest.raises(ValueError, match="no such column"):
        cached(fail, parser.sources, parser.folder, "texts", 1)
    assert sorted(parser.folder.iterdir()) == parser.sources
    parser.sources[1].unlink()
    with pytest.raises(FileNotFoundError, match=r"b\.csv"):
        parser()


# pytest-xdist has a thread that a forked process does not need
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_one_of_several_processes_parses_and_the_others_wait_for_it(tmp_path):
    parser, log, context = Parser(tmp_path), tmp_path / "log", multiprocessing.get_context("fork")
    barrier = context.Barrier(3)

    def slow():
        with log.open("a") as file:
            file.write("once\n")
        return parser.parse()

    def act():
        barrier.wait()
        found = cached(slow, parser.sources, tmp_path, "texts", 1)
        os._exit(bytes(found["inputs"].tolist()) != b"a.csvb.csv")

    actors = [context.Process(target=act) for _ in range(3)]
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join(60)
    assert [actor.exitcode for actor in actors] == [0, 0, 0]
    assert log.read_text() == "once\n"
