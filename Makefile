# `make demo` and `make test` do all the set-up: they create .venv, install the package into it (editable) and run.
# Both use the same environment; it is installed again only when pyproject.toml, CONSTRAINT or EXTRAS changes.

PYTHON      ?= python3
CONSTRAINT  ?=
EXTRAS      ?= test
DEMO_ARGS   ?=
PYTEST_ARGS ?= -n 2

VENV  := .venv
BIN   := $(VENV)/bin
comma := ,
STAMP := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))

# Each process of the tests would compile all modules, and rewrite all assertions: 4 CPU s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test versions oracle lint format docs env clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    the GEMM example: on the GPU if there is one, else on the CPU model (DEMO_ARGS='--help' for options)"
	@echo "make test    the tests (PYTEST_ARGS='-k ring' for some of them)"
	@echo "make versions  tests on other versions of Python, a package that depends on the built wheel, and the model's bits under other kernels of BLAS and vector instructions"
	@echo "make oracle  the checker against random programs and all mutants, and each case of the tests' sweeps (tests/oracle/README.md)"
	@echo "make lint    ruff and mypy"
	@echo "make format  repair what ruff can, and format"
	@echo "make docs    the site of these pages, in build/site (its packages take half a minute to install, once)"
	@echo "make env     the environment alone, in $(VENV)"
	@echo "make clean   remove the environment and the caches"
	@echo "Variables: PYTHON=$(PYTHON)  EXTRAS=$(EXTRAS)  CONSTRAINT=FILE (versions to keep to, as for pip -c)"

demo: $(STAMP)
	$(BIN)/python examples/gemm_ws.py $(DEMO_ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

versions: $(STAMP)
	$(BIN)/python -m tests.oracle.arithmetic 100
	$(BIN)/python -m tests.versions
	$(BIN)/python -m tests.other_project

oracle: $(STAMP)
	$(BIN)/python -m tests.oracle.arithmetic 10000
	$(BIN)/python -m tests.oracle.agreement 10000
	$(BIN)/python -m tests.oracle.mutants --jobs 2
	TESTS=all $(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.site
	rm -rf build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(VENV)/.site: $(STAMP)
	$(BIN)/python -m pip install -q $(if $(CONSTRAINT),-c $(CONSTRAINT)) -e '.[docs]'
	touch $@

env: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINT)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(if $(CONSTRAINT),-c $(CONSTRAINT)) -e '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
