# aeonflow: `make help` lists the targets. PYTHON=… chooses the interpreter that .venv is made with.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup run test test-all lint types imports kernels ready bench clean

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PROMPT ?= In one short paragraph: why is the sky blue?

# Tests and tools run beside other work: one thread each.
THREADS := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1
PYTEST  := $(THREADS) $(BIN)/python -m pytest
# Tests wait as long as they compute, so two processes share them; a file stays whole, its fixtures are made once.
WORKERS ?= 2

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv and install this checkout in place (once; again when pyproject.toml changes)

$(STAMP): pyproject.toml constraints.txt
	@python="$${PYTHON:-}"; \
	for candidate in $$python python3.11 python3.12 python3.13 python3.14 python3 python; do \
	  if command -v "$$candidate" >/dev/null 2>&1 && \
	     "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    python="$$candidate"; break; \
	  fi; \
	done; \
	if [ -x $(BIN)/python ] && $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then :; \
	elif [ -z "$$python" ]; then echo "error: no Python 3.11 or later with venv was found; name one: make setup PYTHON=…" >&2; exit 1; \
	else echo "making $(VENV) with $$python ($$($$python -V))"; "$$python" -m venv $(VENV); fi
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $(STAMP)

run: $(STAMP) ## start the trisplit fleet and stream an answer (PROMPT='…'); pulls the model when it is missing
	@$(BIN)/aeonflow run --plan trisplit "$(PROMPT)"

lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

imports: $(STAMP) ## who may import whom
	$(BIN)/lint-imports

kernels: $(STAMP) ## compile the fast kernels that are missing, before tests wait for them
	@$(THREADS) $(BIN)/python -m stations warm >/dev/null

ready: $(STAMP)
	@$(MAKE) --no-print-directory -j2 lint types imports kernels

test: ready ## lint, types, import contracts, and the tests but the slow ones
	$(PYTEST) -m 'not slow' -n $(WORKERS) --dist loadfile --no-loadscope-reorder </dev/null

test-all: ready ## the same with the slow groups, one test at a time
	$(PYTEST) </dev/null

bench: $(STAMP) ## wire, hop and decode, one JSON object each
	$(BIN)/aeonflow bench wire --json
	$(BIN)/aeonflow bench hop --json
	$(BIN)/aeonflow bench decode --json

clean: ## remove .venv and what the tools left
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
