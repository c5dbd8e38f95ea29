PYTHON ?= python3
LOWEST_PYTHON ?= $(PYTHON)
BIN = .venv/bin
LOWEST = .venv-lowest/bin

.PHONY: quickstart test test-lowest install lint clean

quickstart: install  ## set up and run the main job
	$(BIN)/pfl fit --config configs/quickstart.yaml

test: lint  ## set up and run all checks, the slow ones too if CI is set
	$(BIN)/pytest $(if $(CI),,-m "not slow")

# What only newer versions pass: the endings of figures are those of matplotlib 3.11; LinearFedRep repeats itself bit for bit
# since torch.linalg.lstsq no longer starts from uninitialised pivots (https://github.com/pytorch/pytorch/pull/187436).
NEWER = a.xyz
NEWER += or (test_linear_fedrep and (bit_for_bit or same_seed or also_when_it_is_resumed))
NEWER += or (test_oracle_doubling and (resumed_run_continues or used_again))

test-lowest: .venv-lowest/installed  ## run the fast tests with the lowest versions that pyproject.toml allows
	$(LOWEST)/pytest -m "not slow" -k "not ($(NEWER))"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

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
