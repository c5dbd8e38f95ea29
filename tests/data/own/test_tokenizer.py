import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest

from pfl_lightning.data import Arrays, HuggingFace, Table
from pfl_lightning.errors import PflError

TEXTS = ["a good film", "very very bad film", "good", ""] * 5
CLIENTS = ["ann", "bob"] * 10
# [CLS] is 2, [SEP] 3 and padding 0
TOKENS = [[2, 5, 6, 8, 3, 0], [2, 9, 9, 7, 8, 3], [2, 6, 3, 0, 0, 0], [2, 3, 0, 0, 0, 0]] * 5
LABELS = ["good", "bad", "good", "bad"] * 5


def options(folder, length=6):
    return {"tokenizer": str(folder / "bert"), "max_length": length}


@pytest.mark.parametrize("source", ["arrays", "table", "hugging_face"])
def test_texts_become_tokens_of_the_tokenizer_padded_and_cut(source, hugging_face, tmp_path):
    table = pd.DataFrame({"text": TEXTS, "label": LABELS, "who": CLIENTS})
    if source == "arrays":
        data = Arrays(TEXTS, LABELS, CLIENTS, **options(hugging_face))
    elif source == "table":
        table[table.text != ""].to_csv(tmp_path / "texts.csv", index=False)
        data = Table(str(tmp_path / "texts.csv"), "label", client="who", **options(hugging_face))
    else:
        dataset = pytest.importorskip("datasets").Dataset.from_pandas(table)
        data = HuggingFace(dataset, input="text", client="who", **options(hugging_face))
    train, _ = data.load()
    expected = np.array(TOKENS)[np.array(TEXTS) != ""] if source == "table" else np.array(TOKENS)
    np.testing.assert_array_equal(train.inputs, expected)
    assert (data.input_kind, data.input_shape) == ("tokens", (6, 10)), "all words of the tokenizer count"
    assert data.class_names == ("bad", "good")
    short = Arrays(TEXTS, LABELS, **options(hugging_face, 4)).load()[0].inputs
    np.testing.assert_array_equal(short[:2], [[2, 5, 6, 3], [2, 9, 9, 3]])


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"tokenizer": "no/such"}, "data.tokenizer: cannot load 'no/such' ("),
        ({"inputs": np.arange(20)}, "inputs must be texts with data.tokenizer, got 0 (int64)"),
    ],
)
def test_what_cannot_be_tokenized_gets_a_line(changes, line, hugging_face, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PflError) as refusal:
        Arrays(**{"inputs": TEXTS, "targets": LABELS, **options(hugging_face), **changes}).load()
    assert line in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_tokenizer_that_cannot_pad_gets_a_line(hugging_face, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(hugging_face / "bert")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(PflError, match=r"^data\.tokenizer must have a padding token, got '"):
        Arrays(TEXTS, LABELS, tokenizer=str(tmp_path)).load()


def test_a_missing_library_gets_a_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "transformers.utils", raising=False)
    with pytest.raises(PflError, match=r'^data.tokenizer: needs uv pip install "pfl_lightning\[huggingface\]"'):
        Arrays(TEXTS, LABELS, tokenizer="bert").load()


def test_a_table_with_a_tokenizer_has_one_column_of_texts_or_two(hugging_face, tmp_path):
    pd.DataFrame({"text": LABELS, "more": 1, "most": 2, "label": LABELS}).to_csv(tmp_path / "texts.csv", index=False)
    with pytest.raises(PflError, match=r"data\.features must be one text or two with data\.tokenizer, got 3"):
        Table(str(tmp_path / "texts.csv"), "label", **options(hugging_face)).load()


FIRST, SECOND = ["a good film", "bad", "very bad", "good"] * 5, ["bad", "very very good film", "good", "a film"] * 5
# of the first pair, the longer text is cut first
PAIRED = [[2, 5, 6, 3, 7, 3], [2, 7, 3, 9, 9, 3], [2, 9, 7, 3, 6, 3], [2, 6, 3, 5, 8, 3]] * 5


@pytest.mark.parametrize("source", ["arrays", "table", "hugging_face"])
def test_pairs_of_texts_are_joined_by_the_separator_and_the_longer_text_is_cut_first(source, hugging_face, tmp_path):
    table = pd.DataFrame({"first": FIRST, "second": SECOND, "label": LABELS})
    if source == "arrays":
        data = Arrays([*zip(FIRST, SECOND, strict=True)], LABELS, **options(hugging_face))
    elif source == "table":
        table.to_csv(tmp_path / "pairs.csv", index=False)
        data = Table(str(tmp_path / "pairs.csv"), "label", **options(hugging_face))
    else:
        dataset = pytest.importorskip("datasets").Dataset.from_pandas(table)
        data = HuggingFace(dataset, input=["first", "second"], **options(hugging_face))
    np.testing.assert_array_equal(data.load()[0].inputs, PAIRED)


def test_a_pair_needs_both_texts(hugging_face):
    with pytest.raises(PflError, match=r"inputs must be pairs of texts with data\.tokenizer, got an empty one$"):
        Arrays([*zip(FIRST, [" "] * 20, strict=True)], LABELS, **options(hugging_face)).load()


def test_two_columns_need_a_tokenizer_and_the_split_for_testing_can_be_chosen(hugging_face):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"first": FIRST, "second": SECOND, "label": LABELS})
    parts = {"train": whole, "validation_matched": whole.select(range(8)), "validation_mismatched": whole}
    data = partial(HuggingFace, datasets.DatasetDict(parts), input=["first", "second"])
    with pytest.raises(PflError, match=r"^data\.input must be one column, or two of texts with data\.tokenizer, got "):
        data().load()
    train, test = data(test_split="validation_matched", **options(hugging_face)).load()
    assert (len(train.targets), len(test.targets)) == (20, 8)
    allowed = "allowed: validation_matched, validation_mismatched"
    with pytest.raises(PflError, match=f"^data.test_split: test is not possible; {allowed}$"):
        data(test_split="test").load()
