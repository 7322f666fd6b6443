# Millpond's commands. `make run` starts everything on this machine; `make test` proves it.
# For GNU make 4.3 and /bin/sh, as root or not, with any HOME.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/stamps
SETUP := sh runtime/embedded/setup.sh
LOCK_NAMES := requirements.lock requirements-engine.lock requirements-dev.lock
export PYTHONPATH := $(CURDIR):$(CURDIR)/platform
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD := 1

# Tools want a home they can write to (caches, font lists). Without one they get a folder in the environment.
ifneq ($(shell test -n "$$HOME" && test -d "$$HOME" && test -w "$$HOME" && echo yes),yes)
export HOME := $(CURDIR)/$(VENV)/home
export XDG_CACHE_HOME := $(CURDIR)/$(VENV)/home/.cache
$(shell mkdir -p $(XDG_CACHE_HOME))
endif

# TORCH=cpu or TORCH=cuda; by default CUDA where an NVIDIA driver is loaded.
TORCH ?= $(shell test -e /proc/driver/nvidia/version && echo cuda || echo cpu)

# What the checks read: every room of the control plane, and the rest of the product.
CODE := $(patsubst %/__init__.py,%,$(wildcard platform/*/__init__.py)) tenants console runtime
# Runs a command with Postgres and Valkey of its own.
WITH_SERVICES := $(PY) -m tests.services

.PHONY: help run stop status setup setup-dev test test-unit test-whole check lint fmt types imports django lock clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { sub("%", "NAME", $$1); printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- running

run: setup ## start Millpond on this machine; the first start serves a sample model (RUN_OPTIONS=--no-sample: none)
	@exec $(PY) -m runtime.embedded up $(RUN_OPTIONS)

stop: ## stop what `make run` started
	@$(PY) -m runtime.embedded stop

status: ## show its processes
	@$(PY) -m runtime.embedded status || test $$? -eq 3

# --- setting up: again only when a lock file has changed

setup: $(STAMPS)/base $(STAMPS)/torch-$(TORCH) $(VENV)/bin/millpond ## build .venv from the hash-locked requirements

setup-dev: setup $(STAMPS)/dev

$(PY):
	@$(SETUP) venv $(VENV)

$(STAMPS)/base: requirements.lock requirements-engine.lock | $(PY)
	@$(SETUP) install $(VENV) base $^

$(STAMPS)/torch-$(TORCH): requirements-torch-$(TORCH).lock | $(STAMPS)/base
	@$(SETUP) torch $(VENV) $(TORCH)

$(STAMPS)/dev: requirements-dev.lock | $(STAMPS)/base
	@$(SETUP) install $(VENV) dev $^

$(VENV)/bin/millpond: runtime/embedded/setup.sh | $(STAMPS)/base
	@$(SETUP) launcher $(VENV) $(CURDIR)

# --- proving

test: setup-dev check test-unit test-whole ## everything that CI runs

check: setup-dev ## lint, format, types, import contracts, Django's own checks
	@$(MAKE) --no-print-directory -j 2 -O lint types imports django

test-unit: setup-dev ## unit and API tests, on real Postgres and Valkey
	$(PY) -m pytest -n 2 --ignore tests/acceptance --ignore tests/browser

test-whole: setup-dev ## the whole path with real processes, and the pages in a real browser
	$(PY) -m pytest -n 2 --dist loadfile $(wildcard tests/acceptance tests/browser)

lint: setup-dev
	$(PY) -m ruff check --no-cache .
	$(PY) -m ruff format --check .

fmt: setup-dev ## format the code
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: setup-dev
	$(WITH_SERVICES) $(PY) -m mypy $(CODE)

imports: setup-dev
	$(VENV)/bin/lint-imports

django: setup-dev
	$(WITH_SERVICES) sh -ec '\
	  $(PY) manage.py check --fail-level WARNING; \
	  $(PY) manage.py makemigrations --check --dry-run; \
	  $(PY) manage.py spectacular --validate --fail-on-warn --file /dev/null'
	$(PY) -m tests.messages

bench-%: setup-dev ## run tests/benchmarks/NAME.py (TRACES=FOLDER: public traces, where it reads some)
	TRACES='$(TRACES)' $(PY) -m tests.benchmarks.$(subst -,_,$*)

# --- upkeep

lock: | $(PY) ## write the lock files anew from pyproject.toml (LOCK_OPTIONS=--upgrade: newest versions)
	@$(SETUP) lock $(VENV)

clean: ## remove the environment and caches; the state folder .millpond stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
