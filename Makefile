# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv first; nothing else is needed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check up bench chaos compat bench-api bench-backfill bench-claim bench-engine bench-queue set-up clean

demo: $(READY)
	$(BIN)/genmill demo

TEST_PROCESSES ?= 2

test: $(READY)
	$(BIN)/python -m pytest -m "alone or gpu"
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile -m "not (alone or gpu)"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

up: $(READY)
	$(BIN)/genmill up

BENCHMARKS := $(filter-out __init__ api api_% backfill constant gpu_% noop queue_peers claim_scale engine servers swaps traffic publish_% report,$(basename $(notdir $(wildcard bench/*.py))))

bench: $(READY)
	@mkdir -p out/bench
	$(foreach name,$(BENCHMARKS),$(BIN)/python -m bench.$(name) --quick --out out/bench/$(name).json &&) true

chaos: $(READY)
	$(BIN)/python -m tests.chaos

compat: $(READY)
	$(BIN)/python -m tests.compat

bench-api: $(READY)
	$(BIN)/python -m bench.api

bench-backfill: $(READY)
	$(BIN)/python -m bench.backfill

bench-claim: $(READY)
	$(BIN)/python -m bench.claim_scale

bench-engine: $(READY)
	$(BIN)/python -m bench.engine

bench-queue: $(READY)
	$(BIN)/python -m bench.queue_peers

set-up: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "genmill needs Python 3.11 or newer; set PYTHON=")'
	@echo "setting up .venv; the first time this takes some minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[worker,embedded,test]"
	@touch $@

clean:
	rm -rf .venv out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
