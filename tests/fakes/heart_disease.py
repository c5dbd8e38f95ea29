"""Patients like those of the four heart disease files, in their layout: some numbers are missing, and most vessels."""

import numpy as np

SITES = {"cleveland": 60, "hungarian": 52, "switzerland": 40, "va": 40}


def patients(random, count, missing=0.03):
    """14 columns of words, ``[patients, 14]``."""
    grades = np.where(np.arange(count) % 2, random.integers(1, 5, count), 0)
    columns = [
        random.integers(30, 78, count) + 2 * grades,
        random.integers(0, 2, count),
        random.integers(1, 5, count),
        random.integers(95, 190, count),
        random.integers(120, 400, count),
        random.integers(0, 2, count),
        random.integers(0, 3, count),
        random.integers(80, 200, count) - 10 * grades,
        random.integers(0, 2, count),
        random.integers(0, 30, count) / 10 + grades,
        *random.integers(0, 4, (3, count)),
        grades,
    ]
    words = np.array(columns).T.astype(str)
    words[:, :10][random.random((count, 10)) < missing] = "?"
    words[:, 10:13][random.random((count, 3)) < 0.7] = "?"
    return words


def write_site(root, site, words):
    root.mkdir(parents=True, exist_ok=True)
    (root / f"processed.{site}.data").write_text("\n".join(map(",".join, words)) + "\n")


def write_heart_disease(root):
    random = np.random.default_rng(0)
    for site, count in SITES.items():
        write_site(root, site, patients(random, count))
