import json

import pytest
import reproduce
from reproduction.claims import Claim


@pytest.mark.parametrize(("scale", "seeds"), [("small", [10, 20, 30]), ("full", [10, 20, 30, 40])])
def test_srpfl_is_run_over_several_seeds(scale, seeds, tmp_path, monkeypatch):
    studies = []
    monkeypatch.setattr(reproduce, "figure_claims", lambda figure, study: studies.append(study) or [])
    reproduce.srpfl("fig8_natural", scale, out=tmp_path)
    assert studies[0].seeds == seeds
    assert (tmp_path / f"srpfl-fig8_natural-{scale}").is_dir()


def test_a_search_at_full_scale_is_refused_and_leaves_nothing(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        reproduce.srpfl("rates", "full", out=tmp_path)
    assert stop.value.code == 2
    assert "scale: full is not possible for rates; allowed: small" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_one_record_per_claim_is_written_and_a_claim_that_fails_is_told_by_the_exit_code(tmp_path, monkeypatch):
    claims = [Claim("1 + 1", "2", "2", True), Claim("2 + 2", "5", "4", False)]
    monkeypatch.setattr(reproduce, "linear_claims", lambda figure: claims)
    with pytest.raises(SystemExit) as stop:
        reproduce.srpfl("linear", out=tmp_path, json=tmp_path / "claims.json")
    assert stop.value.code == 1
    records = json.loads((tmp_path / "claims.json").read_text())
    assert [set(record) for record in records] == 2 * [{"claim", "measured", "expected", "passed"}]
    assert [record["passed"] for record in records] == [True, False]


def test_a_pair_that_a_figure_does_not_have_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        reproduce.delta_fl("fig17", pairs=["shakespeare_rnn"])
    assert stop.value.code == 2
    assert (
        "pairs: shakespeare_rnn is not possible for fig17; allowed: femnist_linear, sent140_linear"
        in capsys.readouterr().err
    )


def test_the_runs_of_a_pair_are_in_one_folder_for_all_figures(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(reproduce, "delta_fl_claims", lambda figure, places, out: asked.append(places) or [])
    for figure in ("table2", "fig16"):
        reproduce.delta_fl(figure, out=tmp_path, pairs=["sent140_rnn"])
    assert asked[0] == asked[1]
    assert asked[0][0].folder == tmp_path / "delta_fl-sent140_rnn-small"
    assert asked[0][0].seeds == [1, 2, 3]


def test_missing_files_are_said_in_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        reproduce.delta_fl("table1", root=tmp_path, pairs=["femnist_linear"])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "data.root: no LEAF files" in line


def test_the_toy_draws_its_picture(tmp_path, capsys):
    reproduce.delta_fl("fig3", out=tmp_path)
    assert (tmp_path / "delta_fl-toy.png").is_file()
    assert "28/9" in capsys.readouterr().out
