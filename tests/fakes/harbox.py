"""Motion like HARBox's, in its layout: five activities that differ in frequency and amplitude."""

import numpy as np

ACTIVITIES = {"Call": (0.3, 0.2), "Hop": (2.5, 3.0), "typing": (5.0, 0.1), "Walk": (1.8, 1.0), "Wave": (1.2, 2.0)}


def windows(random, activity, count):
    """The time in ms and 9 sensors, ``[count, 100, 10]``: 2 s at 50 Hz that begin anywhere in a period."""
    frequency, amplitude = ACTIVITIES[activity]
    seconds = np.arange(100) / 50
    phases = random.uniform(0, 2 * np.pi, (count, 1, 1)) + np.arange(9)
    sensors = amplitude * np.sin(2 * np.pi * frequency * seconds[:, None] + phases)
    sensors += 0.05 * random.standard_normal(sensors.shape)
    times = np.broadcast_to(1000 * seconds[:, None], (count, 100, 1))
    return np.concatenate([times, sensors], axis=2)


def write_windows(root, user, activity, values):
    folder = root / "large_scale_HARBox" / str(user)
    folder.mkdir(parents=True, exist_ok=True)
    np.savetxt(folder / f"{activity}_train.txt", values.reshape(-1, 10), fmt="%.4f")


def write_harbox(root, users=12, count=5):
    """The first user has not waved."""
    random = np.random.default_rng(0)
    for user in range(1, users + 1):
        for activity in ACTIVITIES:
            if (user, activity) != (1, "Wave"):
                write_windows(root, user, activity, windows(random, activity, count))
