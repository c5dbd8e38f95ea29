import json

import pytest
import torch
from fakes.reddit import pieces, write_comments, write_reddit

from pfl_lightning.data import Reddit
from pfl_lightning.errors import PflError
from pfl_lightning.tasks import NO_TARGET


def words(data, row):
    return [data.vocabulary[number] for number in row.tolist() if number > 0]


def test_a_sample_is_a_piece_and_its_targets_are_the_words_that_follow(tmp_path):
    comments = {"ann": ["a b c a b c a b c a b"], "bob": ["b a"]}
    write_comments(tmp_path / "data/train/a.json", comments)
    write_comments(tmp_path / "data/test/a.json", {"ann": ["a zebra b"], "bob": ["a"]})
    data = Reddit(root=str(tmp_path))
    train, test = data.load()
    # of equally frequent words the first by the alphabet
    assert data.vocabulary == ["<pad>", "<unk>", "a", "b", "c", "<BOS>", "<EOS>"]
    assert data.input_shape == (10, 7)
    rows = ["<BOS> a b c a b c a b c", "a b <EOS>", "<BOS> b a <EOS>"]
    assert [" ".join(words(data, row)) for row in train.inputs] == rows
    assert [" ".join(words(data, row)) for row in train.targets] == ["a b c a b c a b c a", "b", "b a"]
    assert train.users.tolist() == [0, 0, 1]
    assert train.targets[1].tolist()[1:] == [NO_TARGET] * 9, "the end of a comment does not count, nor does padding"
    assert words(data, test.inputs[0]) == ["<BOS>", "a", "<unk>", "b", "<EOS>"], (
        "words are those of the training samples"
    )
    assert test.users.tolist() == [0, 1]
    again = Reddit(root=str(tmp_path)).load()[0]
    assert torch.equal(again.targets, train.targets), "from the cache"


def test_leafs_validation_samples_are_for_validation(tmp_path):
    write_reddit(tmp_path)
    data = Reddit(root=str(tmp_path), num_clients=5)
    data.setup()
    found = {split: table.counts for split, table in data.tables.items()}
    assert all((found["train"] > found[split]).all() and found[split].all() for split in ("val", "test"))
    data.load()
    assert data.own_validation == sum(
        len(pieces(("w " * (5 + user % 9)).split())[0]) for user in range(24) for _ in range(2)
    )


def test_without_a_test_split_all_samples_are_one(tmp_path):
    write_comments(tmp_path / "data/train/a.json", {"ann": ["a b"]})
    train, test = Reddit(root=str(tmp_path)).load()
    assert len(train.targets) == 1
    assert test is None


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda user: user["y"][0]["count_tokens"][0].pop(), "must be as many, got 10, 10 and 9"),
        (lambda user: user["y"].pop(), "zip()"),
        (lambda user: user["y"][0].pop("count_tokens"), "count_tokens"),
    ],
)
def test_pieces_without_a_target_for_each_word_are_one_line(change, line, tmp_path):
    path = tmp_path / "data/train/a.json"
    write_comments(path, {"ann": ["a b", "c"]})
    content = json.loads(path.read_text())
    change(content["user_data"]["ann"])
    path.write_text(json.dumps(content))
    with pytest.raises(PflError) as error:
        Reddit(root=str(tmp_path)).load()
    assert "a.json" in str(error.value)
    assert line in str(error.value)
    assert "\n" not in str(error.value)
