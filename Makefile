# The loop of this repository. `make demo` and `make test` do all their set-up by themselves.
#
#   PYTHON=…   the interpreter to make .venv with (default: the first of python3.13, 3.12, 3.11, python3 that is >= 3.11)
#   ARGS=…     more arguments for pytest, such as ARGS="-k leases"
#   ONLY=…     one area of the benchmarks, such as ONLY=control; PART=… a group of its figures

SHELL := /bin/bash
BIN := .venv/bin
SET_UP := pyproject.toml requirements/constraints.txt scripts/install.sh

# Bytecode is kept, also in a shell that says otherwise: the tests start thousands of Python processes, and each of them
# would compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test test-long check bench proto docs constraints services clean

help:
	@echo "make demo        the whole system on this machine, with a report"
	@echo "make test        every test, with the real services"
	@echo "make check       format, lint, types, import contracts, generated files"
	@echo "make test-long   the longer matrices and soaks"
	@echo "make bench       the benchmarks (ONLY=area for one)"
	@echo "make install     .venv with everything a contributor needs"
	@echo "make proto       regenerate src/shoal/wire/pb from proto/"
	@echo "make docs        regenerate docs/reference"
	@echo "make constraints pin the versions that are installed now"
	@echo "make clean       remove what the targets above made"

# The stamps make a second run instant. What the developer needs contains what the demo needs.
.venv/.stamp-runtime: $(SET_UP)
	@PYTHON="$(PYTHON)" scripts/install.sh runtime
	@touch $@

.venv/.stamp-dev: $(SET_UP)
	@PYTHON="$(PYTHON)" scripts/install.sh dev
	@touch .venv/.stamp-runtime $@

install: .venv/.stamp-dev

demo: .venv/.stamp-runtime
	@$(BIN)/shoal demo

services: .venv/.stamp-dev
	@scripts/services.sh

# One more than there are cores, because tests of real processes wait more than they work; four are enough.
WORKERS := $(shell cores=$$(nproc); echo $$((cores < 3 ? cores + 1 : 4)))

test: .venv/.stamp-dev services
	$(BIN)/pytest tests --ignore=tests/long -m "not long" -n $(WORKERS) --dist=worksteal $(ARGS)

test-long: .venv/.stamp-dev services
	@scripts/fetch_compose.sh >/dev/null || echo "test-long: without the compose commands of Docker" >&2
	$(BIN)/pytest tests -m long --hypothesis-profile=long -n $(WORKERS) --dist=worksteal $(ARGS)

check: .venv/.stamp-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_protos.py --check
	$(BIN)/python scripts/write_reference.py --check
	$(BIN)/python scripts/check_tree.py

bench: .venv/.stamp-dev
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(if $(PART),--part $(PART))

proto: .venv/.stamp-dev
	$(BIN)/python scripts/generate_protos.py

docs: .venv/.stamp-dev
	$(BIN)/python scripts/write_reference.py

constraints: .venv/.stamp-dev
	@scripts/write_constraints.sh

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
