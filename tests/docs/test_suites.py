"""Reports of suites are those of their kept results."""

from pathlib import Path

import pytest
import yaml

from pfl_lightning.cli import bench, main
from pfl_lightning.report import read_results
from pfl_lightning.settings.shipped_files import configs

FOLDER = Path(__file__).parents[2] / "docs/evidence/results/suites"
KEPT = sorted(path.parent for path in FOLDER.glob("*/scores.csv"))


@pytest.mark.parametrize("data", ["fashion_mnist", "femnist"])
def test_tuned_files_have_the_rates_that_the_suite_chose(data):
    scores = read_results(FOLDER / "two_cores").scores
    chosen = scores[scores["data"] == data].set_index("method")["chosen"].to_dict()
    files = {
        Path(name).name: yaml.safe_load(path.read_text())
        for name, path in configs().items()
        if f"tuned/{data}/" in name
    }
    rates = {method: f"lr={file['model']['init_args']['local']['lr']:g}" for method, file in files.items()}
    assert rates == chosen


@pytest.mark.slow
@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_a_report_is_what_its_kept_results_give(folder, tmp_path):
    main(["bench", "--beside", str(folder), "--out", str(tmp_path)])
    for name in ("report.md", "scores.csv", "curves.csv", "suite.yaml"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_a_method_of_ones_own_can_be_put_beside_them_today(folder, tmp_path, monkeypatch):
    """An option that is new would make the settings of kept runs others than those of the suite."""
    monkeypatch.setattr(bench.Bench, "execute", lambda *_: [])
    kept = read_results(folder)
    words = ["--suite", folder.name, "--methods=[FedAvg]", f"--root={tmp_path}", f"--beside={folder}"]
    with pytest.raises(SystemExit) as ended:
        main(["bench", *words, "--only", *kept.suite["data"], f"--out={tmp_path}"])
    assert ended.value.code == 1, "since no method has ended"
