# Needs python3 (3.11 or newer) and make; everything else is installed below .venv, .venv-min, .venv-browser.
#   make test USE_UV=0      install with plain pip
#   make test MARK=slow     run the long tests instead of the short ones
#   make mutants SEED=2     another draw of faults
#   make golden BASE=main   the numbers of this tree against those of another commit
PYTHON ?= python3
USE_UV ?= 1
WORKERS ?= 2
MARK ?= not slow
SEED ?= 1

VENV := .venv
MIN := .venv-min
BROWSER := .venv-browser
BIN := $(VENV)/bin
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# Compiled modules are kept even where the environment asks Python not to: else each process compiles torch anew.
unexport PYTHONDONTWRITEBYTECODE
PINNED := -c constraints.txt

# $(call install,ENVIRONMENT,ARGUMENTS): uv where it can be had, else pip.
# uv is told of pip's local wheel folders, which it does not look at by itself.
define install
if [ -x $(BIN)/uv ]; then \
  UV_FIND_LINKS="$${UV_FIND_LINKS:-$$(echo "$$PIP_FIND_LINKS" | tr ' ' ',')}" \
  UV_HTTP_TIMEOUT="$${UV_HTTP_TIMEOUT:-180}" \
  $(BIN)/uv pip install -q --python $(1)/bin/python $(2) && exit 0; \
  echo "uv could not install: trying pip"; \
fi; \
$(1)/bin/python -m pip install -q $(2)
endef

.PHONY: help setup test minimal collected quick coverage trainers lint picture census mutants golden demo bench docs clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  %-8s %s\n", $$1, $$2}' Makefile

setup: $(VENV)/.stamp-dev ## make .venv with crunode (editable) and the development tools

test: $(VENV)/.stamp-dev $(MIN)/.stamp ## lint, all tests, then what differs in a minimal install
	@$(MAKE) --no-print-directory -j 2 lint minimal collected
	$(ONE_THREAD) CRUNODE_REQUIRE_ALL=1 $(BIN)/python -m pytest -n $(WORKERS) -m "$(MARK)"

minimal: $(MIN)/.stamp ## what differs in an install of torch, numpy and safetensors alone
	$(ONE_THREAD) $(MIN)/bin/python -m pytest tests/minimal tests/contracts/test_import_time.py

# While types are checked the other core compiles the tests once, which each worker would do for itself.
collected: $(VENV)/.stamp-dev
	@$(ONE_THREAD) $(BIN)/python -m pytest --collect-only -qq > /dev/null || true

quick: $(VENV)/.stamp-dev ## while editing: ruff, and the tests that are not marked heavy
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not heavy" -q tests/unit tests/contracts

coverage: $(VENV)/.stamp-dev ## the tests once more, with the lines they reach (a third slower)
	$(ONE_THREAD) CRUNODE_REQUIRE_ALL=1 $(BIN)/python -m pytest -n $(WORKERS) -m "$(MARK)" --cov

mutants: $(VENV)/.stamp-dev ## 150 faults drawn by SEED: how many the tests notice (hours, resumable)
	$(ONE_THREAD) $(BIN)/python bench/mutants.py --seed $(SEED) $(MUTANTS)

golden: $(VENV)/.stamp-dev ## small calls by every way in, against those of BASE to the last bit (minutes)
	@$(ONE_THREAD) $(BIN)/python bench/golden.py --base "$(BASE)" $(GOLDEN)

trainers: $(VENV)/.stamp-dev ## trackers inside the real Lightning and Hugging Face Trainers, in .venv-trainers
	$(PYTHON) -m venv .venv-trainers
	@$(call install,.venv-trainers,$(PINNED) torch numpy safetensors tqdm lightning transformers accelerate tensorboard pytest hypothesis)
	@$(call install,.venv-trainers,--no-deps -e .)
	$(ONE_THREAD) .venv-trainers/bin/python -m pytest tests/oracles/test_trainers.py

lint: $(VENV)/.stamp-dev ## ruff (rules and format), mypy, import direction, figures that may not grow
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python bench/census.py --check
	$(BIN)/python bench/picture.py --check

picture: $(VENV)/.stamp-dev ## docs/images/packages.svg: the packages and which imports which
	$(BIN)/python bench/picture.py

census: $(VENV)/.stamp-dev ## sizes and ties by package; LIST=FIGURE says where, WRITE=1 and RAISE="reason" change census.toml
	@$(BIN)/python bench/census.py $(if $(LIST),--list $(LIST)) $(if $(WRITE),--write) $(if $(RAISE),--raise "$$RAISE")

browser: $(BROWSER)/.stamp ## the dashboard in Chromium ($$CHROMIUM, or the one on the path)
	$(ONE_THREAD) CRUNODE_BROWSER=1 $(BROWSER)/bin/python -m pytest tests/browser

demo: $(VENV)/.stamp-dev ## run the demonstration; results go to runs/demo
	$(BIN)/crunode demo --store runs/demo

bench: $(VENV)/.stamp-dev ## run the benchmarks
	PATH="$(CURDIR)/$(BIN):$$PATH" bash bench/run.sh

docs: $(VENV)/.stamp-docs ## build the documentation in docs/_build
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo "docs/_build/index.html"

clean: ## remove environments, caches and built files (runs/ stays)
	rm -rf $(VENV) $(MIN) $(BROWSER) docs/_build dist build .coverage .coverage.* htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "crunode needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	@if [ "$(USE_UV)" = 1 ]; then $(BIN)/python -m pip install -q uv || echo "no uv: pip will do"; fi
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	@$(call install,$(VENV),$(PINNED) -e ".[dev]")
	@touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-dev docs/requirements.txt
	@$(call install,$(VENV),$(PINNED) -r docs/requirements.txt)
	@touch $@

$(MIN)/.stamp: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	$(PYTHON) -m venv $(MIN)
	@$(call install,$(MIN),$(PINNED) torch numpy safetensors pytest)
	@$(call install,$(MIN),--no-deps -e .)
	@touch $@

$(BROWSER)/.stamp: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BROWSER)
	@$(call install,$(BROWSER),$(PINNED) -e ".[app]" pytest playwright)
	@touch $@
