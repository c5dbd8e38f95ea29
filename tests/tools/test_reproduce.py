import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import reproduce
import srpfl_claims

from pfl_lightning.quantity import ACCURACY
from pfl_lightning.report import Curve

SECONDS = np.arange(5.0)


def curve(means, seconds=SECONDS):
    """A curve of one run that is evaluated after the rounds 0, 10, 20, 30 and 40."""
    run = SimpleNamespace(rounds=np.arange(5) * 10, means={"m": np.array(means)}, compute=seconds, quantity=ACCURACY)
    return Curve([run], "m")


SLOW = curve([0.1, 0.3, 0.5, 0.55, 0.6], 10 * SECONDS)
FAST = curve([0.1, 0.3, 0.5, 0.58, 0.6])
LATE = curve([0.1, 0.2, 0.3, 0.4, 0.58], 20 * SECONDS)


def passed(claims):
    return [claim.passed for claim in claims]


def panel(fast=FAST, slow=SLOW, **others):
    return {"FedRep": slow, "FedRep-SRPFL": fast, "LG-FedAvg": slow, "LG-SRPFL": fast, **others}


def test_the_time_ratio_is_to_95_percent_of_the_final_accuracy_of_the_method_without_doubling():
    # the fast curve is at 0.57 at its fourth evaluation, after 3 s, the slow one at its last, after 40 s; with 10 s of
    # communication these are 3 + 300 and 40 + 400
    assert srpfl_claims.seconds_to_agree(FAST, SLOW, 0.0) == pytest.approx(3 / 40)
    assert srpfl_claims.seconds_to_agree(FAST, SLOW, 10.0) == pytest.approx(303 / 440)


def test_claims_hold_or_fail_by_what_was_measured():
    never = curve([0.1, 0.2, 0.3, 0.3, 0.3])
    for check, wrong in (
        (srpfl_claims.earlier, panel(fast=LATE)),
        (srpfl_claims.earlier, panel(fast=never)),
        (srpfl_claims.agree_in_the_end, panel(fast=never)),
        (srpfl_claims.gain_persists, panel(fast=LATE)),
    ):
        assert all(passed(check(panel()))), check
        assert not any(passed(check(wrong))), check


def test_the_gain_shrinks_when_ratios_rise_with_the_communication_time():
    assert passed(srpfl_claims.gain_shrinks_with_communication(panel())) == [True]
    assert passed(srpfl_claims.gain_shrinks_with_communication(panel(fast=LATE, slow=LATE))) == [False]


def test_the_best_curve_is_best_in_the_time_that_all_have():
    better = curve([0.5, 0.9, 0.9, 0.9, 0.9])
    worse = curve([0.0, 0.1, 0.1, 0.1, 0.1])
    assert passed(srpfl_claims.best_over_time(panel(FLANP=worse))) == [True]
    assert passed(srpfl_claims.best_over_time(panel(FLANP=better))) == [False]


def test_the_common_models_are_the_worst_two():
    low, lower = curve([0.1] * 5), curve([0.05] * 5)
    assert passed(srpfl_claims.common_models_are_worst(panel(FLANP=low, FedAvg=lower))) == [True]
    assert passed(srpfl_claims.common_models_are_worst(panel(FLANP=low, FedAvg=SLOW))) == [False]


def test_stragglers_cost_time_and_doubling_softens_that():
    few, many = panel(), panel(fast=curve(FAST.means[0], 2 * SECONDS), slow=curve(SLOW.means[0], 30 * SECONDS))
    assert passed(srpfl_claims.slower_with_stragglers({"10": few, "30": many})) == [True, True, True]
    assert passed(srpfl_claims.slower_with_stragglers({"10": few, "30": few})) == [False, False, False]


@pytest.mark.parametrize("name", reproduce.FIGURES)
@pytest.mark.parametrize("scale", ["small", "full"])
def test_every_panel_names_files_that_exist(name, scale):
    figure = reproduce.FIGURES[name]
    for part in figure.small if scale == "small" else figure.panels:
        options = reproduce.fit_options(figure, part, scale, Path("files"))
        files = [option.removeprefix("--config=") for option in options if option.startswith("--config=")]
        assert len(files) == 2
        assert all(Path(file).is_file() for file in files)
        assert f"--data.root=files/{part.data}" in options


def test_a_figure_without_small_panels_is_refused_at_small_scale(capsys):
    with pytest.raises(SystemExit) as stop:
        reproduce.srpfl("fig8_natural")
    assert stop.value.code == 2
    assert "scale: small is not possible for fig8_natural" in capsys.readouterr().err


def test_one_record_per_claim_is_written_and_a_claim_that_fails_is_told_by_the_exit_code(tmp_path, monkeypatch):
    claims = [*srpfl_claims.earlier(panel()), *srpfl_claims.agree_in_the_end(panel(fast=curve([0.1] * 5)))]
    monkeypatch.setattr(reproduce, "linear_claims", lambda figure: claims)
    with pytest.raises(SystemExit) as stop:
        reproduce.srpfl("linear", out=tmp_path, json=tmp_path / "claims.json")
    assert stop.value.code == 1
    records = json.loads((tmp_path / "claims.json").read_text())
    assert [set(record) for record in records] == 4 * [{"claim", "measured", "expected", "passed"}]
    assert [record["passed"] for record in records] == [True, True, False, False]
