"""Files like a9a's: indices from 1 in order, an empty row, and a last feature that the test file does not have."""

import numpy as np


def write_rows(path, labels, rows):
    """Rows are dictionaries of values by index."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pairs = (" ".join(f"{index}:{value:g}" for index, value in row.items()) for row in rows)
    path.write_text("".join(f"{label:+d} {pair} \n" for label, pair in zip(labels, pairs, strict=True)))


def write_a9a(folder):
    random = np.random.default_rng(0)
    for name, count, features in (("a9a", 400, 12), ("a9a.t", 200, 11)):
        labels = random.choice([-1, 1], count)
        present = random.random((count, features)) < np.where(labels[:, None] > 0, 0.6, 0.3)
        rows = [{index + 1: 1 for index in np.flatnonzero(row)} for row in present]
        write_rows(folder / name, labels, [{}, *rows[1:]])
