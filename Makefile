# `make run` and `make test` need Python 3.11 or later and make; everything else they set up in .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help run test test-slow check format docs bench clean

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: $(VENV)/.package ## the quickstart: real data, a table at the end
	$(BIN)/partita run

test: $(VENV)/.dev ## the tests, under 3 minutes
	$(BIN)/pytest -n 2

test-slow: $(VENV)/.dev ## the marked tests: real processes and kills, under 15 minutes
	$(BIN)/pytest -m slow

check: $(VENV)/.dev docs ## format, lint, types, import layers, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: $(VENV)/.dev ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev ## the documentation as a site, site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.package ## what the library costs against a plain loop
	$(BIN)/python benchmarks/overhead.py

clean: ## remove what make has set up
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache build dist site

# torch comes first and pinned: a looser request pulls builds of several gigabytes.
$(VENV)/.package: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.package
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@
