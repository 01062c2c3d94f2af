# The two commands of the README are `make sim` and `make test`; each installs what it needs into .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SCENARIO ?= scenarios/three_tenants.yaml

export OMP_WAIT_POLICY := passive

.PHONY: install sim test check tidy night report publish clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

sim: install
	$(BIN)/python -m sim.run $(SCENARIO)

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

tidy: install
	$(BIN)/python -m tests.tidy

night: install
	MOLT_HYPOTHESIS=night $(BIN)/python -m pytest --timeout 3600

report: install
	@test -n "$(RUN)" || { echo "say which run: make report RUN=runs/<folder>" >&2; exit 2; }
	$(BIN)/molt report $(RUN)

publish: install
	rm -rf build/published
	for name in spike_mid_answer three_tenants; do \
		$(BIN)/python -m sim.run scenarios/$$name.yaml --out build/published/$$name || exit 1; \
	done
	$(BIN)/python -m reports.publish build/published/*
	$(BIN)/python -m reports.results_page

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
