# Everything a person types. `make run` and `make test` need only python3 (3.11 or newer) and make.
.DEFAULT_GOAL := help
.PHONY: help setup run test lint format bench interop matrix coverage explore simulate fuzz soak kills docs site clean

PYTHON ?= python3
UV := .uv/bin/uv
BIN := .venv/bin
BROKER := .venv/.broker
COMPLETE := .venv/.complete
WORKERS ?= 4
# What the native record walker is built from; without a compiler records are walked in Python.
NATIVE := hatch_build.py $(wildcard src/ottla/records/native/*.[ch])
# Of the tests, too, what is compiled is kept, whatever the shell says: each worker compiles them all.
export PYTHONDONTWRITEBYTECODE :=
SYNC := sync --locked --quiet --python $(PYTHON) --compile-bytecode --reinstall-package ottla

help: ## what there is to type
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(UV):
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "Ottla needs Python 3.11 or newer, %s is %d.%d; name another with make PYTHON=..." % (sys.executable, *v[:2]))'
	@echo "Getting uv ..."
	@$(PYTHON) -m venv .uv
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check uv

$(BROKER): pyproject.toml uv.lock $(NATIVE) | $(UV)
	@echo "Building the environment in .venv ..."
	@$(UV) $(SYNC) --inexact --no-dev
	@$(BIN)/python -m compileall -q src
	@$(BIN)/ottla tools link --force $(BIN) >/dev/null
	@touch $(BROKER)

$(COMPLETE): pyproject.toml uv.lock $(NATIVE) | $(UV)
	@echo "Building the environment in .venv, with Spark: about a minute the first time ..."
	@$(UV) $(SYNC) --all-extras
	@$(BIN)/python -m compileall -q src
	@$(BIN)/ottla tools link --force $(BIN) >/dev/null
	@touch $(COMPLETE) $(BROKER)

setup: $(COMPLETE) ## build .venv with everything, Spark too

run: $(BROKER) ## a broker in the foreground on 127.0.0.1:9092, its data in ./data
	@exec $(BIN)/ottla server start --listen 127.0.0.1:9092 --data-dir data --set group.initial.rebalance.delay.ms=0 --set metrics.listen=127.0.0.1:9308

test: lint ## everything: lint, then all tests in parallel
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

lint: setup ## ruff, mypy --strict, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## put the code into its one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Apache Kafka and Ottla side by side (needs java and mvn)
	$(BIN)/python -m bench $(ARGS)
	$(BIN)/python -m bench.spark
	$(BIN)/python -m bench.spark.connect
	$(BIN)/python -m bench.spark.avro --record

interop: setup ## Apache's Java clients and tools, kcat, other projects' own suites against Ottla (needs java and mvn)
	$(BIN)/python -m bench.interop $(ARGS)
	$(BIN)/python -m bench.spark.interop
	$(BIN)/python -m bench.spark.oldest

matrix: setup ## the tests on every Python from 3.11 up that is found; a run that was stopped goes on
	$(BIN)/python -m bench.matrix --workers $(WORKERS) $(ARGS)

coverage: setup ## what the unit tests reach of the modules without I/O, against a floor for each package
	$(BIN)/python -m bench.covered

explore: setup ## the property tests with other examples than `make test` has
	$(BIN)/pytest -n $(WORKERS) --hypothesis-profile search tests/property

simulate: setup ## 10,000 simulated clusters with three to five brokers, checked after every step: about 100 minutes of one core
	$(BIN)/python tests/simulation/run.py --seeds 0-9999 $(ARGS)

fuzz: setup ## mutated frames against a broker until stopped
	$(BIN)/python tests/fuzz/run.py $(ARGS)

soak: setup ## break a cluster of three brokers under load until stopped, and judge what clients saw
	$(BIN)/ottla verify cluster $(ARGS)

kills: setup ## kill what three pipelines run on, 210 times while 10 million records pass, and count; a run that was stopped goes on
	$(BIN)/python tests/pipelines/kill_run.py .cache/kills $(ARGS)

docs: setup ## write the generated reference pages anew
	$(BIN)/python -m ottla.cli.reference docs/reference
	$(BIN)/python -m ottla.pipelines.reference docs/spark.md
	$(BIN)/python -m ottla.pipelines.connectors.reference docs/pipelines

site: setup ## all of the documentation as one searchable site in .cache/site
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky --conf-dir docs/site --doctree-dir .cache/site-state . .cache/site
	@echo "open .cache/site/index.html, or: $(BIN)/python -m http.server --directory .cache/site 8000 --bind 127.0.0.1"

clean: ## remove what was built; the data folder stays
	rm -rf .venv .uv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
