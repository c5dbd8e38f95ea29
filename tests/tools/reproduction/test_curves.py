import claims_page
import pytest
from fakes.panels import SECONDS, SLOW, curve
from matplotlib.image import imread
from numpy.testing import assert_allclose
from reproduction.curves import keep, kept
from reproduction.measures import time_ratio

from pfl_lightning.report import Curve

FAST = curve([0.1, 0.3, 0.5, 0.58, 0.61], [0.1, 0.25, 0.5, 0.59, 0.6], name="FedRep-SRPFL", seconds=SECONDS)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "srpfl_fig9.csv"
    keep([SLOW, FAST], path)
    return path


def test_curves_are_the_same_when_they_are_read_again(path):
    slow, fast = kept(path)
    assert [slow.label, fast.label] == ["FedRep", "FedRep-SRPFL"]
    assert (slow.family, slow.doubled) == (fast.family, not fast.doubled) == ("FedRep", False)
    for before, now in ((SLOW, slow), (FAST, fast)):
        assert [run.seed for run in now.runs] == [0, 1]
        assert now.score_kind == before.score_kind
        assert_allclose(now.rounds, before.rounds)
        assert_allclose(now.means, before.means, rtol=1e-4)
        for time in (0.0, 10.0):
            assert_allclose(now.times(time), before.times(time), rtol=1e-4)


def test_measures_of_the_file_are_those_of_the_runs(path):
    for before, now in zip((FAST, SLOW), kept(path)[::-1], strict=True):
        assert now.label == before.label
    ratios = [
        [
            time_ratio(*(Curve([run], curve.model) for run, curve in zip(runs, curves, strict=True)))
            for runs in zip(*(c.runs for c in curves), strict=True)
        ]
        for curves in ((FAST, SLOW), kept(path)[::-1])
    ]
    assert_allclose(*ratios, rtol=1e-4)


def test_figures_are_drawn_over_time_or_over_rounds(path, tmp_path):
    claims_page.draw(path, tmp_path)
    claims_page.draw(path.rename(tmp_path / "fedmac_fig9.csv"), tmp_path)
    wide, narrow = (imread(tmp_path / f"{name}_fig9.png").shape for name in ("srpfl", "fedmac"))
    assert wide[1] > 2 * narrow[1]  # a panel for each communication time


@pytest.mark.parametrize("path", claims_page.CURVES, ids=lambda path: path.stem)
def test_kept_curves_are_drawn_on_a_page(path):
    assert len(kept(path)) > 1
    picture = f"pictures/{path.stem}.png"
    assert (claims_page.EVIDENCE / picture).is_file()
    assert any(f"({picture})" in page.read_text(encoding="utf-8") for page in claims_page.EVIDENCE.glob("*.md"))
