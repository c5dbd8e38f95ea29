"""Reports of suites are those of their kept results."""

from pathlib import Path

import pytest

from pfl_lightning.cli import main

FOLDER = Path(__file__).parents[2] / "docs/evidence/results/suites"
KEPT = sorted(path.parent for path in FOLDER.glob("*/scores.csv"))


@pytest.mark.slow
@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_a_report_is_what_its_kept_results_give(folder, tmp_path):
    main(["bench", "--beside", str(folder), "--out", str(tmp_path)])
    for name in ("report.md", "scores.csv", "curves.csv", "suite.yaml"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
