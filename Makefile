# `make sample` and `make test` work in a fresh clone. They need Python 3.11 or newer and a package registry, install
# everything inside the clone, and install it again only after a change of pyproject.toml, install_gpu.sh or this file.
PYTHON ?= python3
SIZE ?= 10_000_000
OUT ?= samples.npy
# With `worksteal`, each process starts with consecutive tests, which share compiled programs, and then helps others.
PYTEST = -m pytest -q -n logical --maxprocesses 4 --dist worksteal
# The newest Python that starts, if it is not $(PYTHON). pyenv starts only versions that are named.
REALPATH = -c 'import ensurepip, os, sys; print(os.path.realpath(sys.executable))' 2>/dev/null
NEWEST := $(filter-out $(shell $(PYTHON) $(REALPATH)),$(shell \
  for minor in 13 12; do PYENV_VERSION=3.$$minor python3.$$minor $(REALPATH) && break; done))
OLDEST_JAX := $(shell sed -n 's/.*"jax>=\([0-9.]*\)".*/\1/p' pyproject.toml)
# Versions of what the tests need; none with CONSTRAINTS=, for the newest.
CONSTRAINTS = tests/constraints.txt
# What may depend on the release of JAX, besides draws and densities of every class: words, derivatives, sharding,
# workarounds for the compiler, streams, the runtime and NumPyro.
SMOKE = tests/sampling/test_counter.py tests/sampling/test_gradients.py tests/sampling/test_sharded.py \
  tests/numerics/test_xla.py tests/streams/test_writer.py tests/streams/test_batches.py tests/runtime \
  tests/distributions/test_numpyro.py
# Tests whose result may differ with one CPU device, as most users have; all tests run with eight.
ONE_DEVICE = tests/test_modes.py "tests/numerics/test_xla.py::test_meshes_keep_their_shapes[AxisType.Explicit]"
# tools/gpu_programs.json holds the results of this release.
GPU_JAX = 0.12.0.1
.PHONY: help sample test test-more test-versions test-budget test-jax test-whole test-kernels test-gpu test-gpu-programs \
  exactness guard lint docs pages docs-code install-tests clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1: /p' Makefile

sample: .venv/installed ## draw SIZE angles into the file OUT, on the GPU if there is one
	.venv/bin/jax-von-mises sample --concentration 4 --size $(SIZE) --out $(OUT) --resume

test: .venv-test/installed ## run the tests of everything that the package does: seven minutes on two cores
	.venv-test/bin/python $(PYTEST)
test-more: .venv-test/installed ## run the other tests, of further cases, dtypes and examples: 12 to 18 minutes
	.venv-test/bin/python $(PYTEST) -m "more and not slow and not jax"
	CPU_DEVICES=1 .venv-test/bin/python $(PYTEST) -m "not slow and not gpu and not jax" $(ONE_DEVICE)
test-versions: ## run a few tests on the oldest JAX, and on the newest JAX and Python
	@$(MAKE) --no-print-directory -j2 .venv-oldest/installed $(if $(NEWEST),.venv-newest/installed)
	$(if $(NEWEST),,@echo "no other Python 3.12 or 3.13 starts than $(PYTHON)")
	for version in oldest $(if $(NEWEST),newest); do \
	  .venv-$$version/bin/python $(PYTEST) -m "" tests/test_versions.py && .venv-$$version/bin/python $(PYTEST) $(SMOKE) || exit 1; done
test-budget: .venv-test/installed ## run `make test` without compiled programs; fail if a test takes more than 5 s of CPU time
	.venv-test/bin/python $(PYTEST) --cache-clear --budget
test-jax: install-tests ## run the tests of JAX's own behaviour, on which the package relies
	.venv-test/bin/python $(PYTEST) -m jax
	$(if $(NEWEST),.venv-newest/bin/python $(PYTEST) -m jax)
test-whole: install-tests ## run all tests on each Python and JAX: hours
	for version in oldest test $(if $(NEWEST),newest); do \
	  .venv-$$version/bin/python $(PYTEST) -m "not kernels and not gpu" || exit 1; done
	CPU_DEVICES=1 .venv-test/bin/python $(PYTEST) -m "not kernels and not gpu" $(ONE_DEVICE)

test-kernels: .venv-test/installed ## execute the CUDA kernels on the CPU, and compare their angles with XLA's
	.venv-test/bin/python $(PYTEST) -m kernels tests/sampling/test_kernels.py
