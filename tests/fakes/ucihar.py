"""Windows like UCI HAR's, in its layout: two people in the training files, and one other in the test files."""

import numpy as np

SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
PEOPLE = {"train": (1, 5), "test": (2,)}


def windows(random, activities):
    """Signals ``[windows, 9, 128]`` with a frequency and an amplitude for each activity from 1."""
    seconds = np.arange(128) / 50
    phases = random.uniform(0, 2 * np.pi, (len(activities), 9, 1))
    activities = np.asarray(activities)[:, None, None]
    return activities / 3 * np.sin(2 * np.pi * activities * seconds + phases) + random.normal(0, 0.02, phases.shape)


def write_split(root, split, values, activities, people):
    """Runs of blanks before and between the numbers, as in the official files."""
    folder = root / "UCI HAR Dataset" / split
    (folder / "Inertial Signals").mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(SIGNALS):
        path = folder / "Inertial Signals" / f"{name}_{split}.txt"
        np.savetxt(path, values[:, place], fmt="%16.7e", delimiter="")
    np.savetxt(folder / f"y_{split}.txt", activities, fmt="%d")
    np.savetxt(folder / f"subject_{split}.txt", people, fmt="%d")


def write_ucihar(root, count=4):
    """So many windows of each activity and person."""
    random = np.random.default_rng(0)
    for split, people in PEOPLE.items():
        activities = np.tile(np.arange(1, 7).repeat(count), len(people))
        write_split(root, split, windows(random, activities), activities, np.repeat(people, 6 * count))
