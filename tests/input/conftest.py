"""Every test runs in an empty folder, in which users' own files may lie."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pfl_lightning.cli import main
from pfl_lightning.errors import PflError

OURS = {".pfl_cache", "CINIC-10", "CINIC-10.part"}  # made beside the files of a user, and left there


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def content() -> dict[str, bytes | None]:
    """Every file and folder here, but what pfl keeps beside them."""
    paths = [path for path in Path().rglob("*") if not OURS & {*path.parts} and path.suffix != ".lock"]
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.fixture
def refused(capsys) -> Callable[..., tuple[int, str]]:
    """Runs a command that must fail, say one line and change nothing; returns the exit code and the line."""

    def run(*words: str) -> tuple[int, str]:
        before = content()
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([*words])
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("pfl: error: ")
        assert content() == before
        return stop.value.code, line.removeprefix("pfl: error: ")

    return run


@pytest.fixture
def refusal() -> Callable[[Callable[[], object]], str]:
    """Calls what must end with an error of one line and change nothing; returns the line."""

    def of(action: Callable[[], object]) -> str:
        before = content()
        with pytest.raises(PflError) as caught:
            action()
        assert content() == before
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return of
