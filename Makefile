PYTHON ?= python3
BIN = .venv/bin

.PHONY: quickstart test install lint clean

quickstart: install  ## set up and run the main job
	$(BIN)/pfl fit --config configs/quickstart.yaml

test: lint  ## set up and run all checks, the slow ones too if CI is set
	$(BIN)/pytest $(if $(CI),,-m "not slow")

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv
