# Everything runs in .venv, which is made on first use. PYTHON names another interpreter than python3.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two test processes with one thread each are faster than one with many.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test lint wheel clean

help:
	@echo "make demo   verify some instances of the shipped benchmark and print a table"
	@echo "make test   run all tests"
	@echo "make lint   ruff and mypy"
	@echo "make wheel  build the wheel into dist/"
	@echo "make clean  remove what the others made"

demo: $(STAMP)
	$(BIN)/python scripts/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

wheel: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) dist build

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@
