# `make sample` and `make test` work in a fresh clone. They need Python 3.11 or newer, make and a package registry. They
# install everything inside the clone, and install it again only after a change of setup.cfg, pyproject.toml or this
# file, or, for `make sample`, of install_gpu.sh.

PYTHON ?= python3
SIZE ?= 10_000_000
OUT ?= samples.npy
# Arguments for pytest, such as TESTS="tests/cli/test_commands.py -k force".
TESTS ?= tests
# Arguments for the guard, such as GUARD="--json result.json".
GUARD ?=
# A smoke test on the newest Python and JAX: random words, gradients, workarounds for the compiler, and programs that
# draw by a CUDA kernel.
NEWEST_TESTS ?= tests/sampling/test_counter.py tests/sampling/test_gradients.py tests/numerics/test_xla.py \
  tests/sampling/test_cuda.py
NEWEST_MARKS ?= not slow and not kernels and not gpu
# Tests that also run with one CPU device, where results can differ; all tests run with eight.
ONE_DEVICE_TESTS ?= tests/test_modes.py "tests/numerics/test_xla.py::test_meshes_keep_their_shapes[AxisType.Explicit]"
# The release of JAX that compiles draws for a GPU on a machine without one. tools/gpu_programs.json holds its results.
# The release is fixed, so a new one does not change them.
GPU_JAX ?= 0.12.0.1
# The command that runs if a check for a GPU is impossible here; `false` makes that an error.
GPU_SKIP ?= true
# Number of test processes: at most four, and one per core, since each compiles its own programs. With `worksteal`, each
# process starts with consecutive tests, which share compiled programs, and later takes over tests from slower ones.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(min(4, os.cpu_count() or 1))')
PYTEST = -m pytest -q -n $(JOBS) --dist worksteal
# Compiling all installed modules takes long, and the tests import few of them.
PIP = -m pip install -q --no-compile

PACKAGING = setup.cfg pyproject.toml Makefile
SHELL = /bin/sh
.DELETE_ON_ERROR:
.PHONY: help sample test test-whole test-oldest test-one-device test-newest test-kernels test-gpu test-gpu-programs exactness guard audit lint docs pages docs-code clean

help:
	@echo "make sample   draw $(SIZE) angles into $(OUT), on the GPU if there is one"
	@echo "make test     run the tests, and a smoke test on the newest Python and JAX: a few minutes"
	@echo "make test-whole  run all tests, including slow ones, also on the newest Python and JAX: hours"
	@echo "make test-kernels  execute the CUDA kernels on the CPU, and compare their angles with XLA's: half a minute"
	@echo "make test-gpu  install for an NVIDIA GPU, and test draws, functions and kernels on it"
	@echo "make test-gpu-programs  compile draws for an H100 without one, and check their cost; CI does it once a week"
	@echo "make exactness  compare millions of angles with their distribution"
	@echo "make guard    compare the sampler's rate with others', in a few minutes: PASS, FAIL or TOO NOISY"
	@echo "make audit    check dependencies for known vulnerabilities; needs the network"
	@echo "make lint     check style, types and the install script"
	@echo "make docs     build the documentation into docs/_build"
	@echo "make pages    update the tables and pictures of the pages, and run the examples: ten minutes"
	@echo "make docs-code  run the code of the pages and docstrings that make test leaves out"
	@echo "make clean    remove the environments and the output of the tools"

# $(call environment,DIRECTORY,PYTHON): an empty virtual environment, if Python is new enough.
define environment
	@$(2) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(2) is missing or older than Python 3.11; name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(2) -m venv --clear $(1) || { echo "make: $(2) has no working venv module; install it" >&2; exit 1; }
endef

sample: .venv/installed
	.venv/bin/jax-von-mises sample --concentration 4 --size $(SIZE) --out $(OUT) --force

.venv/installed: $(PACKAGING) install_gpu.sh
	@PYTHON="$(PYTHON)" ./install_gpu.sh --venv .venv
	@touch $@

