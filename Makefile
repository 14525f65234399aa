# Everything a checkout needs; each target sets up the virtual environment first.
#   make demo    Split MNIST: fine-tuning, ER and ER+GMED over 20 seeds
#   make test    the tests
#   make docs    the documentation as a site, build/site/index.html
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint docs package clean
.DEFAULT_GOAL := demo

demo: .venv/ready
	$(BIN)/gmed run split-mnist finetune er er+gmed --seeds 20

test: .venv/ready
	$(BIN)/python -m pytest --numprocesses auto

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

package: .venv/ready
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python -m zipfile --list dist/gmed-*.whl | grep -E 'idx|py.typed|NOTICE|LICENSE|published|schema|templates'

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gmed needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv dist build
