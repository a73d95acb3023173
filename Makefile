# make sandbox | test | soak | explore | chaos | mutation | lint | bench | manifests | package | lock | audit   (each first creates .venv and installs what is missing)
PYTHON ?= python3
BIN := .venv/bin
AT_A_TIME := --numprocesses=4
.DEFAULT_GOAL := help
# where it is set, each of the hundreds of processes that tests start compiles all our modules anew
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help sandbox test soak explore chaos mutation lint bench generate docs tour screenshots manifests package image lock audit clean

help:
	@echo "make sandbox   runs a cluster on loopback, with this machine and seven simulated nodes, and shows a live table"
	@echo "make test      runs all tests; ARGS=\"tests/tainter -k NAME\" runs some"
	@echo "make soak      runs 2000 random examples of each state machine, then 500 IPUJobs under ten minutes of random faults;"
	@echo "               ARGS=\"--examples 100 --jobs 50 --minutes 1 --seed N\""
	@echo "make explore   runs tainter, agent, operator and proxy in every order of events, in small worlds, for ten minutes;"
	@echo "               ARGS=\"--scope tainter/takeover --seconds 60\""
	@echo "make chaos     breaks everything around Muster for MINUTES=10, with NODES=2000 simulated nodes and JOBS=200 IPUJobs,"
	@echo "               and judges Muster by the API server's audit log; SEED=N repeats a schedule; takes root"
	@echo "make mutation  changes the code of the pure modules, one place at a time, and names the changes that no unit test"
	@echo "               notices; downloads cosmic-ray; ARGS=\"budgets --sample 10 --seed N\""
	@echo "make lint      runs ruff, mypy, import-linter and yamllint; prints nothing if all is well"
	@echo "make bench     measures the time from kernel line to taint, and the cost of each part; ARGS=\"--only idle --window 600\""
	@echo "make image IMAGE=NAME TAG=TAG   builds Muster's image with docker or podman; BASE=IMAGE: on another base"
	@echo "make manifests writes the chart as plain YAML to build/manifests; ARGS=\"-f values.yaml --kube-version 1.30\""
	@echo "make package   writes CRDs, docs, chart, image, SBOM, wheel and SHA256SUMS to build/muster-vX.Y.Z and .tar.gz; needs no docker"
	@echo "make lock      writes versions and hashes of all Python packages to requirements/; ARGS=--upgrade takes the newest"
	@echo "make audit     asks for known vulnerabilities of the Python packages; Error 2: found some, Error 3: no answer"
	@echo "make generate  generates reference pages, dashboards and the CRD of IPUJobs from the code"
	@echo "make docs      builds all pages as HTML in build/docs/html, with menu and search; fails on a dead link"
	@echo "make tour      types the commands of docs/tour.md beside a sandbox and writes their output into the page"
	@echo "make screenshots  takes docs/*.png of the fleet page and the dashboards, with Debian's chromium"

sandbox: .venv/installed
	@$(BIN)/python -m muster_sandbox
	@$(BIN)/muster sandbox $(ARGS)

# Tests that measure run first and alone. Then integration tests run four files at a time, the longest first; meanwhile one process
# runs those that compute, and another one those that only wait or are costly to collect, and then the tests of checks, which must
# cover 95 % of the branches. All three end at about the same time.
# ARGS="tests/… -k …" runs some tests one at a time, without coverage.
test: .venv/installed
	@$(BIN)/python -m tests.machine test
	@$(BIN)/python -m muster_sandbox --node
ifdef ARGS
	@$(BIN)/python -m pytest $(ARGS)
else
	@begun=$$(date +%s); failed=0; \
	$(BIN)/python -m pytest -m alone || failed=1; \
	{ waited=0; \
	  $(BIN)/python -m pytest -m beside || waited=1; \
	  $(BIN)/python -m pytest tests/checks -m "not integration and not alone and not beside" --durations=10 \
	    --cov --cov-report= --cov-fail-under=95 || waited=1; \
	  exit $$waited; } > .venv/beside.log 2>&1 & beside=$$!; \
	$(BIN)/python -m pytest --ignore=tests/checks -m "not integration and not alone and not beside" --durations=10 \
	  > .venv/others.log 2>&1 & others=$$!; \
	$(BIN)/python -m pytest $(AT_A_TIME) -m "integration and not alone and not beside" --durations=10 || failed=1; \
	wait $$others || failed=1; cat .venv/others.log; \
	wait $$beside || failed=1; cat .venv/beside.log; \
	echo "make test: $$(($$(date +%s) - begun)) s"; exit $$failed
endif

soak: .venv/installed
	@$(BIN)/python -m muster_sandbox
	@$(BIN)/python tests/soak/run.py $(ARGS)

explore: .venv/installed
	@$(BIN)/python -m tests.explore.run $(ARGS)

chaos: .venv/installed
	@$(BIN)/python -m tests.machine chaos
	@$(BIN)/python -m muster_sandbox
	@$(BIN)/python tests/chaos/run.py $(foreach name,SEED MINUTES NODES JOBS,$(if $($(name)),--$(name)=$($(name))))

mutation: .venv/installed build/mutation
	@$(BIN)/python -m tests.mutation.run $(ARGS)

build/mutation:
	@$(BIN)/python -m pip install --quiet --target $@ --require-hashes --no-deps --requirement requirements/mutation.txt

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

lock: .venv/installed
	@[ -x .venv/lock/bin/uv ] || $(BIN)/python -m venv .venv/lock
	@.venv/lock/bin/python -m pip install --quiet --only-binary=:all: --require-hashes --no-deps --requirement requirements/lock.txt
	@$(BIN)/python -m release.lock $(ARGS)

audit: .venv/installed
	@$(BIN)/python -m release.audit $(ARGS)

image:
	@sh release/image.sh "$(IMAGE)" "$(TAG)" "$(BASE)"

# the marker file is older than an edited list of dependencies, so the next make installs them
.venv/installed: pyproject.toml requirements/environment.txt requirements/older-schemas.txt
	@PYTHON=$(PYTHON) sh tests/environment.sh
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info
