import numpy as np
import pytest
import torch
from fakes.sent140 import write_glove, write_leaf, write_table

from pfl_lightning.data import text
from pfl_lightning.data.datasets import sent140
from pfl_lightning.data.datasets.sent140 import Sent140
from pfl_lightning.errors import PflError

TWEETS = {
    "train": {
        "zoe": [("@Bob GOOD day, good day! http://t.co/xY9", 1), ("too short", 0)],
        "Amy": [("a good day is a good day", 1), ("rain rain rain rain go away", 0)],
    },
    "test": {"zoe": [("a Strange day , good", 0)], "Amy": [("a b c d", 1), ("one two three four five", 1)]},
}
WORDS = {word: [float(place + 1), -1.0] * 25 for place, word in enumerate(["good", "day", "a", ",", "two"])}


@pytest.fixture
def root(tmp_path):
    for split, users in TWEETS.items():
        write_leaf(tmp_path / f"data/{split}/all_data_niid_0_keep_0_{split}_9.json", users)
    every = [(user, *tweet) for users in TWEETS.values() for user, tweets in users.items() for tweet in tweets]
    write_table(tmp_path / "data/raw_data/training.csv", every)
    write_glove(tmp_path, WORDS)
    return tmp_path


def load(root, **options):
    module = Sent140(root=str(root), **{"glove_dim": 50, **options})
    return module, *module.load()


def words(module, inputs):
    return [" ".join(module.vocabulary[token] for token in row if token) for row in inputs.tolist()]


def test_tokens_are_srpfls(root):
    module, train, test = load(root)
    # mentions and links are deleted; "too short" and "a b c d" have fewer than 5 tokens
    assert words(module, train.inputs) == [
        "good day , good day !",
        "a good day is a good day",
        "rain rain rain rain go away",
    ]
    # words of the test tweets alone are unknown
    assert words(module, test.inputs) == ["a <unk> day , good", "<unk> <unk> <unk> <unk> <unk>"]
    assert (train.targets.tolist(), test.targets.tolist()) == ([1, 1, 0], [0, 1])
    # users count by their sorted names: Amy, zoe
    assert (train.users.tolist(), test.users.tolist()) == ([1, 0, 0], [1, 0])
    # day, good and rain 4 times, a twice, the others once
    assert module.vocabulary == ["<pad>", "<unk>", "day", "good", "rain", "a", "!", ",", "away", "go", "is"]
    assert module.input_shape == (7, 11)
    assert train.inputs.shape == (3, 7)
    assert module.transform()(train.inputs).dtype == torch.int64


def test_long_tweets_are_cut_at_48_tokens_and_rare_words_unknown(root, monkeypatch):
    monkeypatch.setattr(sent140, "WORDS", 2)
    write_leaf(root / "data/train/long.json", {"max": [("w " * 60, 1)]})
    module, train, _ = load(root)
    assert module.vocabulary == ["<pad>", "<unk>", "w", "day"]
    assert module.input_shape[0] == (train.inputs != 0).sum(1).max() == 48
    assert words(module, train.inputs)[0] == "<unk> day <unk> <unk> day <unk>"


def test_embedding_starts_with_glove_and_words_without_a_vector_at_random(root):
    write_leaf(root / "data/train/more.json", {"max": [(" ".join(f"w{place}" for place in range(400)), 1)]})
    module, _, _ = load(root)
    weight = module.pretrained()["embedding.weight"]
    assert weight.shape == (len(module.vocabulary), 50)
    assert not weight[:2].any()
    for word, vector in WORDS.items():
        if word in module.vocabulary:
            assert weight[module.vocabulary.index(word)].tolist() == vector
    assert torch.equal(weight, load(root)[0].pretrained()["embedding.weight"])
    rows = weight[[word not in WORDS for word in module.vocabulary]][2:]
    # N(0, 1): the standard errors of mean and variance are 0.007 and 0.01 with 400 * 50 numbers
    assert rows.mean().item() == pytest.approx(0, abs=0.03)
    assert rows.var().item() == pytest.approx(1, abs=0.05)


def test_vectors_are_delta_fls(root):
    module, train, test = load(root, text="vectors")
    assert module.input_shape == (20, 50)
    inputs = module.transform()(train.inputs)
    assert (inputs.shape, inputs.dtype) == ((4, 20, 50), torch.float32)
    # Bob GOOD day , good day ! http t . co xY9: words with capitals are unknown, nothing is deleted
    expected = np.zeros((20, 50))
    for place, word in {2: "day", 3: ",", 4: "good", 5: "day"}.items():
        expected[place] = WORDS[word]
    np.testing.assert_array_equal(inputs[0], expected)
    assert len(test.targets) == 3
    assert module.pretrained() == {}


def test_means_count_unknown_words(root):
    module, train, _ = load(root, text="mean")
    assert module.input_shape == (50,)
    # a good day is a good day: 7 words; in even places twice 1, 2 and 3, in odd ones six times -1
    np.testing.assert_allclose(module.transform()(train.inputs)[2], np.tile([12 / 7, -6 / 7], 25), rtol=1e-6)
    # too short
    assert not train.inputs[1].any()


def test_mean_ratio_divides_by_the_mean_of_all_tweets(root):
    (_, *plain), (_, *ratio) = (load(root, text="mean", normalize=normalize) for normalize in ("none", "mean_ratio"))
    mean = torch.cat([split.inputs for split in plain]).mean(0)
    for before, after in zip(plain, ratio, strict=True):
        np.testing.assert_allclose(after.inputs, before.inputs / mean - 1, rtol=1e-5, atol=1e-6)


