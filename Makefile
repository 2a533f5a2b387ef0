# Two commands are all the set-up there is:  make demo  and  make test.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint types pytest soak docs install clean

demo: install
	$(BIN)/selfens demo

test: lint types pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# Two processes of one thread each share the test files: on two cores, more threads slow each other down. Tests that measure
# time run afterward, alone.
pytest: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -q -m alone

# Random kills, damaged files, full disks, two processes on one run: half an hour on two idle cores, and not part of `make test`.
# A soak that was stopped continues where it was; one in full writes results/soak.json.
KILLS ?= 300
FILES ?= 20000
PAIRS ?= 120
JOBS  ?= 2
soak: install
	$(BIN)/python -m tests.soak --kills $(KILLS) --files $(FILES) --pairs $(PAIRS) --jobs $(JOBS)

# The page of all options, from the code.
docs: install
	$(BIN)/python docs/make_options.py

install: $(VENV)/.installed

# Reinstalled only when what is installed changes; exact tested versions come from constraints.txt.
$(VENV)/.installed: pyproject.toml constraints.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
