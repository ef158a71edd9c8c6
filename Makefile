# The targets here are the steps of the CI. Each makes .venv and installs what it needs first, where that is missing.
#   PYTHON=python3.12   the Python that makes .venv (3.10 or newer)
#   JOBS=8              how many processes run the tests
#   ARGS="..."          further arguments for demo, test, bench, check-gymnasium, and what makes shipped data
PYTHON ?= python3
JOBS ?= 2
ARGS ?=

GYMNASIUM_VERSIONS := 1.1.0 1.2.2 1.4.0
# Those with a file of requirements have an environment of their own in .libraries, made by PYTHON.
OWN_LIBRARIES := $(patsubst examples/requirements/%.txt,%,$(wildcard examples/requirements/*.txt))
LIBRARIES := stable-baselines3 sb3-contrib cleanrl $(if $(wildcard examples/minari_dataset.py),minari)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

BIN := .venv/bin
INSTALLED := .venv/.installed
# Compiled files are kept even where the environment says not to; without them, every process compiles all tests anew.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test lint format docs bench leaderboard leaderboard-site check-gymnasium check-libraries libraries clean
.PHONY: check-leaderboards fresh best-known bounds pretrained cost-model-card diagram

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv and install ShardGym there, editable, with everything the other targets need

demo: $(INSTALLED) ## Train an agent in seconds, compare it with heuristics, show a sharding plan
	$(BIN)/shard-gym demo $(ARGS)

test: $(INSTALLED) ## Run the tests
	$(PYTEST) -n $(JOBS) --dist worksteal $(ARGS)

lint: $(INSTALLED) ## Check style, format and types; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED) ## Format the code and repair what ruff can repair
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: $(INSTALLED) ## Build the documentation site in build/docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --fresh-env docs build/docs
	$(BIN)/shard-gym leaderboard site --out build/docs/leaderboard

bench: $(INSTALLED) ## Measure the speed of environments and cost models
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/run.py $(ARGS)

leaderboard: $(INSTALLED) ## Train every agent, make its entries on every suite, then the tables
	$(BIN)/python tools/entries.py $(ARGS)

check-leaderboards: $(INSTALLED) ## Check that every entry is valid and the generated tables are up to date
	$(BIN)/shard-gym leaderboard render --check

fresh: $(INSTALLED) ## Answer fresh tasks with the agents that have entries
	$(BIN)/python tools/fresh.py $(ARGS)

best-known: $(INSTALLED) ## Search for better best known answers of the suites
	$(BIN)/python tools/best_known.py $(ARGS)

bounds: $(INSTALLED) ## Compute lower bounds of the suites
	$(BIN)/python tools/bounds.py $(ARGS)

pretrained: $(INSTALLED) ## Train the checkpoints that ship with ShardGym
	$(BIN)/python tools/pretrained.py $(ARGS)

cost-model-card: $(INSTALLED) ## Compare the analytical cost model with every public measurement, and write its pages
	$(BIN)/python tools/cost_model_card.py

diagram: $(INSTALLED) ## Write the diagram and the table of rooms in docs/design.md
	$(BIN)/python tools/dependency_diagram.py

leaderboard-site: $(INSTALLED) ## Build the web page of the leaderboards in build/leaderboard-site
	$(BIN)/shard-gym leaderboard site --out build/leaderboard-site $(ARGS)

check-gymnasium: $(GYMNASIUM_VERSIONS:%=check-gymnasium-%) ## Run the contract tests on the oldest, RLlib's and the newest Gymnasium

check-gymnasium-%: .gymnasium/%/.installed
	PYTHONPATH=.gymnasium/$* $(BIN)/python -c 'import gymnasium; assert gymnasium.__version__ == "$*", gymnasium'
	PYTHONPATH=.gymnasium/$* $(PYTEST) -n $(JOBS) tests/contract --junitxml=build/libraries/gymnasium-$*.xml $(ARGS)
	$(BIN)/python tools/libraries.py contract $* build/libraries/gymnasium-$*.xml

check-libraries: $(patsubst %,check-libraries-%,$(LIBRARIES) $(OWN_LIBRARIES)) ## Train with each RL library, each in an environment that fits it

$(OWN_LIBRARIES:%=check-libraries-%): check-libraries-%: .libraries/%/.installed
	.libraries/$*/bin/python tools/libraries.py check $*

check-libraries-%: $(INSTALLED)
	$(BIN)/python tools/libraries.py check $*

libraries: $(INSTALLED) ## Publish what the last check-libraries and check-gymnasium found in docs/results/libraries.md
	$(BIN)/python tools/libraries.py page

clean: ## Remove build products and caches; .venv, .gymnasium and .libraries stay
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name .venv -prune -o -name .gymnasium -prune -o -name .libraries -prune -o -type d -name __pycache__ -exec rm -rf {} +

# The stamps are written last: an installation that was interrupted is done again, and a .venv without pip is made anew.
$(INSTALLED): pyproject.toml constraints.txt
	@$(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  command -v $(PYTHON) >/dev/null || { \
	    echo 'ShardGym needs Python 3.10 or newer, and there is no $(PYTHON) here. Name one: make PYTHON=python3.12' >&2; exit 1; }; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "ShardGym needs Python 3.10 or newer, but $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=python3.12" >&2; exit 1; }; \
	  echo '$(PYTHON) -m venv .venv'; $(PYTHON) -m venv --clear .venv; }
	@echo "1/4 $$(date +%T) PyTorch, the largest download"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	@echo "2/4 $$(date +%T) ShardGym, Stable-Baselines3 and matplotlib"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[sb3,viz]'
	@echo "3/4 $$(date +%T) FBGEMM, and what tests, types and pages need"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,real,torchrec]'
	@echo "4/4 $$(date +%T) TorchRec and TorchRL"
	@$(BIN)/python -m pip install --quiet --no-deps 'torchrec==1.8.*'
	@$(BIN)/python -m pip install --quiet --no-deps 'torchrl==0.14.*'
	@echo "    $$(date +%T) installed in .venv"
	@touch $@

.PRECIOUS: .gymnasium/%/.installed
.gymnasium/%/.installed: | $(INSTALLED)
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --no-deps --target $(@D) gymnasium==$*
	@touch $@

.PRECIOUS: .libraries/%/.installed
.libraries/%/.installed: examples/requirements/%.txt pyproject.toml
	$(PYTHON) -m venv --clear $(@D)
	@echo 'Installing $* and ShardGym into $(@D); this may take some minutes.'
	$(@D)/bin/python -m pip install --quiet --requirement $< --editable .
	@touch $@
