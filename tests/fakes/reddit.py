"""Comments like LEAF's: pieces of 10 words, each with the word that follows."""

import json

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "an", "old", "dog", "run"]
PIECE = 10


def pieces(words):
    """LEAF's pieces of a comment, and the targets of each."""
    words = ["<BOS>", *words, "<EOS>"]
    following = [*words[1:], "<PAD>"]
    counts = [int(word not in ("<PAD>", "<EOS>")) for word in following]
    padding = -len(words) % PIECE
    rows = [words + padding * ["<PAD>"], following + padding * ["<PAD>"], counts + padding * [0]]
    x, y, count = ([row[start : start + PIECE] for start in range(0, len(row), PIECE)] for row in rows)
    return x, {"target_tokens": y, "count_tokens": count, "subreddit": "cats"}


def write_comments(path, comments):
    """LEAF's file of users, each with a list of comments."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut = {user: [pieces(text.split()) for text in texts] for user, texts in comments.items()}
    data = {user: {"x": [x for x, _ in found], "y": [y for _, y in found]} for user, found in cut.items()}
    counts = [len(texts) for texts in comments.values()]
    path.write_text(json.dumps({"users": [*comments], "num_samples": counts, "user_data": data}))


def write_reddit(root):
    """24 users, each of whom goes through the words in steps of another size."""
    for split, size in {"train": 6, "val": 2, "test": 3}.items():
        comments = {
            f"user{user}": [
                " ".join(WORDS[(start + step * (1 + user % 3)) % len(WORDS)] for step in range(5 + user % 9))
                for start in range(size)
            ]
            for user in range(24)
        }
        write_comments(root / f"data/{split}/{split}_0.json", comments)
