"""Tweets in LEAF's JSON and in the original table, and a few GloVe vectors."""

import csv

import numpy as np

from fakes.leaf import write_json

DATE = "Mon Apr 06 22:19:45 PDT 2009"
GOOD, BAD = ["happy", "great", "love", "sunny", "yay"], ["sad", "awful", "miss", "rainy", "ugh"]
OTHERS = ["i", "am", "at", "the", "office", "today", "and", "it", "is", "you", "so", ".", "!", ","]
NAMES = [f"{name}{number}" for number in range(6) for name in ("zoe", "Bo", "_cat_", "amy")]


def write_leaf(path, tweets):
    """Write ``{user: [(text, target)]}`` as one of LEAF's files."""
    users = {}
    for user, each in tweets.items():
        samples = [[str(place), DATE, "NO_QUERY", user, text, "training"] for place, (text, _) in enumerate(each)]
        users[user] = (samples, [target for _, target in each])
    write_json(path, users)


def write_table(path, tweets):
    """Write ``[(user, text, target)]`` as the original table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="iso-8859-1", newline="") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        for place, (user, text, target) in enumerate(tweets):
            rows.writerow([4 * target, place, DATE, "NO_QUERY", user, text])


def write_glove(folder, vectors):
    """Write ``{word: numbers}`` under the name for their length."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [" ".join([word, *(f"{number:.5g}" for number in numbers)]) for word, numbers in vectors.items()]
    dim = len(next(iter(vectors.values())))
    (folder / f"glove.6B.{dim}d.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_sent140(root):
    """24 users with 9 training and 3 test tweets each, in both forms."""
    random = np.random.default_rng(0)

    def tweet(target):
        words = [*random.choice(OTHERS, 6), *random.choice(GOOD if target else BAD, 2)]
        return "@friend " + " ".join(random.permutation(words)), target

    tweets = {user: [tweet(place % 2) for place in range(12)] for user in NAMES}
    for split, part in (("train", slice(9)), ("test", slice(9, None))):
        for number in range(2):
            name = f"all_data_{number}_niid_0_keep_3_{split}_8.json"
            write_leaf(root / "data" / split / name, {user: tweets[user][part] for user in NAMES[number::2]})
    write_table(root / "data/raw_data/training.csv", [(user, *each) for user in NAMES for each in tweets[user]])
    for dim in (50, 100):
        write_glove(root, {word: random.standard_normal(dim) for word in [*GOOD, *BAD, *OTHERS]})
