# Everything runs in .venv, which is made with `python3 -m venv` and pip when it is first needed.
# Another Python: `make test PYTHON=python3.12`. Set-up is repeated only if pyproject.toml or the pinned versions change.

PYTHON ?= python3
WORKERS ?= 2
KILLS ?= 50
FLIPS ?= 10000
VENV := .venv
BIN := $(VENV)/bin

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
RECENT := $(shell $(PYTHON) -c 'import sys; print("yes" if sys.version_info >= (3, 11) else "")' 2>/dev/null)

# The exact versions known to work together. Other Pythons take the newest that pyproject.toml allows.
PINS_3.11 := constraints/py311.txt
PINS_3.12 := constraints/py312.txt
PINS_3.13 := constraints/py312.txt
PINS := $(PINS_$(VERSION))

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(PINS),--constraint $(PINS))
STAMP := $(VENV)/.made-$(VERSION)

# LAPACK's own threads fight with those of the other workers: a factorisation that takes 0.03 s alone was seen to take 5 s.
export OPENBLAS_NUM_THREADS ?= 1

# Programs compiled by XLA are kept between runs and shared by the workers, the small ones too: most of the time of the tests goes into those.
export JAX_PLATFORMS ?= cpu
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.jax_cache
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help reproduce test test-all test-product fuzz kills lint format bench docs constraints clean python

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

reproduce: $(STAMP)-run ## run the claims of the sources, print what holds, write report/index.html
	@$(BIN)/pullback reproduce

test: lint ## format, lint, types, then the tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-all: lint ## the same with the slow tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not product"

test-product: $(STAMP)-dev ## every metric x solver x inverse x model: hours
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m product

kills: $(STAMP)-dev ## kill runs, damage their files, fill the disk; KILLS=50 FLIPS=10000
	KILLS=$(KILLS) FLIPS=$(FLIPS) $(BIN)/python -m pytest tests/fit/test_kills.py -m slow

fuzz: $(STAMP)-dev ## random problems against references in arbitrary precision (SEED=1 COUNT=2000; resumes)
	@$(BIN)/python -m tests.fuzz --seed $(or $(SEED),1) --count $(or $(COUNT),2000)

lint: $(STAMP)-dev ## format, lint and types only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(STAMP)-dev ## put the code in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)-dev ## time the natural gradient against its floor and its peers, write docs/benchmarks.md
	@$(BIN)/python -m bench

docs: $(STAMP)-docs ## build the documentation in site/ (needs no network once set up)
	$(BIN)/zensical build --clean --strict

constraints: python ## pin the newest versions that work together, for this Python
	@test -n "$(PINS)" || { echo "No file of pinned versions is kept for Python $(VERSION)."; exit 1; }
	rm -rf build/resolve && $(PYTHON) -m venv build/resolve
	build/resolve/bin/python -m pip install --quiet --disable-pip-version-check '.[lab,dev,docs]'
	{ sed '/^[^#]/d' $(PINS); build/resolve/bin/python -m pip freeze --exclude pullback; } > build/pins.txt && mv build/pins.txt $(PINS)

clean: ## remove everything made here, .venv too
	rm -rf $(VENV) bench/.venvs bench/results.json .jax_cache .pytest_cache .ruff_cache .hypothesis .cache build dist report site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

python:
	@test -n "$(VERSION)" || { echo "There is no '$(PYTHON)' here. Name one: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@test -n "$(RECENT)" || { echo "pullback needs Python 3.11 or newer; '$(PYTHON)' is $(VERSION). Name one: make PYTHON=python3.12 ..."; exit 1; }

$(STAMP)-run $(STAMP)-dev $(STAMP)-docs: $(STAMP)-%: pyproject.toml $(PINS) | python
	@echo "Setting up $(VENV) for Python $(VERSION) ($*): once, a minute or two."
	@$(BIN)/python -c 'import pip, sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(VERSION)")' 2>/dev/null \
		|| $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) --editable '.[$(EXTRAS_$*)]'
	@touch $@

EXTRAS_run := lab
EXTRAS_dev := lab,dev
EXTRAS_docs := docs
