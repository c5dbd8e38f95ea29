import json

import pytest
import reproduce
from reproduction.claims import Claim


def test_a_figure_without_small_panels_is_refused_at_small_scale(capsys):
    with pytest.raises(SystemExit) as stop:
        reproduce.srpfl("fig8_natural")
    assert stop.value.code == 2
    assert "scale: small is not possible for fig8_natural" in capsys.readouterr().err


def test_one_record_per_claim_is_written_and_a_claim_that_fails_is_told_by_the_exit_code(tmp_path, monkeypatch):
    claims = [Claim("1 + 1", "2", "2", True), Claim("2 + 2", "5", "4", False)]
    monkeypatch.setattr(reproduce, "linear_claims", lambda figure: claims)
    with pytest.raises(SystemExit) as stop:
        reproduce.srpfl("linear", out=tmp_path, json=tmp_path / "claims.json")
    assert stop.value.code == 1
    records = json.loads((tmp_path / "claims.json").read_text())
    assert [set(record) for record in records] == 2 * [{"claim", "measured", "expected", "passed"}]
    assert [record["passed"] for record in records] == [True, False]
