# make sandbox | test | soak | lint | bench | manifests | package   (each makes the virtual environment first, and installs what is missing)
PYTHON ?= python3
BIN := .venv/bin
AT_A_TIME := --numprocesses=3
.DEFAULT_GOAL := help
.PHONY: help sandbox test soak lint bench generate docs tour screenshots manifests package image clean

help:
	@echo "make sandbox   a whole cluster on loopback: this machine and seven simulated nodes, tainter, live table"
	@echo "make test      all tests, the cluster ones on a real API server"
	@echo "make soak      2000 random examples of each state machine, then 500 IPUJobs under ten minutes of random faults;"
	@echo "               ARGS=\"--examples 100 --jobs 50 --minutes 1 --seed N\""
	@echo "make lint      ruff, mypy, import-linter, yamllint: silent when fine"
	@echo "make bench     kernel line to taint, an agent idle and under load, a fleet; ARGS=\"--only idle --window 600\""
	@echo "make image IMAGE=NAME TAG=TAG   Muster's image, by docker or podman"
	@echo "make manifests the chart as plain YAML in build/manifests; ARGS=\"-f values.yaml --kube-version 1.30\""
	@echo "make package   build/muster-vX.Y.Z: CRDs, docs, chart, image, wheel, SHA256SUMS; needs no docker"
	@echo "make generate  reference pages, dashboards, and the CRD of IPUJobs, made from the code"
	@echo "make docs      all pages as HTML in build/docs/html, with menu and search; fails on a dead link"
	@echo "make tour      docs/tour.md: types its commands beside a sandbox and writes down what they print"
	@echo "make screenshots  docs/*.png: the fleet page, and the dashboards, by Debian's chromium"

sandbox: .venv/installed
	@$(BIN)/python -m muster_sandbox
	@$(BIN)/muster sandbox $(ARGS)

# three files at a time, the longest first, and before them, alone, what measures; the checks' own tests are held to 95 % of their branches.
# ARGS="tests/… -k …" runs some tests, one at a time and without that
test: .venv/installed
	@$(BIN)/python -m tests.machine test
	@$(BIN)/python -m muster_sandbox --node
ifdef ARGS
	@$(BIN)/python -m pytest $(ARGS)
else
	@begun=$$(date +%s); failed=0; \
	$(BIN)/python -m pytest tests/agent -m alone || failed=1; \
	$(BIN)/python -m pytest $(AT_A_TIME) -m "not alone" --durations=10 --cov --cov-report= --cov-fail-under=95 || failed=1; \
	echo "make test: $$(($$(date +%s) - begun)) s"; exit $$failed
endif

soak: .venv/installed
	@$(BIN)/python -m muster_sandbox
	@$(BIN)/python tests/soak/run.py $(ARGS)

bench: .venv/installed
	@$(BIN)/python -m muster_sandbox
	@$(BIN)/python tests/bench/run.py $(ARGS)

lint: .venv/installed
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports > .venv/lint-imports.log 2>&1 || { cat .venv/lint-imports.log; exit 1; }
	@$(BIN)/yamllint --strict .
	@$(BIN)/python docs/generate.py --check
	@$(BIN)/python tests/wording/assertions.py

generate: .venv/installed
	@$(BIN)/python docs/generate.py

docs: .venv/installed
	@$(BIN)/python docs/pages.py
	@echo build/docs/html/README.html

tour: .venv/installed
	@$(BIN)/python -m tests.machine tour
	@$(BIN)/python -m muster_sandbox
	@$(BIN)/python tests/cluster/commands/tour.py

screenshots: .venv/installed
	@$(BIN)/python -m tests.machine screenshots
	@$(BIN)/python tests/browser/screenshots.py
	@$(BIN)/python tests/browser/dashboard_pictures.py

manifests: .venv/installed
	@$(BIN)/python -m release.manifests $(ARGS)

package: .venv/installed
	@$(BIN)/python -m release.package

image:
	@sh release/image.sh "$(IMAGE)" "$(TAG)"

# the marker is newer than both lists, so an edited dependency installs itself at the next make
.venv/installed: pyproject.toml constraints.txt
	@PYTHON=$(PYTHON) sh tests/environment.sh
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info