# Install the environments in parallel, then run the groups of tests one after the other.
test:
	@$(MAKE) --no-print-directory -j2 install-tests
	@$(MAKE) --no-print-directory -j1 test-oldest test-one-device test-newest

# Run all tests, slow ones included, on this Python and on the newest one with the newest JAX: hours on two cores.
test-whole: .venv-test/installed
	.venv-test/bin/python $(PYTEST) -m "not gpu" $(TESTS)
	CPU_DEVICES=1 .venv-test/bin/python $(PYTEST) -m "not gpu" $(ONE_DEVICE_TESTS)
	@$(MAKE) --no-print-directory test-newest NEWEST_TESTS="$(TESTS)" NEWEST_MARKS="not gpu"

test-oldest: .venv-test/installed
	.venv-test/bin/python $(PYTEST) $(TESTS)

test-one-device: .venv-test/installed
	CPU_DEVICES=1 .venv-test/bin/python $(PYTEST) $(ONE_DEVICE_TESTS)

.venv-test/installed: $(PACKAGING)
	$(call environment,.venv-test,$(PYTHON))
	@echo "installing the tests into .venv-test"
	@.venv-test/bin/python $(PIP) -e ".[test]"
	@touch $@

# The newest Python newer than $(PYTHON) that starts. Each candidate is run, since a command such as a shim of pyenv can
# exist and still fail. The versions that pyenv installed are tried too, since they are not on the path.
NEWEST = current=$$($(PYTHON) -c 'import sys; print(sys.version_info[1])'); \
	for minor in 13 12; do \
	  [ $$minor -gt $$current ] || continue; \
	  for python in python3.$$minor "$$(pyenv prefix 3.$$minor 2>/dev/null)/bin/python" \
	      $$(pyenv versions --bare 2>/dev/null | grep "^3\.$$minor\.[0-9]*$$" | while read -r version; \
	         do echo "$$(pyenv prefix $$version)/bin/python"; done); do \
	    if $$python -c "import sys, ensurepip; sys.exit(sys.version_info[:2] != (3, $$minor))" 2>/dev/null; \
	    then echo $$python; exit 0; fi; \
	  done; \
	done

test-newest:
	@newest=$$($(NEWEST)); \
	if [ -z "$$newest" ]; then \
	  echo "no Python newer than $$($(PYTHON) --version) found: the tests ran only on that one"; \
	else $(MAKE) --no-print-directory run-newest NEWEST_PYTHON=$$newest; fi

# Install the test environments.
.PHONY: install-tests install-newest run-newest
install-tests: .venv-test/installed install-newest
install-newest:
	@newest=$$($(NEWEST)); \
	[ -z "$$newest" ] || $(MAKE) --no-print-directory .venv-newest/installed NEWEST_PYTHON=$$newest

run-newest: .venv-newest/installed
	@.venv-newest/bin/python -c 'import jax, platform; print("newest: Python", platform.python_version(), "JAX", jax.__version__)'
	.venv-newest/bin/python $(PYTEST) -m "$(NEWEST_MARKS)" $(NEWEST_TESTS)

.venv-newest/installed: $(PACKAGING)
	$(call environment,.venv-newest,$(NEWEST_PYTHON))
	@echo "installing the tests into .venv-newest"
	@.venv-newest/bin/python $(PIP) --upgrade -e ".[test]"
	@touch $@

# Needs no GPU. Kernels are executed if there is a C compiler, and compiled if nvcc 13.0 and ptxas are on the path.
test-kernels: .venv-test/installed
	.venv-test/bin/python $(PYTEST) -m kernels tests/sampling/test_kernels.py

# Needs an NVIDIA GPU. One process, since several would share its memory.
test-gpu: .venv-test-gpu/installed
	JAX_PLATFORMS=cuda,cpu XLA_PYTHON_CLIENT_PREALLOCATE=false .venv-test-gpu/bin/python -m pytest -q -m gpu tests/test_gpu.py

