"""Executes docs/notebooks, and looks at the outputs that are kept in them."""

import json
import os
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest
from fakes.forked import SERVER

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NO_PICTURES = """
from torch.utils.tensorboard import SummaryWriter

SummaryWriter.add_figure = lambda *_, **__: None
"""
PLACE = re.compile(r"(?:^|[\s'\"(])(?:/\w+){2,}|[A-Z]:\\\\")  # a path of the machine that ran it

IN_A_KERNEL = "first_steps"  # which takes many seconds to start; the cells of others run in a shell of IPython alone

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Reads a notebook whose commands find ``pfl`` and the package."""
    nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra docs")
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "no_pictures.py").write_text(NO_PICTURES)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    return lambda name: nbformat.read(ROOT / "docs/notebooks" / f"{name}.ipynb", as_version=4)


@pytest.mark.slow
def test_a_notebook_runs_in_a_kernel(notebook, tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="notebooks need the extra docs")
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook(IN_A_KERNEL), timeout=600, resources=resources).execute()


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS if path.stem != IN_A_KERNEL])
def test_the_cells_of_a_notebook_run(name, notebook, tmp_path):
    pytest.importorskip("IPython")  # a kernel needs it
    cells = [cell.source for cell in notebook(name).cells if cell.cell_type == "code"]
    process = SERVER.Process(target=run_cells, args=(tmp_path, {**os.environ}, cells))
    process.start()
    process.join(600)
    process.kill()
    assert process.exitcode == 0


def run_cells(folder: Path, environment: dict[str, str], cells: list[str]) -> None:
    os.chdir(folder)
    os.environ.update(environment)
    shell = import_module("IPython").InteractiveShell.instance()
    shell.system = run_here
    for cell in [NO_PICTURES, *cells]:
        shell.run_cell(cell, store_history=cell in cells).raise_error()


def run_here(command: str) -> None:
    """A cell's ``!pfl`` without the seconds that a process takes to start."""
    name, *words = shlex.split(command.replace("\\\n", " ").partition("|")[0])
    assert name == "pfl"
    import_module("pfl_lightning.cli").main(words)


@each_notebook
def test_the_kept_outputs_are_those_of_one_execution_somewhere(path):
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    texts = ["".join(output.get("text", output.get("data", {}).get("text/plain", ""))) for output in outputs]
    assert not [text for text in texts if PLACE.search(text)]
