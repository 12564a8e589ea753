# Everything here sets up what it needs: the virtual environment, the front-end files, and for tests Chromium and PostgreSQL.
.DEFAULT_GOAL := help
.PHONY: help venv demo test lint bench crash migrate constraints clean

BIN := .venv/bin
# `make test PYTEST="tests/store -k fence"` runs a part; `make test WORKERS=0` runs in one process.
PYTEST ?=
# More than there are cores: tests wait for processes, browsers and disks a good part of their time.
WORKERS ?= 3
ARGS ?=
INPUTS := pyproject.toml constraints.txt package.json package-lock.json hatch_build.py .npmrc .ci/venv

help:
	@echo "make demo      start the example app on a local port; it says what to click"
	@echo "make test      lint, then all tests on SQLite and PostgreSQL, and how much of the code they run"
	@echo "make lint      ruff, mypy --strict, import floors"
	@echo "make bench     measure against DBOS and the disk, on this machine"
	@echo "make crash     the long crash test: kills and stalls real processes for a while"
	@echo "make migrate   bring the database named by SIGNOFF_DATABASE up to date"
	@echo "make venv      only set up .venv;   make clean   remove what was made"
	@echo "Arguments of demo, bench, crash and migrate: make demo ARGS='--port 9000'"

venv: .venv/.dev

.venv/.dev: $(INPUTS)
	@.ci/venv dev
	@touch $@

.venv/.bench: .venv/.dev
	@.ci/venv dev bench
	@touch $@

demo: venv
	@$(BIN)/signoff demo $(ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	@.ci/chromium
	$(BIN)/pytest -n $(WORKERS) --dist=worksteal --cov --cov-report=term $(PYTEST)

bench: .venv/.bench
	$(BIN)/python -m tests.bench $(ARGS)

crash: venv
	$(BIN)/python -m tests.crash $(ARGS)

migrate: venv
	@$(BIN)/signoff migrate $(ARGS)

# Moves every pin to the newest version that the ranges of pyproject.toml allow.
constraints: .venv/.bench
	@$(BIN)/pip install --quiet --upgrade --upgrade-strategy eager -e ".[dev,bench]"
	@$(BIN)/pip freeze --exclude-editable | grep -viE '^(#|pip=|setuptools=|wheel=)' > constraints.txt

clean:
	rm -rf .venv dist build static/vendor tests/support/vendor tests/support/node_modules .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov
