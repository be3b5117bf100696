# Needs Python 3.11 or later; every target installs what else it needs in .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of processes: modules are compiled once.
unexport PYTHONDONTWRITEBYTECODE

# With COVERAGE=1, `make test` and `make test-slow` also record which branches they take; `make coverage` reports.
# Two test processes, and the tests of a file in one of them: its fixtures are built once.
PYTEST := $(BIN)/$(if $(COVERAGE),coverage run -m pytest,pytest) -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help run test test-slow soak coverage check format docs reference numbers bench pretrained flower clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: $(VENV)/.package ## the quickstart: real data, a table at the end
	$(BIN)/partita run

test: $(VENV)/.dev ## the tests, under 3 minutes
	$(PYTEST)

test-slow: $(VENV)/.dev ## the marked tests: real processes, kills, the browser, under 30 minutes
	$(PYTEST) -m slow --timeout 600   # some take a minute on an idle machine

# Linux, with a C compiler. SOAK names parts and numbers, such as SOAK="kills --kills 20"; see docs/reliability.md.
soak: $(VENV)/.dev ## hundreds of kills, full disks and failing calls, each followed by a resumption
	PYTHONPATH=tests $(BIN)/python -m soak $(SOAK)

coverage: $(VENV)/.dev ## branch coverage recorded by COVERAGE=1 make test; fails below 90 %
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: $(VENV)/.dev docs ## format, lint, types, import layers, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: $(VENV)/.dev ## format, and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev ## the documentation as a site, site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: $(VENV)/.dev ## write the reference of config keys, commands and Python names again, from the code
	$(BIN)/python -m partita.config.reference
	$(BIN)/python docs/generate/reference_pages.py

numbers: $(VENV)/.dev ## run the commands of README and docs, and write what they print into the pages
	$(BIN)/python tests/update_outputs.py

# PARTITA_DATA=FOLDER, BEFORE=CHECKOUT and LONG=1 add rows; MODULES names some of them. See docs/benchmarks.md.
bench: $(VENV)/.package ## the benchmark: against a plain loop, other frameworks, an older version
	$(BIN)/python benchmarks/run.py $(MODULES)

pretrained: $(VENV)/.dev ## pretrained weights from three packages, into pretrained/ or $$PARTITA_PRETRAINED
	$(BIN)/python experiments/pretrained/fetch.py $(or $(PARTITA_PRETRAINED),pretrained)

flower: .flower/.package ## an environment with Flower in .flower, with which `make test-slow` runs a federation

clean: ## remove everything that make has created
	rm -rf $(VENV) .bench .flower .coverage .coverage.* .pytest_cache .ruff_cache .import_linter_cache build dist site

# torch comes first and pinned: a looser requirement downloads builds of several gigabytes.
$(VENV)/.package: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.package
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

# Flower needs older versions of packages than other extras do; see docs/decisions/flower.md.
.flower/.package: export PIP_CONSTRAINT := $(CURDIR)/constraints-flower.txt
.flower/.package: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv --clear .flower
	.flower/bin/pip install --quiet "$$(grep '^torch==' constraints-flower.txt)"
	.flower/bin/pip install --quiet --editable ".[flower]" pytest pytest-timeout
	touch $@
