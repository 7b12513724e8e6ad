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

from jax_von_mises.sampling import counter

# Meshes need several devices. Most users have one CPU device, on which programs use other array shapes, so `make test`
# repeats some tests with CPU_DEVICES=1.
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


def pytest_runtest_setup(item):
    """Skip a test that has a kind of key among its parameters, or in its marker `needs_key`, that JAX lacks."""
    marker = item.get_closest_marker("needs_key")
    parameters = getattr(item, "callspec", None)
    values = [*(marker.args if marker else ()), *(parameters.params.values() if parameters else ())]
    for value in values:
        if isinstance(value, str) and value in counter.GENERATORS and not known(value):
            pytest.skip(f"JAX {jax.__version__} has no keys of the kind {value}")


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(items):
    """For each test with the marker ``few(n)``, mark all cases after the first n as slow."""
    seen = collections.Counter()
    for item in items:
        few = item.get_closest_marker("few")
        if few is not None:
            test = item.nodeid.split("[")[0]
            seen[test] += 1
            if seen[test] > few.args[0]:
                item.add_marker("slow")


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
