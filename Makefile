# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/ready

.PHONY: demo test check format clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "autotune needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

# Tunes layers of BERT base for two minutes, then looks one up and times it.
demo: $(READY)
	$(VENV)/bin/python scripts/demo.py

# Everything that must hold: tests, then style and types.
test: $(READY)
	$(VENV)/bin/python -m pytest -n 2
	$(MAKE) --no-print-directory check

check: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
