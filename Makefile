# Every target sets up what it needs in a virtual environment of its own. Only Python >= 3.11 with
# venv, make and a package registry are assumed.

PYTHON ?= python3
VENV ?= .venv
API_PORT ?= 8080
OPS_PORT ?= 8081
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock

.PHONY: help demo test check accept bench lowest format lock reference clean

help:
	@echo "make demo    two real tritonservers and the gateway (SMOKE=1: check an answer and stop;"
	@echo "             API_PORT and OPS_PORT choose the ports)"
	@echo "make test    every test that needs nothing but the package registry"
	@echo "make check   format, lint, types, import contracts, generated files"
	@echo "make accept  the long forms of the acceptance tests"
	@echo "make bench   the load comparison, written to tests/bench/RESULTS.md"
	@echo "make lowest  most tests, with the oldest packages that pyproject.toml allows"

demo: $(VENV)/.demo
	@$(BIN)/triton-gateway demo --api-port $(API_PORT) --ops-port $(OPS_PORT) $(if $(SMOKE),--smoke)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not accept" $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m config.reference --check

accept: $(VENV)/.dev
	$(BIN)/python -m pytest -m accept $(ARGS)

bench: $(VENV)/.bench
	$(BIN)/python -m tests.bench $(ARGS)

# Old packages are told by newer ones that they are old: such warnings are no errors here.
lowest: $(VENV)/.venv
	$(INSTALL) uv
	$(PYTHON) -m venv $(VENV)/lowest
	VIRTUAL_ENV=$(VENV)/lowest $(BIN)/uv pip install --quiet --resolution lowest-direct -e '.[test]'
	$(VENV)/lowest/bin/python -m pytest -W "ignore::DeprecationWarning" -m "not accept" \
		tests/unit tests/pipeline tests/property tests/stores tests/limits tests/wire tests/conformance $(ARGS)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: $(VENV)/.dev
	$(BIN)/python -m config.reference

lock: $(VENV)/.venv
	$(INSTALL) uv
	$(BIN)/uv pip compile --quiet --all-extras --no-header --no-emit-index-url \
		--python-version 3.11 pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV)

$(VENV)/.venv:
	@echo "Setting up $(VENV) (once) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.venv pyproject.toml requirements.lock
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' \
		|| { echo "The tritonserver of the demo needs Python 3.11 or 3.12: make clean, then make demo PYTHON=python3.12"; exit 1; }
	@echo "Installing the gateway, a tritonserver and onnxruntime (once, about a minute) ..."
	@$(INSTALL) -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.venv pyproject.toml requirements.lock
	@echo "Installing what tests and checks need (once, about a minute) ..."
	@$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: $(VENV)/.venv pyproject.toml requirements.lock
	@echo "Installing what the comparison needs (once, about a minute) ..."
	@$(INSTALL) -e '.[bench]'
	@touch $@ $(VENV)/.demo
