import numpy as np
from reproduction.srpfl import linear
from reproduction.srpfl.linear_figure import draw


def test_the_picture_is_drawn(tmp_path):
    floors = {noise: {n: noise / n**0.5 * np.array([1.0, 1.1]) for n in linear.PARTICIPANTS} for noise in (0.1, 1.0)}
    ratios = {pool: np.array([0.1, 0.2]) for pool in linear.POOLS}
    draw({8: np.array([[0.3, 0.2], [0.3, 0.1]])}, floors, ratios, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
