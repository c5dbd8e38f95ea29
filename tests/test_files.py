import multiprocessing
import os
import subprocess
import sys

import pytest
import torch

from pfl_lightning.files import is_intact, new_file, replace, whole_file, write_text

CONTENT = {"tensor": torch.arange(5.0), "nested": {"indices": torch.arange(30), "text": "a"}, "empty": torch.empty(0)}


def equal(one, other) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def with_changed_byte(data, place, bits) -> bytes:
    return data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]


def loaded(path):
    try:
        return torch.load(path, weights_only=True)
    except Exception:
        return None


@pytest.fixture
def whole(tmp_path):
    torch.save(CONTENT, tmp_path / "whole.pt")
    return tmp_path / "whole.pt"


def test_what_was_saved_is_intact_and_is_read_again(whole):
    assert is_intact(whole)
    assert equal(loaded(whole), CONTENT)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_every_changed_byte_is_found_or_changes_nothing(whole):
    data = whole.read_bytes()
    changed, unnoticed = whole.with_name("changed.pt"), 0
    for place in range(len(data)):
        changed.write_bytes(with_changed_byte(data, place, 0xFF))
        if is_intact(changed) and (content := loaded(changed)) is not None:
            assert equal(content, CONTENT), f"byte {place}"
            unnoticed += 1
    assert 0 < unnoticed < len(data) / 2  # padding, dates


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_torch_itself_believes_a_changed_tensor(whole):
    data, tensor = whole.read_bytes(), CONTENT["tensor"].numpy().tobytes()
    place = data.index(tensor) + len(tensor) - 1
    whole.write_bytes(with_changed_byte(data, place, 1))
    assert not equal(loaded(whole), CONTENT)
    assert not is_intact(whole)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_not_intact(whole, share):
    data = whole.read_bytes()
    whole.write_bytes(data[: int(share * len(data))])
    assert not is_intact(whole)


def test_no_file_is_not_intact(tmp_path):
    assert not is_intact(tmp_path / "none")
    assert not is_intact(tmp_path)


def test_a_link_to_the_old_file_keeps_the_old_content(whole):
    kept = whole.with_name("kept.pt")
    os.link(whole, kept)
    with new_file(whole) as file:
        torch.save({}, file)
    assert equal(loaded(kept), CONTENT)
    replace(whole, kept)
    assert (loaded(kept), whole.exists()) == ({}, False)


@pytest.fixture
def writer(tmp_path):
    """A process that has written half of a file, and the event on which it goes on."""
    context = multiprocessing.get_context("fork")
    has_begun = context.Event()
    goes_on = context.Event()

    def write():
        with whole_file(tmp_path / "a.csv") as file:
            file.write(b"one,")
            file.flush()
            has_begun.set()
            assert goes_on.wait(60)
            file.write(b"two")

    process = context.Process(target=write)
    process.start()
    assert has_begun.wait(60)
    yield process, goes_on
    process.kill()
    process.join()


def test_two_processes_that_write_one_file_each_write_all_of_it(writer, tmp_path):
    process, goes_on = writer
    write_text("three", tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "three"
    goes_on.set()
    process.join(60)
    assert process.exitcode == 0
    assert (tmp_path / "a.csv").read_text() == "one,two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_what_a_killed_process_has_left_of_a_file_goes_with_the_next_one(writer, tmp_path):
    process, _ = writer
    process.kill()
    process.join()
    assert len(list(tmp_path.iterdir())) == 1
    assert not (tmp_path / "a.csv").exists()
    write_text("three", tmp_path / "a.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


FULL = """
import resource, signal, sys, torch
from pathlib import Path
from pfl_lightning.files import new_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with new_file(Path(sys.argv[1])) as file:
        torch.save({"first": torch.zeros(10_000), "second": torch.zeros(100_000)}, file)
except OSError as error:
    print(error.filename, error.strerror)
"""


@pytest.mark.slow
def test_a_file_that_finds_no_room_leaves_nothing(tmp_path):
    path = tmp_path / "new" / "x.pt"
    told = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=True).stdout
    assert told == f"{path} File too large\n"
    assert list(path.parent.iterdir()) == []
