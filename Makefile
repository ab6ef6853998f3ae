# What a clone can do. Every target sets up what it needs and may be run again.

PYTHON ?= python3
INPUT ?=
MINUTES ?= 60
VENV := .venv
BIN := $(VENV)/bin
# pip as the lock wants it: hashes are checked, the network is asked for nothing else.
PIP_FLAGS := --quiet --disable-pip-version-check --no-input
# What is missing, in words; empty when all is there.
MISSING = $$( \
	test "$$(uname -s)" = Linux || printf ', Linux'; \
	command -v git >/dev/null || printf ', git'; \
	if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
		printf ', Python 3.11 or later (PYTHON=$(PYTHON) is not)'; \
	elif ! "$(PYTHON)" -c 'import venv, ensurepip' >/dev/null 2>&1; then \
		printf ', the venv module of $(PYTHON) (Debian: python3-venv)'; \
	fi )

.DEFAULT_GOAL := help
.PHONY: help check demo test test-mutants test-long lint format lock clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

check: ## name what is missing on this machine
	@missing="$(MISSING)"; if [ -n "$$missing" ]; then echo "missing: $${missing#, }" >&2; exit 1; fi

# The stamp goes first and comes back last: an installation that was interrupted starts from nothing.
$(VENV)/installed: requirements.lock pyproject.toml | check
	@echo "setting up $(VENV)" >&2
	@test -e $@ || "$(PYTHON)" -m venv --clear $(VENV)
	@rm -f $@
	@$(BIN)/python -m pip install $(PIP_FLAGS) --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-index --no-build-isolation --no-deps -e .
	@touch $@

demo: $(VENV)/installed ## consume, transform, produce, exactly once, with a crash in the middle (INPUT=FILE: on real data)
	@$(BIN)/msgtx demo $(if $(INPUT),--input "$(INPUT)")

test: $(VENV)/installed ## the tests; they start and stop their own PostgreSQL
	@$(BIN)/python -m tests

test-mutants: $(VENV)/installed ## planted bugs: each must be caught by the tests that it names
	@$(BIN)/python -m tests.mutants

test-long: $(VENV)/installed ## random histories with faults, a storm of workers, and the model, for MINUTES (60); prints seeds and what was checked
	@$(BIN)/python -m tests.long --minutes "$(MINUTES)"

lint: $(VENV)/installed ## ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy -p msgtx
	@$(BIN)/lint-imports

format: $(VENV)/installed ## let ruff format and mend what it can
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

# Its own environment: a lock that cannot be installed can still be renewed.
lock: | check ## renew requirements.lock from pyproject.toml
	@test -x .venv-lock/bin/pip-compile || { "$(PYTHON)" -m venv --clear .venv-lock \
		&& .venv-lock/bin/python -m pip install $(PIP_FLAGS) 'pip-tools>=7.5,<8'; }
	@{ sed -n '/^#/!q;p' requirements.lock; \
		env -u PIP_FIND_LINKS .venv-lock/bin/pip-compile --quiet --upgrade --strip-extras --generate-hashes --allow-unsafe \
		--no-header --no-annotate --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		--extra embedded --extra dev --output-file requirements.lock.new pyproject.toml >&2 \
		&& cat requirements.lock.new; } > requirements.lock.full
	@mv requirements.lock.full requirements.lock && rm -f requirements.lock.new

clean: ## remove what make and the tools left in this folder (the embedded server's data stays: MSGTX_HOME)
	@rm -rf $(VENV) .venv-lock build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
