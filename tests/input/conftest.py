"""Every test runs in an empty folder, in which users' own files may lie."""

import sys
from collections.abc import Callable

import pytest
from fakes.folders import content

from pfl_lightning.errors import PflError


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


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
