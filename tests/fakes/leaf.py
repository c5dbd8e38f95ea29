"""What LEAF writes, and the text that it reads."""

import json

import numpy as np

WRITERS = 24
LICENCE = """<<THIS ELECTRONIC VERSION OF THE COMPLETE WORKS OF WILLIAM
SHAKESPEARE IS COPYRIGHT 1990-1993 BY WORLD LIBRARY, INC., AND IS
PROVIDED BY PROJECT GUTENBERG ETEXT OF ILLINOIS BENEDICTINE COLLEGE
WITH PERMISSION.  ELECTRONIC AND MACHINE READABLE COPIES MAY BE
DISTRIBUTED SO LONG AS SUCH COPIES (1) ARE FOR YOUR OR OTHERS
PERSONAL USE ONLY, AND (2) ARE NOT DISTRIBUTED OR USED
COMMERCIALLY.>>
"""
SONNETS = """This is the 100th Etext file presented by Project Gutenberg, and

1609

THE SONNETS

by William Shakespeare



                     1
  From fairest creatures we desire increase,
  Die to themselves. Sweet roses do not so,
    Of their sweet deaths are sweetest odours made:
    And so of you, beauteous and lovely youth,
  Rise. And again
    it is not a cue,
    though it looks like one.

THE END

"""
LOVERS_COMPLAINT = """1609

A LOVER'S COMPLAINT

by William Shakespeare



    From off a hill whose concave womb reworded
  Again. A plaintful story from a sist'ring vale,
    My spirits t'attend this double voice accorded,
    And down I laid to list the sad-tun'd tale,

THE END
"""


def write_json(path, users):
    """Write LEAF's file of users, a dict of name to inputs and targets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(targets) for _, targets in users.values()],
        "user_data": {name: {"x": inputs, "y": targets} for name, (inputs, targets) in users.items()},
    }
    path.write_text(json.dumps(content))


def random_writers(counts):
    """Images uint8 and classes for every writer and split, ``{split: {name: (images, classes)}}``."""
    random = np.random.default_rng(0)
    writers = {split: {} for split in counts}
    for number in range(WRITERS):
        for split, count in counts.items():
            images = np.full((count, 784), 255, dtype=np.uint8)
            images[:, 300:480] = random.integers(0, 256, (count, 180))
            writers[split][f"f{number:04}_{number % 10:02}"] = (images, random.integers(0, 62, count))
    return writers


def write_femnist(root):
    writers = random_writers({"train": 8, "test": 2})
    for split, names in writers.items():
        users = {name: ((images / 255).tolist(), classes.tolist()) for name, (images, classes) in names.items()}
        for place in range(2):
            part = dict(list(users.items())[place::2])
            write_json(root / "data" / split / f"all_data_{place}_niid_0_keep_0_{split}_9.json", part)
    return writers


def random_line(random):
    letters = random.choice(list("abcdefghijklmnopqrst  ,.'!?"), 40)
    return f"Know {''.join(letters)}."


def play(title, roles, indent="  ", speeches=3):
    """A play in the edition's print: every role speaks some times, two lines each."""
    random = np.random.default_rng(len(title))
    said = [
        f"{indent}{role.upper()}. {random_line(random)}\n{indent}  {random_line(random)}"
        for _ in range(speeches)
        for role in roles
    ]
    head = f"1599\n\n{title}\n\nby William Shakespeare\n\n\n\nDRAMATIS PERSONAE\n\n  {roles[0].upper()}, a king\n\n"
    body = f"ACT I. SCENE 1.\nA hall\n\nEnter all\n\n{chr(10).join(said)}\n                                  Exeunt\n"
    return f"{head}\n{LICENCE}\n{body}\nTHE END\n\n\n\n{LICENCE}\n"


def write_shakespeare(root):
    names = ["Egeus", "Oberon", "Puck", "First Lord", "Second Lord", "Helena", "Snug", "Quince"]
    plays = [
        play("A MIDSUMMER NIGHT'S DREAM", names),
        play("TWELFTH NIGHT; OR, WHAT YOU WILL", names),
        play("THE COMEDY OF ERRORS", names, indent=""),
    ]
    path = root / "data/raw_data/raw_data.txt"
    path.parent.mkdir(parents=True)
    path.write_text(SONNETS + LICENCE + "".join(plays) + LOVERS_COMPLAINT)


def write_shakespeare_json(root):
    random = np.random.default_rng(0)
    texts = {f"A_PLAY_ROLE_{number}": " ".join(random_line(random) for _ in range(4)) for number in range(20)}
    for split, (first, last) in {"train": (0, 30), "test": (40, 50)}.items():
        users = {
            name: ([text[i : i + 80] for i in range(first, last)], [text[i + 80] for i in range(first, last)])
            for name, text in texts.items()
        }
        write_json(root / "data" / split / f"all_data_niid_0_keep_0_{split}_8.json", users)
    return texts
