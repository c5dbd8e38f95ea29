import hashlib
from zipfile import ZipFile

import pytest
import torch
from fakes.leaf import write_shakespeare, write_shakespeare_json

from pfl_lightning.data.datasets import shakespeare
from pfl_lightning.data.datasets.leaf import leaf_files, read_leaf
from pfl_lightning.data.datasets.shakespeare import LEAF_ALPHABET, LETTERS, Shakespeare, read_roles, whole, windows
from pfl_lightning.tasks import NO_TARGET, NextToken

HEAD = "Title page\n\nTHE SONNETS\n\nby William Shakespeare\n\n  One. a\n    b\n    c\n  Two. d\n    e\n    f\n"
PLAY = """
1601

TWELFTH NIGHT; OR, WHAT YOU WILL

by William Shakespeare


DRAMATIS PERSONAE

  VIOLA

  VIOLA. What country, friends,
    is   this?
                                      [Exit]
  CAPTAIN. This is Illyria, lady.
Enter SIR TOBY
    Not a cue: the captain goes on.
  Viola. And what should I do?
  Captain. Stay.
  ORSINO. If music be
    the food of love.
"""
ERRORS = """
1593

THE COMEDY OF ERRORS

by William Shakespeare

<<THIS VERSION IS
WITH PERMISSION.  A copy
may be
given.>>

ACT I. SCENE 1
A hall

AEGEON. Proceed, Solinus,
  to procure my fall.
<<A licence
that nobody says.>>
DUKE. Merchant,

plead no more.
"""
POEM = """
A LOVER'S COMPLAINT

by William Shakespeare

  Again. From off a hill
    a plaintful story
    from a sist'ring vale
"""


def decode(tokens, alphabet=LETTERS):
    return "".join(alphabet[token] for token in tokens.tolist())


def reconstruct(inputs, targets, alphabet):
    """The text of which these are all windows."""
    return decode(torch.cat([inputs[0], targets]), alphabet)


def test_roles_are_read_with_their_continuation_lines():
    # the name counts in any case; lines with other than four blanks in front are stage directions; ORSINO has two lines
    roles = {
        "TWELFTH_NIGHT__OR__WHAT_YOU_WILL_VIOLA": "What country, friends, is this? [Exit] And what should I do? ",
        "TWELFTH_NIGHT__OR__WHAT_YOU_WILL_CAPTAIN": "This is Illyria, lady. Not a cue: the captain goes on. Stay. ",
    }
    assert read_roles(HEAD + PLAY) == roles
    assert read_roles(HEAD + PLAY.partition("  ORSINO")[0]) == roles, "a play of two"


def test_comedy_of_errors_is_read_without_indentation():
    # blank lines are lines of their speaker; a licence notice ends a speech, but its last line makes a role
    assert read_roles(HEAD + ERRORS) == {
        "THE_COMEDY_OF_ERRORS_WITH_PERMISSION": " A copy may be given.>> ",
        "THE_COMEDY_OF_ERRORS_DUKE": "Merchant, plead no more. ",
    }


def test_poems_have_no_roles_and_an_author_in_the_first_line_opens_no_work():
    roles = read_roles(HEAD + PLAY)
    assert read_roles(HEAD + POEM) == {}
    assert (
        read_roles(HEAD + PLAY + POEM) == read_roles("Complete Works, by William Shakespeare\n" + HEAD + PLAY) == roles
    )


def test_windows_of_every_text_predict_its_next_character():
    data = windows(["Abcdefghijklmnopqrst!Z", "zzzzzzzzzzzzzzzzzzzza"])
    assert data.inputs.dtype == torch.uint8
    assert [decode(row) for row in data.inputs] == ["Abcdefghijklmnopqrst", "bcdefghijklmnopqrst ", "z" * 20]
    # space, A-Z, a-z: the exclamation mark is a space, Z the 26th capital, a the first behind them
    assert data.targets.tolist() == [0, 26, 27]
    assert data.users.tolist() == [0, 0, 1]
    # all characters but letters are spaces
    assert decode(windows(["0123'\"[]é\u2019\tabcdefghijkl"]).inputs[0]) == " " * 11 + "abcdefghi"


def test_raw_text_gives_one_client_per_role(tmp_path):
    write_shakespeare(tmp_path)
    module = Shakespeare(root=str(tmp_path), val_fraction=0)
    module.setup()
    # 3 plays of 8 roles and the licence
    users = module.load()[0].users
    assert len(users.unique()) == users.max() + 1 == 25
    assert (module.num_classes, module.input_shape) == (53, (20, 53))
    assert len(module.tables["train"]) == 20
    inputs = module.transform()(module.tables["train"].samples.inputs[:2])
    assert (inputs.dtype, inputs.shape) == (torch.int64, (2, 20))


@pytest.mark.parametrize("place", ["data/raw_data/raw_data.txt", "raw_data/raw_data.txt", "raw_data.txt"])
def test_raw_text_is_found(tmp_path, place):
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + PLAY)
    data, test = Shakespeare(root=str(tmp_path)).load()
    assert test is None
    # the captain comes first: the order is that of the sorted names
    texts = [
        "This is Illyria  lady  Not a cue  the captain goes on  Stay  ",
        "What country  friends  is this   Exit  And what should I do  ",
    ]
    for user, text in enumerate(texts):
        own = data.users == user
        assert reconstruct(data.inputs[own], data.targets[own], LETTERS) == text


