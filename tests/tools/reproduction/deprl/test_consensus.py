from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from fakes.panels import failed
from reproduction.deprl import consensus
from reproduction.deprl.consensus import Errors
from reproduction.deprl.runs import ALPHAS, GRAPHS

HUMP = np.array([[2.0, 4.0, 2.0]] * 2)  # [seeds, rounds]
LEFT = {"Ring": 1.0, "ErdosRenyi": 0.5, "Complete": 1e-9}


def errors(**changed):
    """Errors that rise and fall, of which a graph leaves a share: ``**{"Ring 0.1": HUMP}`` replaces them."""
    cells = product(GRAPHS, ALPHAS)
    return {(g, alpha): Errors(HUMP, changed.get(f"{g} {alpha}", LEFT[g] * HUMP)) for g, alpha in cells}


@pytest.mark.parametrize(
    ("check", "changed", "wrong"),
    [
        (consensus.mixed_at_once, {}, []),
        (consensus.mixed_at_once, {"Complete 0.5": 1e-5 * HUMP}, ["alpha 0.5, Complete"]),
        (consensus.rise_and_decay, {}, []),
        (consensus.rise_and_decay, {"Ring 0.3": np.array([[5.0, 4.0, 2.0]] * 2)}, ["alpha 0.3, Ring"]),  # only falls
        (consensus.rise_and_decay, {"Ring 0.3": np.array([[1.0, 2.0, 3.0]] * 2)}, ["alpha 0.3, Ring"]),  # only rises
        # the largest error is in the second round of six, and the middle one is smaller than the first
        (consensus.rise_and_decay, {"Ring 0.3": np.array([[2.0, 4.0, 1.0, 1.0, 1.0, 1.0]] * 2)}, []),
        # rises for one seed, falls for the other
        (consensus.rise_and_decay, {"Ring 0.3": np.array([[1.0, 4.0, 1.0], [3.0, 2.0, 1.0]])}, ["alpha 0.3, Ring"]),
        (consensus.denser_agrees_better, {}, []),
        (consensus.denser_agrees_better, {"Ring 0.1": 0.4 * HUMP}, ["alpha 0.1"]),
    ],
)
def test_each_claim_holds_for_errors_that_rise_and_fall_and_can_fail(check, changed, wrong):
    assert failed(check(errors(**changed))) == wrong


def test_errors_are_read_round_by_round_for_each_seed():
    logged = {"consensus/before": {1: 3.0, 2: 4.0}, "consensus/after": {1: 1.0, 2: 2.0}}
    found = consensus.errors([SimpleNamespace(logged=logged)] * 2)
    assert found.before.tolist() == [[3, 4]] * 2
    assert found.after.tolist() == [[1, 2]] * 2


def test_the_picture_has_a_panel_for_each_concentration_and_two_lines_for_each_graph():
    figure = consensus.consensus_figure(errors())
    assert [len(axes.lines) for axes in figure.axes] == [2 * len(GRAPHS)] * len(ALPHAS)
    (ring_before, ring_after) = figure.axes[0].lines[:2]
    assert ring_before.get_linestyle() == "--"
    np.testing.assert_allclose(ring_after.get_ydata(), [2, 4, 2])
