# Every target creates the virtual environment that it needs.
PYTHON ?= python3
VENV ?= .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
READY := $(VENV)/.ready
READY_DOCS := $(VENV)/.ready-docs
READY_BENCH := $(VENV)/.ready-bench

KERNEL_SOURCES := $(wildcard src/mirrordescent/kernels/*.[ch])

.PHONY: help demo kernels wheels release test lint format bench docs check-docs clean

help:
	@echo "make demo    restore photographs and train a network; writes out/demo/index.html"
	@echo "make kernels compile the C kernels again, after a change of their sources"
	@echo "make wheels  build the wheels of all platforms and the source archive; writes dist/"
	@echo "make release build and check wheels and sources, and write release notes; writes dist/"
	@echo "make test    run the tests"
	@echo "make lint    check style, types, layers, and that stored results are not stale"
	@echo "make format  format the code"
	@echo "make bench   measure speed against other libraries (an hour)"
	@echo "make docs    build the documentation; writes out/docs/index.html"
	@echo "make check-docs  check the built documentation in a browser"
	@echo "make clean   remove the virtual environment and all generated files"

$(READY): pyproject.toml experiments/pyproject.toml constraints.txt $(KERNEL_SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]" --editable ./experiments
	touch $(READY)

$(READY_DOCS): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]" --editable ./experiments
	touch $(READY_DOCS)

$(READY_BENCH): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable "./experiments[bench]"
	touch $(READY_BENCH)

kernels:
	$(PYTHON) -m building.compilation

wheels: $(READY)
	$(BIN)/python -m building.wheels

release: $(READY)
	$(BIN)/python -m building.release

demo: $(READY)
	$(BIN)/mirrordescent demo

test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mirrordescent results --check

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY_BENCH)
	$(BIN)/python -m benchmarks

docs: $(READY_DOCS)
	$(BIN)/python -m sphinx -q -W --keep-going -E -d out/doctrees docs out/docs
	@echo "out/docs/index.html"

check-docs: docs
	$(BIN)/python docs/check_pages.py out/docs

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