test-gpu: ## install for an NVIDIA GPU, and test draws, functions and kernels on it
	PYTHON="$(PYTHON)" ./install_gpu.sh --extras bench,dask,examples,storage --venv .venv-test-gpu
	.venv-test-gpu/bin/python -m pip install -q --upgrade "pip>=25.1"
	.venv-test-gpu/bin/python -m pip install -q --group test
	JAX_PLATFORMS=cuda,cpu XLA_PYTHON_CLIENT_PREALLOCATE=false .venv-test-gpu/bin/python -m pytest -q -m gpu tests/test_gpu.py
test-gpu-programs: .venv-gpu-programs/installed ## compile draws for an H100 without one, and check their cost
	.venv-gpu-programs/bin/python -m pip install -q --no-deps jax-cuda13-plugin==$(GPU_JAX) jax-cuda13-pjrt==$(GPU_JAX)
	.venv-gpu-programs/bin/python -m tools.gpu_programs --check
exactness: .venv-test/installed ## compare millions of angles with their distribution
	.venv-test/bin/python -m benchmarks.exactness --quick
guard: ## compare the version of the committed results with the package's; GUARD=--strict fails
	@$(PYTHON) -m benchmarks.guard $(GUARD)
lint: .venv-lint/installed ## check style, types, layers, the install script and what the pages refer to
	.venv-lint/bin/ruff check
	.venv-lint/bin/ruff format --check
	.venv-lint/bin/mypy
	.venv-lint/bin/lint-imports
	.venv-lint/bin/shellcheck install_gpu.sh
	.venv-lint/bin/python -m tools.check_pages

docs: .venv-docs/installed ## build the documentation into docs/_build
	.venv-docs/bin/python -m sphinx -W --keep-going docs docs/_build
pages: .venv-docs/installed ## update the tables and outputs on the pages, and run the examples: three minutes
	.venv-docs/bin/python -m docs.pages --examples
docs-code: .venv-test/installed ## run the code of the pages and docstrings that `make test` leaves out
	.venv-test/bin/python $(PYTEST) -m slow tests/docs/test_docs.py
clean: ## remove the environments and the output of the tools
	rm -rf .venv .venv-* docs/_build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

install-tests: .venv-test/installed .venv-oldest/installed $(if $(NEWEST),.venv-newest/installed)

.venv-test/installed .venv-oldest/installed .venv-newest/installed: $(CONSTRAINTS)
.venv-test/installed .venv-oldest/installed .venv-newest/installed: WHAT = \
  -e ".[bench,dask,examples,storage]" --group test $(PINNED:%=-c %)
.venv-test/installed .venv-newest/installed: PINNED = $(CONSTRAINTS)
.venv-oldest/installed: PINNED = $(CONSTRAINTS:%=.venv-oldest-constraints.txt)
.venv-oldest/installed: WHAT += jax==$(OLDEST_JAX) jaxlib==$(OLDEST_JAX)
.venv-oldest/installed: $(CONSTRAINTS:%=.venv-oldest-constraints.txt)
.venv-oldest-constraints.txt: $(CONSTRAINTS)
	@sed '/^jax/d' $< > $@
.venv-newest/installed .venv-gpu-programs/installed: override PYTHON := $(or $(NEWEST),$(PYTHON))
.venv-docs/installed: WHAT = -e ".[bench,dask,examples]" --group docs
.venv-lint/installed: WHAT = -e . --group lint
.venv-bench/installed: WHAT = -e ".[bench]"
.venv-gpu-programs/installed: WHAT = -e . jax==$(GPU_JAX) jaxlib==$(GPU_JAX)

# Dependency groups need a newer pip than many Pythons have.
.venv-%/installed: pyproject.toml Makefile
	@echo "installing into $(@D)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' && $(PYTHON) -m venv --clear $(@D) || \
	  { echo "make: $(PYTHON) is missing, older than 3.11 or without venv; name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(@D)/bin/python -m pip install -q --upgrade "pip>=25.1"
	@$(@D)/bin/python -m pip install -qq --no-compile $(WHAT)
	@touch $@

.venv/installed: pyproject.toml Makefile install_gpu.sh
	@PYTHON="$(PYTHON)" ./install_gpu.sh --venv .venv
	@touch $@