def test_json_is_read_in_the_alphabet_of_leaf(tmp_path):
    texts = write_shakespeare_json(tmp_path)
    module = Shakespeare("leaf", root=str(tmp_path))
    assert (module.num_classes, module.input_shape) == (80, (80, 80))
    assert len(set(LEAF_ALPHABET)) == 80
    train, test = module.load()
    assert (train.inputs.dtype, train.targets.dtype) == (torch.uint8, torch.int64)
    for user, name in enumerate(sorted(texts)):
        for split, first, last in ((train, 0, 30), (test, 40, 50)):
            own = split.users == user
            found = reconstruct(split.inputs[own], split.targets[own], LEAF_ALPHABET)
            assert found == texts[name][first : last + 80]


def test_archive_is_unpacked_to_the_place_of_leaf(tmp_path, monkeypatch):
    path = tmp_path / "data/raw_data/raw_data.txt"
    path.parent.mkdir(parents=True)
    with ZipFile(path.with_name("1994-01-100.zip"), "w") as archive:
        archive.writestr("100.txt", HEAD + PLAY)
    digest = hashlib.md5(path.with_name("1994-01-100.zip").read_bytes()).hexdigest()
    monkeypatch.setattr(shakespeare, "ARCHIVE", shakespeare.ARCHIVE._replace(digest=digest))
    Shakespeare(root=str(tmp_path)).prepare_data()
    assert path.read_text() == HEAD + PLAY


@pytest.fixture(scope="module")
def real_roles(real_data):
    return read_roles((real_data / "shakespeare/data/raw_data/raw_data.txt").read_text())


def test_real_text_has_the_roles_that_leaf_finds(real_roles):
    # LEAF's rules find 987 roles in this edition; Delta-FL, Table 1: the largest device has 66,963 windows; its
    # experiments ask for devices of more than 100
    assert len(real_roles) == 987
    sizes = [len(text) - 20 for text in real_roles.values()]
    assert max(sizes) == 66_963
    assert sum(size > 100 for size in sizes) >= 900
    assert real_roles["THE_TRAGEDY_OF_HAMLET__PRINCE_OF_DENMARK_GHOST"].startswith("Mark me. My hour is almost come,")


def test_real_json_holds_the_text_of_the_same_roles(real_data, real_roles):
    train, test = leaf_files(real_data / "shakespeare", "")
    for files, part in ((train, str.startswith), (test, str.endswith)):
        users = dict(read_leaf(files, lambda inputs, targets: inputs[0] + "".join(targets)))
        assert len(users) == 100
        for name, text in users.items():
            assert part(real_roles[name], text)


def said(sequences):
    """The characters that are targets, in their order, for each user; each follows the inputs before it."""
    inputs, targets = sequences.inputs, sequences.targets
    kept = targets != NO_TARGET
    assert torch.equal(targets[:, :-1][kept[:, :-1]], inputs[:, 1:][kept[:, :-1]].short())
    assert (kept.diff().sum(1) <= 1).all()
    assert kept[:, -1].all()
    users, counts = sequences.users.unique(return_counts=True)
    rows = sequences.users.argsort(stable=True).split(counts.tolist())
    own = [torch.cat([inputs[places[0], :1], targets[places][kept[places]]]) for places in rows]
    return dict(zip(users.tolist(), own, strict=True))


@pytest.mark.parametrize("length", [21, 22, 40, 41, 60, 61, 62])
def test_every_character_is_a_target_once_in_whole_windows(length):
    text = "".join(LETTERS[number * number % 53] for number in range(length))
    sequences = whole(windows([text, text[::-1]]))
    assert [decode(tokens) for tokens in said(sequences).values()] == [text, text[::-1]]
    assert len(sequences.targets) == 2 * -(-(length - 1) // 20)


def test_whole_windows_of_json_have_the_texts_of_the_roles(tmp_path):
    texts = write_shakespeare_json(tmp_path)
    module = Shakespeare("leaf", "all", root=str(tmp_path))
    module.setup()
    train, test = module.load()
    for split, first, last in ((train, 0, 30), (test, 40, 50)):
        found = said(split)
        for user, name in enumerate(sorted(texts)):
            assert decode(found[user], LEAF_ALPHABET) == texts[name][first : last + 80]
    assert module.task.outputs == 80
    assert isinstance(module.task, NextToken)


def test_real_files_have_whole_windows_with_each_character_once(real_data, real_roles):
    text = real_roles["THE_TRAGEDY_OF_HAMLET__PRINCE_OF_DENMARK_GHOST"]
    raw, _ = Shakespeare(targets="all", root=str(real_data / "shakespeare")).load()
    letters = "".join(letter if letter in LETTERS else " " for letter in text)
    assert letters in [decode(tokens) for tokens in said(raw).values()]
    train, test = Shakespeare("leaf", "all", root=str(real_data / "shakespeare")).load()
    assert len(train.users.unique()) == 100
    assert sum(len(tokens) - 1 for tokens in said(train).values()) == 220_231 + 100 * 79
    assert int((test.targets != NO_TARGET).sum()) == 47_206 + 100 * 79
