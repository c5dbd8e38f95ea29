import hashlib
import sys
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from pfl_lightning.data import text
from pfl_lightning.data.download import Remote
from pfl_lightning.data.text import (
    Texts,
    basic_english,
    find_glove,
    prepare_glove,
    read_glove,
    vocabulary,
    words_and_marks,
)
from pfl_lightning.errors import PflError


def test_basic_english_lowers_and_sets_marks_apart():
    assert basic_english()("It's SO good!  (yes)") == ["it", "'", "s", "so", "good", "!", "(", "yes", ")"]


def test_words_and_marks_keep_capitals_and_drop_the_rest():
    assert words_and_marks("It's @me: wow!! :-) 3.5; ok?") == [
        *("It's", "me", "wow", "!", "!", "3", ".", "5", ";", "ok", "?")
    ]


def test_vocabulary_has_the_most_frequent_words_behind_padding_and_unknown():
    # b before c, which is as frequent; never is not there at all
    assert vocabulary({"c": 2, "a": 5, "b": 2, "d": 1, "never": 0}, 3) == ["<pad>", "<unk>", "a", "b", "c"]
    assert vocabulary({"a": 1, "never": 0}, 9) == ["<pad>", "<unk>", "a"]


@pytest.mark.parametrize("broken", [None, "newer"])
def test_torchtext_that_cannot_be_imported_gets_a_line_with_the_pin(monkeypatch, broken):
    monkeypatch.setitem(sys.modules, "torchtext.vocab", None)
    if broken:
        # what its compiled versions say where torch does not suit them

        def fail(name):
            raise OSError("libtorchtext.so:\nundefined symbol")

        monkeypatch.setattr(text, "import_module", fail)
    with pytest.raises(PflError, match=r"^torchtext cannot be imported .*; allowed: torchtext>=0\.6,<0\.7") as caught:
        vocabulary({"a": 1}, 1)
    assert "\n" not in str(caught.value)


@pytest.fixture
def texts():
    return Texts.of([["to", "be", "or", "not", "to", "be"], [], ["be", "quick"]])


def test_words_are_numbered_as_they_appear(texts):
    assert texts.words == ["to", "be", "or", "not", "quick"]
    assert texts.tokens.tolist() == [0, 1, 2, 3, 0, 1, 1, 4]
    assert texts.lengths.tolist() == [6, 0, 2]
    assert texts.counts() == {"to": 2, "be": 3, "or": 1, "not": 1, "quick": 1}


def test_some_texts_are_kept(texts):
    kept = texts.keep(torch.tensor([False, True, True]))
    assert (kept.tokens.tolist(), kept.lengths.tolist()) == ([1, 4], [0, 2])
    assert kept.counts()["to"] == 0


def test_texts_survive_as_tensors():
    # a word may have any characters but white space, even half of a pair that JSON lets through
    texts = Texts.of([["naïve", "\ud83d", "☕"], ["x"]])
    again = Texts.from_tensors(texts.to_tensors())
    assert again.words == texts.words
    assert torch.equal(again.tokens, texts.tokens)
    assert torch.equal(again.lengths, texts.lengths)
    assert Texts.from_tensors(Texts.of([[]]).to_tensors()).words == []


def test_padded_texts_are_cut_or_filled_with_zeros(texts):
    # the second entry of the vocabulary stands for the unknown ones, here or, not and quick
    rows = texts.renumber(["<pad>", "<unk>", "be", "to"], unknown=1).padded(4)
    assert rows.tolist() == [[3, 2, 1, 1], [0, 0, 0, 0], [2, 1, 0, 0]]
    assert rows.dtype == torch.int16


def test_name_of_a_special_entry_is_no_word_of_the_vocabulary():
    tokens = Texts.of([["<pad>", "a", "<unk>"]]).renumber(["<pad>", "<unk>", "a"], unknown=1).tokens
    assert tokens.tolist() == [1, 2, 1]


@pytest.mark.parametrize(("size", "dtype"), [(2**15, torch.int16), (2**15 + 1, torch.int32)])
def test_tokens_have_the_smallest_type_that_holds_them(size, dtype):
    rows = Texts.of([[str(number) for number in range(size)]]).padded(size)
    assert rows.dtype == dtype
    assert rows.max() == size - 1


GLOVE = b"the 0.5 -1 2e-3\ncaf\xc3\xa9 1 2 3\n. 4 5 6\n\xff 7 8 9\n"


def test_vectors_of_the_wanted_words_are_read_exactly(tmp_path):
    (tmp_path / "vectors.txt").write_bytes(GLOVE)
    vectors = read_glove(tmp_path / "vectors.txt", ["café", "the", "missing", "\ud83d"], 3)
    assert vectors.keys() == {"café", "the"}
    np.testing.assert_array_equal(vectors["the"], np.float32([0.5, -1, 0.002]))
    np.testing.assert_array_equal(vectors["café"], np.float32([1, 2, 3]))


@pytest.mark.parametrize(
    "content", [GLOVE[:-3], GLOVE[:17], b"the 1 2 3 4\n", b"the 1 2 x\n", b"the 1 2 nan\n", b"the\n", b""]
)
def test_damaged_vectors_are_refused(tmp_path, content):
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(PflError, match=r"^data\.glove_root: .*vectors\.txt' \(.*\); unzip it again$") as caught:
        read_glove(path, ["the"], 3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", [".", "glove"])
def test_vectors_are_found_in_the_folder_or_in_its_glove(tmp_path, place):
    path = tmp_path / place / "glove.6B.50d.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    assert find_glove(tmp_path, 50) == path
    with pytest.raises(
        PflError, match=r"^data\.glove_root: no GloVe vectors in .*glove\.6B\.100d\.txt.*pfl data prepare"
    ):
        find_glove(tmp_path, 100)


def archive(path, members):
    """Write a zip and say what a download has to be."""
    with ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return Remote(
        ("http://127.0.0.1:9/none",), path.name, hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
    )


def test_vectors_are_unpacked_once_from_an_archive_that_is_there(tmp_path, monkeypatch):
    members = {f"glove.6B.{dim}d.txt": str(dim) for dim in (50, 100, 200)}
    monkeypatch.setattr(text, "GLOVE", archive(tmp_path / "glove.6B.zip", members))
    prepare_glove(tmp_path, 50)
    assert find_glove(tmp_path, 50).read_text() == "50"
    assert find_glove(tmp_path, 100).read_text() == "100"
    assert not (tmp_path / "glove.6B.200d.txt").exists()
    (tmp_path / "glove.6B.zip").unlink()
    prepare_glove(tmp_path, 100)


def test_failed_download_says_what_was_looked_for_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "GLOVE", text.GLOVE._replace(urls=("http://127.0.0.1:9/glove.6B.zip",)))
    with pytest.raises(PflError, match=r"^data\.glove_root: no GloVe .*; cannot download .*; or unzip") as caught:
        prepare_glove(tmp_path, 50)
    assert str(tmp_path) in str(caught.value)
    assert "looked for glove.6B.50d.txt" in str(caught.value)
    assert "\n" not in str(caught.value)
