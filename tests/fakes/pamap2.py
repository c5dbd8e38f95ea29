"""Rows like PAMAP2's, in its layout: three people, of whom the last only jumps rope, and gaps of the sensors."""

import numpy as np


def rows(random, activities):
    """54 columns: the time, the activity, a rare pulse, and sensors that swing as the activity says."""
    activities = np.asarray(activities)
    seconds = np.arange(len(activities)) / 100
    table = np.empty((len(activities), 54))
    waves = np.sin(activities[:, None] * seconds[:, None] + np.arange(51))
    table[:, 3:] = activities[:, None] * waves + random.normal(0, 0.1, waves.shape)
    table[:, 0], table[:, 1], table[:, 2] = seconds, activities, 80
    table[np.arange(len(table)) % 11 > 0, 2] = np.nan
    table[5:9, 3:20] = np.nan  # the unit at the hand is not heard
    return table


def write_person(root, person, table):
    folder = root / "PAMAP2_Dataset" / "Protocol"
    folder.mkdir(parents=True, exist_ok=True)
    lines = (" ".join(f"{value:.2f}" if value % 1 else f"{value:.0f}" for value in row) for row in table.tolist())
    text = "\n".join(lines).replace("nan", "NaN") + "\n"
    (folder / f"subject{person}.dat").write_text(text)


def write_pamap2(root):
    random = np.random.default_rng(0)
    walks = np.repeat([0, 1, 4, 0, 5, 4], [100, 2500, 1200, 200, 2500, 1300])
    for person, activities in {101: walks, 102: walks[::-1], 109: np.repeat([0, 24, 0], [50, 1000, 50])}.items():
        write_person(root, person, rows(random, activities))
