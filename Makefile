# make setup   .venv with all that the demo and the examples need
# make demo    tune the example on images, in less than two minutes after the set-up
# make test    every check: style, types, contracts, all tests
# make check   the fast part of it
# make thorough   all of it and the many that are alike: some minutes more
# make cluster    the tests that start the daemons of a cluster: Slurm, sshd and others, where installed
# make docs    the screens, pictures and tables in docs/
# make site    the documentation as a site, into site/, with the pages made from the code
# make dist    wheel and sdist, into dist/
# make bench   the measured claims, one after the other; see benchmarks/
# make gpu-wheels   what benchmarks/gpu.sh may lack on a machine without network, into .gpu-wheels

PYTHON ?= python3
ifeq ($(OS),Windows_NT)
BIN := .venv/Scripts
else
BIN := .venv/bin
endif
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input
BUDGET ?= 100s
PLATFORMS ?= linux win32 darwin
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

.PHONY: setup demo test check thorough cluster lint types docs site dist bench gpu-wheels clean

setup: .venv/.for-demo

demo: setup
	$(BIN)/flatout tune --budget $(BUDGET) examples/images/train.py

# Most tests wait for a program that imports torch: several side by side, one thread each.
test check thorough: export OMP_NUM_THREADS = 1
# Where this is set, each process compiles its modules anew: a fifth of the time of the quick tests.
test check thorough: export PYTHONDONTWRITEBYTECODE =

test: lint types
	$(PYTEST) -m "not thorough"

check: lint types
	$(PYTEST) -m "not slow and not thorough"

thorough: lint types
	$(PYTEST) --hypothesis-profile random

lint: .venv/.for-development
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	@find src -name '*.py' | xargs wc -l | awk '$$1 > 400 && $$2 != "total" \
	  { print "warning: " $$2 " has " $$1 " lines: is it one thing?" }'
	@$(BIN)/python tests/law/long_functions.py

# One cache per platform: with a common one each run would throw the others' results away. All of
# them at once: each is one thread.
types: .venv/.for-development
	running=; for platform in $(PLATFORMS); do \
	  $(BIN)/mypy --platform $$platform --cache-dir .mypy_cache/$$platform & running="$$running $$!"; \
	done; failed=0; for process in $$running; do wait $$process || failed=1; done; exit $$failed

# One after the other: each test of a cluster starts several processes that train.
cluster: export OMP_NUM_THREADS = 1
cluster: .venv/.for-cluster
	$(BIN)/python -m pytest -m cluster

docs: .venv/.for-development
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/screens.py
	$(BIN)/python docs/recording.py
	$(BIN)/python docs/drawing.py

# Nothing on it is fetched from elsewhere; its search needs a server: python -m http.server -d site
# Not --quiet: that hides broken links even from mkdocs' strict mode.
site: .venv/.for-site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean

dist: .venv/.for-dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*

bench: .venv/.for-development
	set -e; for file in benchmarks/*.py; do \
	  case $$file in */record.py|*/tuning.py|*/step_clock.py|*/olive_build.py|*/gpu*.py|*/mangling.py) ;; *) $(BIN)/python $$file ;; esac; done

# For Python 3.12 on Linux, without what they need: typer's is named as well, torch's is there.
GPU_PACKAGES := google-re2 msgspec tomlkit typer click rich shellingham markdown-it-py mdurl \
	pygments annotated-doc jinja2 markupsafe nvidia-ml-py psutil packaging \
	pytest pytest-timeout pluggy iniconfig hypothesis sortedcontainers
GPU_PLATFORMS := $(foreach version,2_28 2_27 2_26 2_24 2_17,--platform manylinux_$(version)_x86_64) \
	--platform manylinux2014_x86_64 --platform manylinux2010_x86_64

gpu-wheels: .venv/.for-development
	$(PIP) download -c constraints.txt --no-deps --only-binary=:all: --python-version 3.12 \
	  --implementation cp $(GPU_PLATFORMS) --dest .gpu-wheels $(GPU_PACKAGES)

clean:
	rm -rf .venv dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "flatout needs Python 3.11 or newer; name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "this Python has no venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# The pip that comes with Python 3.11 does not know dependency groups.
.venv/.with-pip: constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt pip
	@touch $@

.venv/.for-demo: pyproject.toml .venv/.with-pip
	$(PIP) install -c constraints.txt -e ".[torch]" --group demo
	@touch $@

.venv/.for-development: .venv/.for-demo
	$(PIP) install -c constraints.txt -e ".[torch]" --group demo --group dev --group dist
	@touch $@

# Too large for every run of the tests.
.venv/.for-cluster: .venv/.for-development
	$(PIP) install -c constraints.txt --group cluster
	@touch $@

# These two need nothing of the above, and no torch. Pages are made from the code, as it is here.
.venv/.for-site: pyproject.toml .venv/.with-pip
	$(PIP) install -c constraints.txt -e . --group site
	@touch $@

.venv/.for-dist: pyproject.toml .venv/.with-pip
	$(PIP) install -c constraints.txt --group dist
	@touch $@
