import pytest
from fakes.agnews import write_agnews, write_news

from pfl_lightning.data import AGNews
from pfl_lightning.errors import PflError

pytestmark = pytest.mark.filterwarnings("ignore:.*is not the official data set")


def words(data, sample):
    return [data.vocabulary[number] for number in sample.tolist() if number]


def test_classes_count_from_1_in_the_files_and_quotes_and_breaks_are_read(tmp_path):
    rows = [(4, 'The "web"', "a\\new, chip"), (1, "Peace", "talks"), (3, "oil", "oil")]
    write_news(tmp_path / "train.csv", rows)
    assert '"The ""web""","a\\new, chip"' in (tmp_path / "train.csv").read_text()
    write_news(tmp_path / "test.csv", [(2, "Oil", "match")])
    data = AGNews(root=str(tmp_path))
    train, test = data.load()
    assert train.targets.tolist() == [3, 0, 2]
    assert test.targets.tolist() == [1]
    assert words(data, train.inputs[0]) == ["the", "web", "a", "new", ",", "chip"]


def test_words_are_those_of_the_training_texts_and_others_are_unknown(tmp_path):
    write_news(tmp_path / "train.csv", [(1, "b", "b a c b a")])
    write_news(tmp_path / "test.csv", [(2, "a", "match match match c")])
    data = AGNews(root=str(tmp_path))
    _, test = data.load()
    # the most frequent first
    assert data.vocabulary == ["<pad>", "<unk>", "b", "a", "c"]
    assert data.input_shape == (200, 5)
    assert test.inputs[0, :6].tolist() == [3, 1, 1, 1, 4, 0]


def test_texts_are_cut_after_200_words(tmp_path):
    write_news(tmp_path / "train.csv", [(1, "a", "a " * 198 + "b c"), (2, "", "")])
    write_news(tmp_path / "test.csv", [(2, "a", "b")])
    data = AGNews(root=str(tmp_path))
    train, _ = data.load()
    assert words(data, train.inputs[0]) == ["a"] * 199 + ["b"]
    assert not train.inputs[1].any()


def test_the_official_test_texts_are_dealt_among_the_clients(tmp_path):
    write_agnews(tmp_path)
    data = AGNews(root=str(tmp_path), num_clients=4)
    data.setup()
    assert int(data.tables["test"].counts.sum()) == 160


def test_missing_files_say_where_to_get_them(tmp_path):
    with pytest.raises(PflError, match=r"^data\.root: no AG News in .*looked for train\.csv.*download it from http"):
        AGNews(root=str(tmp_path)).load()
