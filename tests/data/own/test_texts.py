"""Texts of one's own, whose tokens are learned one after the other."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from fakes.hugging_face import END

from pfl_lightning.data import Arrays, HuggingFace, Table
from pfl_lightning.errors import PflError

TEXTS, CLIENTS = ["abcdefg", "xy"], ["ann", "bob"]
PROMPTS, ANSWERS = ["a", "bcd", "bcde"], ["xy", "uvw", "z"]
NONE = -100


@pytest.fixture
def options(language_models):
    return {"tokenizer": str(language_models / "llama"), "target_type": "tokens", "test_fraction": 0.0}


def ids(*rows):
    """Rows of letters as the tokenizer numbers them: ``.`` is the end, ``_`` nothing."""
    return [[{".": END, "_": NONE}.get(letter, ord(letter) - 33) for letter in row] for row in rows]


def sources(tmp_path, prompts=None, texts=TEXTS, clients=CLIENTS):
    """The same samples from arrays, a file of arrays, a table, and a data set of Hugging Face."""
    named = {"targets": texts, "clients": clients} | ({} if prompts is None else {"inputs": prompts})
    np.savez(tmp_path / "texts.npz", **named)
    frame = pd.DataFrame({"text": texts, "who": clients, "more": 1.5, "ask": prompts or "no"})
    frame.to_csv(tmp_path / "texts.csv", index=False)
    dataset = pytest.importorskip("datasets").Dataset.from_pandas(frame)
    ask = {} if prompts is None else {"input": "ask"}
    yield partial(Arrays, **named)
    yield partial(Arrays, file=str(tmp_path / "texts.npz"))
    yield partial(Table, str(tmp_path / "texts.csv"), "text", client="who", features=["ask"] if ask else None)
    yield partial(HuggingFace, dataset, target="text", client="who", **ask)


def test_without_a_prompt_each_token_is_a_target_once_in_windows(options, tmp_path):
    for source in sources(tmp_path):
        data = source(max_length=3, **options)
        train, _ = data.load()
        targets = ids("bcd", "efg", ".__", "y._")
        assert train.targets.tolist() == targets
        inputs = np.array(ids("abc", "def", "g__", "xy_"))
        np.testing.assert_array_equal(train.inputs, np.where(inputs == NONE, 0, inputs))
        assert train.users.tolist() == [0, 0, 0, 1], "all windows of a text are those of its client"
        assert (data.input_kind, data.input_shape) == ("tokens", (3, END + 1))
        assert data.task.goal == "the next of 257 tokens"


def test_windows_are_not_longer_than_the_longest_text(options):
    train, _ = Arrays(targets=TEXTS, **options).load()
    assert train.inputs.shape == (2, 7)


def test_with_a_prompt_only_its_answer_has_targets(options, tmp_path):
    for source in sources(tmp_path, PROMPTS, ANSWERS, ["ann", "bob", "ann"]):
        data = source(max_length=4, **options)
        train, _ = data.load()
        assert train.targets.tolist() == ids("xy._", "__uv", "___z")
        inputs = np.array(ids("axy_", "bcdu", "bcde"))
        np.testing.assert_array_equal(train.inputs, np.where(inputs == NONE, 0, inputs))
        assert train.users.tolist() == [0, 1, 0]


def test_what_was_made_of_the_texts_is_told(options):
    data = Arrays(PROMPTS, ANSWERS, ["ann", "bob", "ann"], max_length=3, **options)
    train, _ = data.load()
    assert train.targets.tolist() == ids("xy.", "__u"), "a prompt leaves no room"
    assert train.users.tolist() == [0, 1]
    left_out = "left out, as the prompt leaves no room for a target: 1"
    assert data._notes["texts"] == f"3 with prompts; each ends with <end>; cut to 3 tokens: 1; {left_out}"
    data = Arrays(targets=TEXTS, max_length=3, **options)
    data.load()
    assert data._notes["texts"] == "2 in 4 windows of at most 3 tokens; each ends with <end>"
    assert data._notes["task"] == "the next of 257 tokens; 9 targets"


def test_texts_begin_with_the_token_that_the_tokenizer_adds_and_take_no_others(hugging_face, tmp_path, options):
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options["tokenizer"])
    tokenizer.add_special_tokens({"bos_token": "<start>"})
    tokenizer.save_pretrained(tmp_path / "silent")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        "<start> $A <end>", None, [("<start>", 257), ("<end>", END)]
    )
    tokenizer.save_pretrained(tmp_path / "adding")
    for name, first in (("silent", []), ("adding", [257])):
        train, _ = Arrays(["b"], ["c"], **{**options, "tokenizer": str(tmp_path / name)}).load()
        assert train.inputs.tolist() == [first + ids("bc")[0]]
        assert train.targets.tolist() == [[NONE] * len(first) + ids("c.")[0]]
        train, _ = Arrays(targets=["bc"], **{**options, "tokenizer": str(tmp_path / name)}).load()
        assert train.inputs.tolist() == [first + ids("bc")[0]]
        assert train.targets.tolist() == [ids("bc.")[0][1 - len(first) :]]
    train, _ = Arrays(targets=["very good film"], **{**options, "tokenizer": str(hugging_face / "bert")}).load()
    assert train.targets.tolist() == [[6, 8]], "BERT has no such tokens"


def test_samples_for_testing_have_windows_of_their_own(options):
    data = Arrays(
        targets=TEXTS, clients=CLIENTS, test={"targets": ["pqrs"], "clients": ["bob"]}, max_length=4, **options
    )
    train, test = data.load()
    assert test.targets.tolist() == ids("qrs.")
    assert test.users.tolist() == [1]
    assert train.targets.shape == (3, 4)


WITHOUT = "data.tokenizer must be that of the network with data.target_type: tokens, got null"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"tokenizer": None}, WITHOUT),
        ({"targets": ["a", " "]}, "data: Arrays: targets must be texts, got an empty one in sample 1"),
        ({"targets": [1, 2]}, "data: Arrays: targets must be texts with data.tokenizer, got 1 (int)"),
        ({"targets": [["a", "b"]]}, "data: Arrays: targets must be one text each with data.target_type: tokens"),
        ({"inputs": ["a"], "targets": ["a", "b"]}, "data: Arrays: 1 inputs with 2 targets"),
        ({"targets": ["a"], "clients": [1, 2]}, "data: Arrays: 2 clients with 1 targets"),
        (
            {"inputs": ["abc"], "targets": ["d"], "max_length": 2},
            "data: Arrays: no prompt leaves room for a target within data.max_length 2",
        ),
    ],
)
def test_what_has_no_tokens_to_learn_gets_a_line(changes, line, options):
    with pytest.raises(PflError) as refusal:
        Arrays(**{**options, **changes}).load()
    assert str(refusal.value) == line


def test_tables_and_data_sets_have_one_prompt_at_most(options, tmp_path):
    frame = pd.DataFrame({"text": TEXTS, "a": "p", "b": "q"})
    with pytest.raises(PflError, match=r"data\.features must be one prompt with data\.target_type: tokens, got 2"):
        Table(frame, "text", features=["a", "b"], **options).load()
    dataset = pytest.importorskip("datasets").Dataset.from_pandas(frame)
    with pytest.raises(PflError, match=r"data\.input must be one column, got \['a', 'b'\]$"):
        HuggingFace(dataset, target="text", input=["a", "b"], **options).load()
    with pytest.raises(PflError, match=r"data\.test_split: test is not possible; allowed: null"):
        HuggingFace(dataset, target="text", test_split="test", **options).load()


def test_new_texts_have_no_single_form(options):
    data = Arrays(targets=TEXTS, **options)
    data.load()
    with pytest.raises(ValueError, match="are windows of texts"):
        data.network_inputs(TEXTS)
