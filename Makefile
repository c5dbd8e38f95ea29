PYTHON ?= python3
LOWEST_PYTHON ?= $(PYTHON)
BIN = .venv/bin
LOWEST = .venv-lowest/bin
OTHERS = pfl_lightning tests/callbacks tests/cli tests/client tests/data tests/metrics tests/models tests/report tests/test_dependencies.py tests/test_experiment.py tests/test_files.py

SINGLE = --ignore tests/cli/test_processes.py  # several processes are not tried

.PHONY: quickstart test test-lowest docs install lint clean

quickstart: install  ## set up and run the main job
	$(BIN)/pfl fit --config configs/quickstart.yaml

test: lint  ## set up and run all checks, the slow ones too if CI is set
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 $(if $(CI),,-m "not slow")

test-lowest: .venv-lowest/installed  ## test what calls other libraries with the lowest versions that pyproject.toml allows
	OMP_NUM_THREADS=1 $(LOWEST)/pytest -n 2 -m "not slow" $(SINGLE) $(OTHERS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: install  ## build the site into site/
	$(BIN)/mkdocs build --strict

install: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

.venv-lowest/installed: pyproject.toml tools/lowest_versions.py
	$(LOWEST_PYTHON) -m venv .venv-lowest
	$(LOWEST)/python -m pip install --quiet --disable-pip-version-check packaging tomli
	$(LOWEST)/python tools/lowest_versions.py > .venv-lowest/constraints.txt
	$(LOWEST)/python -m pip install --quiet --disable-pip-version-check --constraint .venv-lowest/constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-lowest
