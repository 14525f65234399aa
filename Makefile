# Everything a checkout needs; each target sets up the virtual environment first.
#   make demo       Split MNIST: fine-tuning, ER and ER+GMED over 20 seeds
#   make test       the tests
#   make test-fast  the quick ones among them, about a minute
#   make coverage   the quick ones, and how much of the package they run
#   make docs       the documentation as a site, build/site/index.html
PYTHON ?= python3
BIN := .venv/bin
FAST := tests -m "not slow and not browser and not docs and not gpu" --numprocesses auto

.PHONY: demo test test-fast coverage lint docs package clean-install clean
.DEFAULT_GOAL := demo

demo: .venv/ready
	$(BIN)/gmed run split-mnist finetune er er+gmed --seeds 20

test: .venv/ready
	$(BIN)/python -m pytest --numprocesses auto

test-fast: .venv/ready
	$(BIN)/python -m pytest $(FAST) -q

# On its own, because tracing makes the tests take two thirds longer.
coverage: .venv/ready
	$(BIN)/python -m pytest $(FAST) -q --cov=gmed --cov-report=term:skip-covered

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Without --quiet, which would hide warnings from --strict too.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

package: .venv/ready
	rm -f dist/gmed-*
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build -d dist
	@$(BIN)/python -c 'import hashlib, sys; [print(hashlib.sha256(open(name, "rb").read()).hexdigest(), name) for name in sys.argv[1:]]' dist/gmed-*

# The wheel in an environment of its own, with the dependencies it asks for and no extra.
clean-install: package
	rm -rf build/clean
	$(PYTHON) -m venv build/clean
	build/clean/bin/pip install --quiet --constraint constraints.txt dist/gmed-*.whl
	cd build/clean && ! bin/python -c 'import sklearn' 2>/dev/null && bin/python -I -c 'import gmed, gmed.cli'
	cd build/clean && bin/gmed doctor --store clean.db
	cd build/clean && bin/gmed run split-mnist er er+gmed --seeds 1 --store clean.db

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gmed needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv dist build
