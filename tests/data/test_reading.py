import io
import os
import pickle
import pickletools

import numpy as np
import pytest
from rich.console import Console
from rich.progress import track

from pfl_lightning.data import reading
from pfl_lightning.data.reading import read_pickle


class Call:
    """Pickled as a call of any function."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def write(folder, content, protocol=2):
    path = folder / "batch"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_plain_values_come_back_in_every_protocol(tmp_path, protocol):
    content = {
        "bytes": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big end first": np.arange(5, dtype=">i4"),
        "scalars": [np.int64(3), np.float32(0.5)],
        "plain": [1, 2.5, "a", None, True, (b"\x00\xff", {"b": [1]})],
    }
    found = read_pickle(write(tmp_path, content, protocol))
    assert found.keys() == content.keys()
    for name, value in content.items():
        np.testing.assert_equal(found[name], value)
        assert getattr(found[name], "dtype", None) == getattr(value, "dtype", None)


def test_what_python_2_wrote_is_read(tmp_path):
    # as in the official batches: keys and bytes are strings, the class is numpy's of that time
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87"
        b"Rq\x05(K\x01K\x02K\x02\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ"
        b"\xff\xff\xff\xffK\x00tb\x89U\x04\x00\x7f\x80\xfftbU\x06labelsq\x08]q\t(K\x03K\x07eu."
    )
    found = read_pickle(write(tmp_path, content))
    assert found["data"].tolist() == [[0, 127], [128, 255]]
    assert found["labels"] == [3, 7]


@pytest.mark.parametrize("call", [Call(os.system, "touch ran"), Call(getattr, "text", "upper"), Call(np.empty, 3)])
def test_nothing_that_a_pickle_names_is_called(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    for protocol in (0, 2, 4):
        path = write(tmp_path, {"data": np.zeros(3), "labels": [call]}, protocol)
        assert "REDUCE" in {opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())}
        with pytest.raises(
            pickle.UnpicklingError, match=r"^pickles must hold arrays of numbers .*, got a call of \S+$"
        ):
            read_pickle(path)
    assert [each.name for each in tmp_path.iterdir()] == ["batch"]


def test_arrays_of_objects_and_of_more_than_their_bytes_are_refused(tmp_path):
    with pytest.raises(pickle.UnpicklingError, match=r"^arrays must hold numbers, got object$"):
        read_pickle(write(tmp_path, {"data": np.array([{}, None])}))
    content = pickle.dumps({"data": np.zeros(7, dtype=np.uint8)}, protocol=2)
    assert content.count(b"K\x07\x85") == 1  # the shape, (7,)
    with pytest.raises(ValueError, match="99"):
        read_pickle(write(tmp_path, content.replace(b"K\x07\x85", b"K\x63\x85")))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_for_one_part_of_the_loading_is_below_it_on_a_terminal_alone(is_terminal, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(reading, "CONSOLE", Console(file=shown, force_terminal=is_terminal, width=80))
    with reading.loading_status("CINIC10"):
        assert list(track(range(3), "Decoding", **reading.bar_options())) == [0, 1, 2]
    assert [words in shown.getvalue() for words in ("Loading CINIC10", "Decoding")] == [is_terminal] * 2
    assert bool(shown.getvalue()) == is_terminal
