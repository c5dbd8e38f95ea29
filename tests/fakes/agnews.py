"""News like AG News', in its layout: each class has words of its own, some in quotes that are doubled."""

import csv

import numpy as np

TOPICS = {
    1: ["peace", "minister", "border", "talks"],
    2: ["coach", "match", "season", "goal"],
    3: ["oil", "shares", "profit", "bank"],
    4: ["software", "space", "chip", "web"],
}


def write_news(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)


def write_agnews(root):
    random = np.random.default_rng(0)
    for name, count in {"train": 100, "test": 40}.items():
        labels = np.arange(4 * count) % 4 + 1
        texts = [" ".join(random.choice(TOPICS[label], 6)) for label in labels]
        rows = [(label, f'"{text[:5]}"', f"{text}\\and more") for label, text in zip(labels, texts, strict=True)]
        write_news(root / "ag_news_csv" / f"{name}.csv", rows)
