"""Configure all tests: several CPU devices or one, no implicit promotion, and a separate random key per test."""

import collections
import functools
import os
import zlib

# Set this before JAX starts. The same variable selects other hardware for the tests.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jax_von_mises.engine import counter

# Meshes need several devices. Most users have one CPU device, on which programs use other array shapes, so
# `make test-more` repeats some tests with CPU_DEVICES=1.
jax.config.update("jax_num_cpu_devices", int(os.environ.get("CPU_DEVICES", "8")))
# The package converts dtypes and aligns ranks itself, so it must work for users who turn JAX's promotion off.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Property tests use the same few examples every time; --hypothesis-profile=thorough uses many new ones.
PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink)
hypothesis.settings.register_profile(
    "quick", derandomize=True, max_examples=12, deadline=None, database=None, phases=PHASES
)
hypothesis.settings.register_profile("thorough", max_examples=500, deadline=None, print_blob=True)
hypothesis.settings.load_profile("quick")


# Most CPU time of a test of `make test`, in seconds, compilation included.
BUDGET = 5.0
# The CPU time of each test that has ended, with the markers of the tests that `make test` leaves out.
SPENT = {}
LEFT_OUT = {"more", "slow", "kernels", "gpu", "jax"}


def pytest_addoption(parser):
    parser.addoption("--budget", action="store_true", help=f"fail if a test takes more than {BUDGET:g} s of CPU time")


def pytest_configure(config):
    """Keep compiled programs in pytest's folder: processes share them, and a second run takes them from there."""
    if hasattr(config, "cache"):  # not with `-p no:cacheprovider`
        jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("compiled")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@functools.cache
def known(implementation):
    """Return whether the installed JAX has keys of a kind; 0.8 to 0.10.1 have fewer than later releases."""
    try:
        jax.random.key(0, impl=implementation)
    except ValueError:
        return False
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    """Report the CPU time of this process and its children since then to the process that sums them up."""
    result = yield
    item.user_properties.append(("cpu", sum(os.times()[:4]) - item.stash["start"]))
    return result


def pytest_runtest_logreport(report):
    if report.when == "teardown":
        SPENT[report.nodeid] = dict(report.user_properties)["cpu"], LEFT_OUT.intersection(report.keywords)


def over_budget():
    """Return the tests of `make test` that took too much CPU time, the slowest first."""
    found = ((seconds, test) for test, (seconds, markers) in SPENT.items() if seconds > BUDGET and not markers)
    return sorted(found, reverse=True)


def pytest_terminal_summary(terminalreporter):
    """List the CPU time of each folder, and the tests that should be shorter."""
    folders = collections.Counter()
    for test, (seconds, _) in SPENT.items():
        folders["/".join(test.split("::")[0].split("/")[1:-1]) or "tests"] += seconds
    each = ", ".join(f"{folder} {seconds:.0f}" for folder, seconds in folders.most_common())
    terminalreporter.write_line(f"CPU seconds: {folders.total():.0f} ({each})")
    for seconds, test in over_budget():
        terminalreporter.write_line(f"{seconds:5.1f} s of CPU time, more than {BUDGET:g}: {test}")


def pytest_sessionfinish(session):
    if session.config.getoption("budget") and over_budget():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Note the CPU time so far; skip a test with a kind of key, among its parameters or markers, that JAX lacks."""
    item.stash["start"] = sum(os.times()[:4])
    marker = item.get_closest_marker("needs_key")
    parameters = getattr(item, "callspec", None)
    values = [*(marker.args if marker else ()), *(parameters.params.values() if parameters else ())]
    for value in values:
        if isinstance(value, str) and value in counter.GENERATORS and not known(value):
            pytest.skip(f"JAX {jax.__version__} has no keys of the kind {value}")


@pytest.fixture
def key(request):
    """Return a random key derived from the test's full name and parameters, so that tests draw different words."""
    return jax.random.key(zlib.crc32(request.node.nodeid.encode()))


COMPILED = []


def count_compilation(name, seconds, **_):
    if name == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(seconds)


jax.monitoring.register_event_duration_secs_listener(count_compilation)


@pytest.fixture
def compiled():
    """Return a list that grows with each program that JAX compiles or loads from disk during the test."""
    jax.random.key(0)  # compile the programs that make a key now, so that they do not count
    COMPILED.clear()
    return COMPILED


@pytest.fixture
def no_cache(monkeypatch):
    """Turn the compilation cache off during a test, which may turn it on as users do."""
    names = ("compilation_cache_dir", "compilation_cache_max_size")
    names += ("persistent_cache_min_compile_time_secs", "persistent_cache_min_entry_size_bytes")
    before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)  # JAX's default
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Free the compiled programs after each test file; those of all files together take gigabytes."""
    yield
    jax.clear_caches()