def test_ratio_of_anything_else_is_refused():
    with pytest.raises(PflError, match=r"^data\.normalize must be none with data\.text tokens, got mean_ratio$"):
        Sent140(normalize="mean_ratio")


@pytest.mark.parametrize("text", ["tokens", "vectors", "mean"])
def test_table_has_the_same_tweets_in_one_split(root, text):
    leaf, train, test = load(root, text=text)
    table, every, nothing = load(root, source="csv", text=text)
    assert nothing is None
    joined = train.join(test)
    assert every.targets.tolist() == joined.targets.tolist()
    assert every.users.tolist() == joined.users.tolist()
    if text == "tokens":  # the words of all tweets are in the vocabulary
        assert words(table, every.inputs)[3:] == ["a strange day , good", "one two three four five"]
    else:
        found, expected = (module.transform()(data.inputs) for module, data in ((table, every), (leaf, joined)))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["training.csv", "training.1600000.processed.noemoticon.csv"])
@pytest.mark.parametrize("folder", [".", "data/raw_data"])
def test_table_is_found_where_it_may_be(tmp_path, folder, name):
    write_glove(tmp_path, WORDS)
    # ISO-8859-1: one byte each
    write_table(tmp_path / folder / name, [("zoé", 'a "naïve" day , too', 1)])
    module, every, _ = load(tmp_path, source="csv")
    assert words(module, every.inputs) == ["a naïve day , too"]
    # tweets of a user are together wherever they are in the table
    write_table(tmp_path / folder / name, [(user, "one two three four five", 0) for user in "babca"])
    assert load(tmp_path, source="csv")[1].users.tolist() == [1, 0, 1, 2, 0]


def test_split_of_users_is_for_the_partition(root):
    path = root / "data/test/all_data_niid_0_keep_0_test_9.json"
    write_leaf(path, {"new": [("one two three four five", 1)]})
    module, every, nothing = load(root)
    assert nothing is None
    assert every.users.tolist() == [2, 0, 0, 1]  # Amy, new, zoe
    assert "three" in module.vocabulary


def test_new_vectors_are_not_hidden_by_the_cache(root):
    load(root, text="mean")
    write_glove(root, {"good": [7.0] * 50})
    assert load(root, text="mean")[1].inputs.max() > 1


def test_vectors_may_lie_elsewhere(root, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(text, "GLOVE", text.GLOVE._replace(urls=("http://127.0.0.1:9/none",)))
    folder = tmp_path_factory.mktemp("vectors")
    (root / "glove.6B.50d.txt").rename(folder / "glove.6B.50d.txt")
    with pytest.raises(PflError, match=r"^data\.glove_root: there is no "):
        load(root)
    load(root, glove_root=str(folder))


def test_nothing_but_short_tweets_is_refused(tmp_path):
    write_glove(tmp_path, WORDS)
    write_table(tmp_path / "training.csv", [("a", "too short", 1)])
    with pytest.raises(PflError, match=r"^data\.root: no tweets to train on in"):
        load(tmp_path, source="csv")


def load_real(folder, **options):
    return load(folder / "sent140", glove_root=str(folder), **options)


@pytest.fixture(scope="module")
def real_means(real_data):
    """The table's tweets as mean vectors."""
    return load_real(real_data, source="csv", text="mean")[1]


def test_real_leaf_files_have_the_counts_of_their_readme(real_data):
    # 1,577 training and 654 test tweets of 594 users
    _, train, test = load_real(real_data, text="vectors")
    assert (len(train.targets), len(test.targets)) == (1577, 654)
    for split in (train, test):
        assert len(split.users.unique()) == 594
    # the second user, 3nalicious: likes the hair, cannot check links
    assert train.targets[train.users == 1].tolist() == [1, 0]


@pytest.mark.slow
def test_real_table_has_the_counts_of_its_readme(real_means):
    assert real_means.inputs.shape == (40_073, 50)
    # first 18,783 negative, then 21,290 positive ones, counted by their first column
    assert real_means.targets.bincount().tolist() == [18_783, 21_290]
    counts = real_means.users.bincount()
    assert [len(counts), *(int((counts >= least).sum()) for least in (3, 5, 8)), int(counts.max())] == [
        *(35_989, 594, 95, 21, 17)
    ]


@pytest.mark.slow
def test_real_tokens_can_be_read_and_vectors_cover_most_of_them(real_data):
    module, every, _ = load_real(real_data, source="csv")
    assert module.input_shape == (48, 10_002)
    # "is upset that he can't update his Facebook by texting it... and might cry as a result  School today also. Blah!"
    (tweet,) = words(module, every.inputs[1:2])
    assert tweet.startswith("is upset that he can ' t update his facebook by texting it . . . and might cry")
    assert tweet.endswith("as a result school today also . blah !")
    # cut tweets are rare, as the docstring says
    assert (every.inputs[:, -1] > 0).float().mean() < 1e-3
    known = module.pretrained()["embedding.weight"]
    # the first numbers of "the" in glove.6B.50d.txt
    assert known[module.vocabulary.index("the")][:3].tolist() == pytest.approx([0.418, 0.24968, -0.41242])
    tokens = every.inputs[every.inputs > 0].long()
    glove = sent140.read_glove(sent140.glove_file(module.glove_folder, 50), module.vocabulary, 50)
    covered = torch.tensor([word in glove for word in module.vocabulary])[tokens]
    # 83 % of the raw tweets' tokens by the readme; lower case and without mentions it is more
    assert covered.float().mean() > 0.83
