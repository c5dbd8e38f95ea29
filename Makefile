PYTHON ?= python3
LOWEST_PYTHON ?= $(PYTHON)
BIN = .venv/bin
LOWEST = .venv-lowest/bin
# bytecode is compiled when it is needed, not all of it in half a minute, and then kept, as containers often forbid:
# importing would take 17 s each time instead of 5
unexport PYTHONDONTWRITEBYTECODE
PIP = -m pip install --quiet --disable-pip-version-check --no-compile
EXTRA = $(if $(CI),dev,test)
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal
BELOW_METHODS = client data federation metrics models report server system theory
OTHERS = pfl_lightning $(addprefix tests/, callbacks cli client data metrics models report test_dependencies.py test_experiment.py test_files.py)

.PHONY: quickstart check test test-lowest docs install lint clean

quickstart: install  ## set up and run the main job
	$(BIN)/pfl fit --config configs/quickstart.yaml

check: .venv/$(EXTRA)  ## after each edit: the rooms below the methods, and the contract of two methods
	$(PYTEST) -m "not slow" -k "not test_contract or FedRep or DPSGD" \
	    $(addprefix tests/, $(BELOW_METHODS)) tests/methods/test_contract.py

test: lint  ## set up and run all checks; the slow ones and those of all extras too if CI is set
	$(PYTEST) $(if $(CI),,-m "not slow")

test-lowest: .venv-lowest/installed  ## what calls other libraries, with the lowest versions that pyproject.toml allows
	OMP_NUM_THREADS=1 $(LOWEST)/pytest -n 2 --dist worksteal -m "not slow" --ignore tests/cli/test_configs.py $(OTHERS)

lint: .venv/$(EXTRA)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/dev  ## build the site into site/
	$(BIN)/mkdocs build --strict

install: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) --editable .
	touch $@

.venv/test .venv/dev: .venv/installed
	$(BIN)/python $(PIP) --editable '.[$(notdir $@)]'
	touch $@

.venv-lowest/installed: pyproject.toml tools/lowest_versions.py
	$(LOWEST_PYTHON) -m venv .venv-lowest
	$(LOWEST)/python $(PIP) packaging tomli
	$(LOWEST)/python tools/lowest_versions.py > .venv-lowest/constraints.txt
	$(LOWEST)/python $(PIP) --constraint .venv-lowest/constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-lowest