.venv-test-gpu/installed: $(PACKAGING) install_gpu.sh
	@PYTHON="$(PYTHON)" ./install_gpu.sh --extras test --venv $(@D)
	@touch $@

# GPU_JAX needs Python 3.12. If its packages are unavailable, as on a mirror without large files, the check is skipped
# with a message.
test-gpu-programs:
	@python=$$(if $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then echo $(PYTHON); else $(NEWEST); fi); \
	if [ -z "$$python" ]; then echo "no Python 3.12 or newer found: programs for a GPU were not checked"; $(GPU_SKIP); exit; fi; \
	$(MAKE) --no-print-directory GPU_PYTHON=$$python gpu-programs

.PHONY: gpu-programs
.PRECIOUS: .venv-gpu-%/installed
gpu-programs: .venv-gpu-$(GPU_JAX)/installed
	@[ ! -e $< ] || .venv-gpu-$(GPU_JAX)/bin/python -m tools.gpu_programs --check

# Leave out the CUDA libraries, which take gigabytes, since compiling does not need them.
.venv-gpu-%/installed: $(PACKAGING)
	$(call environment,$(@D),$(GPU_PYTHON))
	@echo "installing JAX's compiler for a GPU into $(@D)"
	@{ $(@D)/bin/python $(PIP) jax==$* jaxlib==$* numpy scipy && \
	  $(@D)/bin/python $(PIP) --no-deps jax-cuda13-plugin==$* jax-cuda13-pjrt==$* && touch $@; } || \
	  { echo "JAX's compiler for a GPU cannot be installed: programs of JAX $* were not checked"; $(GPU_SKIP); }

.venv-bench/installed: $(PACKAGING)
	$(call environment,.venv-bench,$(PYTHON))
	@echo "installing the benchmarks into .venv-bench"
	@.venv-bench/bin/python $(PIP) -e ".[bench]"
	@touch $@

exactness: .venv-test/installed
	.venv-test/bin/python -m benchmarks.exactness --quick

guard: .venv-bench/installed
	.venv-bench/bin/python -m benchmarks.performance_benchmark --guard $(GUARD)

.venv-audit/installed: $(PACKAGING)
	$(call environment,.venv-audit,$(PYTHON))
	@.venv-audit/bin/python $(PIP) pip-audit
	@touch $@

# Audit the packages of the test environment, which include all dependencies.
audit: .venv-audit/installed .venv-test/installed
	@.venv-test/bin/python -m pip freeze --exclude-editable | .venv-audit/bin/python -m tools.audit

.venv-lint/installed: $(PACKAGING)
	$(call environment,.venv-lint,$(PYTHON))
	@.venv-lint/bin/python $(PIP) -e ".[lint]"
	@touch $@

lint: .venv-lint/installed
	.venv-lint/bin/ruff check
	.venv-lint/bin/ruff format --check
	.venv-lint/bin/mypy
	.venv-lint/bin/lint-imports
	.venv-lint/bin/shellcheck install_gpu.sh

.venv-docs/installed: $(PACKAGING)
	$(call environment,.venv-docs,$(PYTHON))
	@echo "installing Sphinx into .venv-docs"
	@.venv-docs/bin/python -m pip install -q -e ".[docs]"
	@touch $@

docs: .venv-docs/installed
	.venv-docs/bin/python -m sphinx -W --keep-going docs docs/_build
	@echo "open docs/_build/index.html"

# Update the tables, pictures and code excerpts of the pages after a change of a result or an example.
pages: .venv-docs/installed
	.venv-docs/bin/python -m docs.pages --examples

docs-code: .venv-test/installed
	.venv-test/bin/python $(PYTEST) -m slow tests/docs/test_docs.py

clean:
	rm -rf .venv .venv-test .venv-test-gpu .venv-newest .venv-gpu* .venv-bench .venv-audit .venv-lint .venv-docs docs/_build build dist *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
