# Every target is one line over the command `kata`. The first call sets up .venv by itself.
PYTHON ?= python3
IMPL ?= yours
impl ?= $(IMPL)
BIN := .venv/bin
# one draw of inputs for the suite, the same on every machine; `kata check --seeds N` tries others
SEED ?= 1122

.PHONY: kata test bench check fix scorecard setup clean help
.DEFAULT_GOAL := help

help:  ## what there is to do
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

setup: .venv/.ready  ## create .venv and install everything into it

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else "setup: expected Python 3.11 or newer, found %d.%d. Install one and run: make PYTHON=python3.12 ..." % v)'
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "setup: expected Python's venv module, found none. On Debian: apt-get install python3-venv"; exit 3; }
	@echo "Setting up .venv, once: 2 to 6 minutes, by network and disk, and 2 GB, most of it torch."
	@$(PYTHON) -m venv .venv
	@begin=$$(date +%s) && $(BIN)/python -m pip install --disable-pip-version-check \
		-c constraints.txt -e '.[dev]' && echo "Set up in $$(($$(date +%s) - begin)) s."
	@touch $@

.venv/.all: .venv/.ready
	@echo "Installing every extra, once: 1 to 3 minutes and 1 GB."
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,all]'
	@touch $@

kata: .venv/.ready  ## run one kata:  make kata name=vector_add [impl=solution]
	@$(BIN)/kata run $(name) --brief-once --install --impl $(impl)

test: .venv/.all  ## the whole suite: every kata's contract and kill matrix, then the harness's own tests
	@$(BIN)/kata check --all --seed $(SEED)
	@$(BIN)/python -m pytest tests -n auto

bench: .venv/.ready  ## speeds, as ratios within one run: never part of the tests
	@$(BIN)/python -m pytest tests/bench -p no:xdist --benchmark-columns=min,median,max,rounds

check: .venv/.ready  ## lint and types; writes nothing
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

fix: .venv/.ready  ## let ruff repair what it can
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

scorecard: .venv/.ready  ## what you own, what is due, what is next
	@$(BIN)/kata scorecard

clean:  ## remove .venv; your code and .kata/ stay
	rm -rf .venv
