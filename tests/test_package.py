"""What a user installs: all of the package and its settings files, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import pfl_lightning

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run("pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (path,) = folder.glob("*.whl")
    return path


def run(*words, **options) -> str:
    """What a module of Python prints."""
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def files_below(folder: str) -> set[str]:
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in paths}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_settings_files_and_nothing_else(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    settings = {f"pfl_lightning/{name}" for name in files_below("configs")}
    assert held == files_below("pfl_lightning") | settings
    assert {"pfl_lightning/py.typed", "pfl_lightning/configs/quickstart.yaml"} <= held


@pytest.mark.slow
def test_an_installed_package_finds_its_settings_files_from_any_folder(wheel, tmp_path, monkeypatch):
    run("pip", "install", "--no-deps", "--target", tmp_path / "installed", wheel)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    words = "fit --config quickstart --config methods/fedavg --trainer.callbacks=null --trainer.max_steps=2"
    assert "after round 2" in run("pfl_lightning", *words.split())
    settings = (tmp_path / "empty/runs/FedAvg-Digits/version_0/config.yaml").read_text()
    assert "num_clients: 20" in settings


def test_the_citation_names_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == pfl_lightning.__version__
    assert citation["license"] == "Apache-2.0"
