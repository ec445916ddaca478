# Everything a newcomer needs: `make demo` and `make test` set up their own virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# TORCH_INDEX=https://download.pytorch.org/whl/cpu takes PyTorch from there, in the version of constraints.txt.
torch_from_index = $(1)/pip install --quiet --no-deps --index-url $(TORCH_INDEX) $$(grep '^torch==' constraints.txt)

.PHONY: help setup demo test test-long lint typecheck docs build release-check bench format clean

help:
	@echo "make demo       train the paper's MLP twice on embedded digits, attack both, draw the margins"
	@echo "make test       the tests (lint and types: make lint typecheck)"
	@echo "make test-long  the long ones: readers under tens of thousands of broken files, several processes over every method"
	@echo "make docs       the documentation as a site that opens from disk: site/index.html"
	@echo "make build      wheel and source archive, in dist/"
	@echo "make release-check  build, install the wheel in a clean environment, and try it there"
	@echo "make bench      what a step, EMR and the evaluator cost on this machine"
	@echo "make setup      only the virtual environment in $(VENV)"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (a few minutes the first time: it installs PyTorch)"
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=python3.x") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(call torch_from_index,$(BIN)))
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: setup
	@$(BIN)/widemargin demo --out demo

test: setup
	$(BIN)/python -m pytest -n 2

test-long: setup
	$(BIN)/python -m pytest -n 0 -m long

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html"

build: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist

release-check: build
	rm -rf .release
	$(PYTHON) -m venv .release/venv
	$(if $(TORCH_INDEX),$(call torch_from_index,.release/venv/bin))
	.release/venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd .release && venv/bin/python ../scripts/release_check.py ../dist

bench: setup
	$(BIN)/python -m benchmarks step --emr approximate
	$(BIN)/python -m benchmarks emr-cost
	$(BIN)/python -m benchmarks evaluator-overhead
	$(BIN)/python -m benchmarks autoattack

clean:
	rm -rf $(VENV) demo site dist .release .pytest_cache .mypy_cache .ruff_cache
