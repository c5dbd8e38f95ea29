import hashlib
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from pfl_lightning.data import text
from pfl_lightning.data.download import Remote
from pfl_lightning.data.text import Texts, basic_english, glove_file, read_glove, vocabulary, words_and_marks
from pfl_lightning.errors import PflError


def test_tokens_are_basic_english_or_words_and_marks_with_their_capitals():
    assert basic_english()("It's SO good!  (yes)") == ["it", "'", "s", "so", "good", "!", "(", "yes", ")"]
    assert words_and_marks("It's @me: wow!! :-) 3.5; ok?") == [
        *("It's", "me", "wow", "!", "!", "3", ".", "5", ";", "ok", "?")
    ]


def test_vocabulary_has_the_most_frequent_words_behind_padding_and_unknown():
    # b before c, which is as frequent; never is not there at all
    assert vocabulary({"c": 2, "a": 5, "b": 2, "d": 1, "never": 0}, 3) == ["<pad>", "<unk>", "a", "b", "c"]
    assert vocabulary({"a": 1, "never": 0}, 9) == ["<pad>", "<unk>", "a"]


@pytest.fixture
def texts():
    return Texts.of([["to", "be", "or", "not", "to", "be"], [], ["be", "quick"]])


def test_words_are_numbered_as_they_appear_and_some_texts_are_kept(texts):
    assert texts.words == ["to", "be", "or", "not", "quick"]
    assert texts.tokens.tolist() == [0, 1, 2, 3, 0, 1, 1, 4]
    assert texts.lengths.tolist() == [6, 0, 2]
    assert texts.counts() == {"to": 2, "be": 3, "or": 1, "not": 1, "quick": 1}
    kept = texts.keep(torch.tensor([False, True, True]))
    assert (kept.tokens.tolist(), kept.lengths.tolist()) == ([1, 4], [0, 2])
    assert kept.counts()["to"] == 0


def test_padded_texts_are_cut_or_filled_with_zeros(texts):
    # the second entry of the vocabulary stands for the unknown ones, here or, not and quick
    rows = texts.renumber(["<pad>", "<unk>", "be", "to"], unknown=1).padded(4)
    assert rows.tolist() == [[3, 2, 1, 1], [0, 0, 0, 0], [2, 1, 0, 0]]
    assert rows.dtype == torch.int16
    # the name of a special entry is no word of the vocabulary
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


def test_vectors_are_found_in_the_folder_in_its_glove_or_in_an_archive(tmp_path, monkeypatch):
    path = tmp_path / "glove.6B.zip"
    with ZipFile(path, "w") as file:
        for dim in (50, 100):
            file.writestr(f"glove.6B.{dim}d.txt", str(dim))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(text, "GLOVE", Remote(("http://127.0.0.1:9/none",), path.name, digest))
    unpacked = glove_file(tmp_path, 50)
    assert unpacked.read_text() == "50"
    path.unlink()
    assert glove_file(tmp_path, 50) == unpacked == tmp_path / "glove.6B.50d.txt"
    (tmp_path / "glove").mkdir()
    moved = unpacked.rename(tmp_path / "glove" / unpacked.name)
    assert glove_file(tmp_path, 50) == moved
    with pytest.raises(PflError, match=r"^data\.glove_root: there is no '.*100d\.txt.* cannot download"):
        glove_file(tmp_path, 100)
