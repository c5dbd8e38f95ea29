PYTHON ?= python3
LOWEST_PYTHON ?= $(PYTHON)
BIN = .venv/bin
LOWEST = .venv-lowest/bin
# bytecode is kept, as containers often forbid: importing would take 17 s each time instead of 5
unexport PYTHONDONTWRITEBYTECODE
UV = $(BIN)/uv pip install --quiet
EXTRA = $(if $(CI),dev,test)
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal
BELOW_METHODS = client data federation metrics models report server settings system tasks
ONLY_IN_CI = tests/input tests/tools/reproduction $(wildcard tests/tools/test_*.py)
OTHERS = $(addprefix cli/test_, data.py fit.py loggers.py own_networks.py search.py) \
    client/test_engine.py test_dependencies.py test_files.py callbacks data metrics models report

.PHONY: quickstart check test test-lowest docs install lint clean

quickstart: install  ## set up and run the main job
	$(BIN)/pfl fit --config configs/quickstart.yaml
	@echo "Next, so that pfl is a command: source .venv/bin/activate"

check: .venv/$(EXTRA)  ## after each edit: the rooms below the methods, and the contract of two methods
	$(PYTEST) -m "not slow" -k "not test_real and (not test_contract or FedRep or DPSGD)" \
	    $(addprefix tests/, $(BELOW_METHODS)) tests/methods/test_contract.py

test: lint  ## set up and run all checks; slow ones, and those of wrong input, tools and all extras, only if CI is set
	$(PYTEST) $(if $(CI),,-m "not slow" $(addprefix --ignore=, $(ONLY_IN_CI)))

test-lowest: .venv-lowest/installed  ## tests of what calls other libraries, with the lowest versions that pyproject.toml allows
	OMP_NUM_THREADS=1 $(LOWEST)/pytest -n 2 --dist worksteal -k "not (test_fit and slow)" pfl_lightning $(addprefix tests/, $(OTHERS))

lint: .venv/$(EXTRA)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPY_NUM_WORKERS=2 $(BIN)/mypy

docs: .venv/dev  ## build the site into site/
	$(BIN)/mkdocs build --strict

install: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(UV) --python .venv --editable .
	touch $@

.venv/test .venv/dev: .venv/installed
	$(UV) --python .venv --editable '.[$(notdir $@)]'
	touch $@

# wandb and mlflow ask for an old protobuf in their lowest versions, which uv does not look for by itself
.venv-lowest/installed: .venv/installed
	$(BIN)/uv venv --quiet --clear --python $(LOWEST_PYTHON) .venv-lowest
	$(UV) --python .venv-lowest --resolution lowest-direct 'protobuf>=5,<6' --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-lowest
