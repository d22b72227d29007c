# Each target does its own set-up: Java, .venv and packages (see scripts/setup), again only when pyproject.toml changes.
READY := .venv/ready
BIN := .venv/bin
# Tests that ask tests/conftest.py how often they do what they do.
OFTEN = $(shell grep -rlE --include='test_*.py' '^from conftest import .*(combined|in_turn|times|profile|by_night)' tests)

.DEFAULT_GOAL := help
.PHONY: help demo solar test quick check nightly fuzz figures docs site sim lock audit dist clean

help:  ## This list.
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

$(READY): pyproject.toml requirements.lock tests/clients.lock tests/tools.lock scripts/site/packages.lock scripts/setup
	@scripts/setup

demo: $(READY)  ## A year of flights through four streams, checked against batch answers.
	@$(BIN)/python -m examples.flights $(ARGS)

solar: $(READY)  ## Two weeks of solar trackers through four streams, checked in the same way.
	@$(BIN)/python -m examples.solar $(ARGS)

test: $(READY)  ## All tests, in about a quarter of an hour on two cores.
	@scripts/run_tests $(ARGS)

quick: $(READY)  ## Most tests of every part, in about a minute: none that needs Spark, patience or is long.
	$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "not spark and not slow and not long" $(ARGS)

check: $(READY)  ## Style and types.
	$(BIN)/ruff check .
	$(BIN)/mypy

nightly: $(READY)  ## What tests do many times over, more often: 20,000 random streams, all kills and power cuts; hours. Plays DuckDB's tests, too, if DUCKDB names a clone of it.
	TEST_PROFILE=nightly $(BIN)/python -m pytest -q -s $(OFTEN) $(ARGS)
	PYTHONPATH=tests $(BIN)/python -m programs.random_views --views 20000
	PYTHONPATH=tests $(BIN)/python -m programs.random_triggers --streams 5000
	PYTHONPATH=tests $(BIN)/python -m programs.lateness_runs --rows 2000000
	PYTHONPATH=tests $(BIN)/python -m programs.many_streams --streams 1000
	$(if $(DUCKDB),PYTHONPATH=tests $(BIN)/python -m programs.duckdb_tests $(DUCKDB)/test/sql)

fuzz: $(READY)  ## Damaged and made-up statements for MINUTES (10) minutes.
	PYTHONPATH=tests $(BIN)/python -m programs.fuzz --minutes $(or $(MINUTES),10) $(ARGS)

figures: $(READY)  ## Measures what docs/performance.md has, in a quarter of an hour, and writes it; with Flink if FLINK_PYTHON names a Python that has it.
	$(BIN)/python -m bench.pages $(if $(FLINK_PYTHON),--flink-python $(FLINK_PYTHON)) $(ARGS)

site: $(READY)  ## The documentation as web pages, in build/site.
	@scripts/make_site $(ARGS)

sim: $(READY)  ## Simulated histories of the whole system with faults: SEEDS (2000) of them, on all cores.
	PYTHONPATH=tests $(BIN)/python -m simulation --seeds $(or $(SEEDS),2000) $(ARGS)
	PYTHONPATH=tests $(BIN)/python -m simulation.nodes --seeds $(or $(SEEDS),2000)

docs: $(READY)  ## Writes the list of DuckDB's functions, and the generated parts of the documentation.
	$(BIN)/python scripts/write_duckdb_functions.py
	$(BIN)/python scripts/write_docs.py

lock: $(READY)  ## Writes requirements.lock, tests/clients.lock, tests/tools.lock, scripts/site/packages.lock and deploy/packages.lock: packages to set up with, and hashes, for all Pythons and machines.
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--extra dev --extra demo --output-file requirements.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--no-emit-package pyarrow --no-emit-package setuptools --output-file tests/clients.lock tests/clients.in
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		$(foreach name,duckdb grpcio numpy pandas pyarrow setuptools sqlalchemy sqlglot,--no-emit-package $(name)) \
		--output-file tests/tools.lock tests/tools.in
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--output-file scripts/site/packages.lock scripts/site/packages.in
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--constraint requirements.lock --extra backup --extra cluster --extra connections --extra sqlalchemy \
		--output-file deploy/packages.lock pyproject.toml

audit: $(READY)  ## Asks the package registry for known vulnerabilities of what requirements.lock names.
	$(BIN)/uv tool run 'pip-audit>=2.9,<3' --disable-pip --require-hashes --requirement requirements.lock

dist: $(READY)  ## The wheel and the source distribution, in dist/ (see docs/releases.md).
	rm -rf dist
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist

clean:  ## Removes what the other targets have made.
	rm -rf .venv .demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
