"""Test the settings of JAX in separate processes, since most can be set only once."""

import inspect
import json
import os

import pytest

from jax_von_mises import runtime
from jax_von_mises.runtime import child, flags
from tests import children

# Changes that remove the JAX and XLA variables of this process from the environment of a child.
WITHOUT = {name: None for name in os.environ if name.startswith(("JAX_", "XLA_", "PJRT_"))}

EARLY = """
import collections, os, sys
import jax
from jax_von_mises import runtime
from jax_von_mises.runtime import configuration
variables = dict(os.environ)
configured = runtime.configure(
    platform="cpu", x64=True, memory_fraction=0.5, preallocate=False, allocator="bfc", threads=1, vector_width=512,
    cpu_devices=3, compile_threads=2, latency_hiding=True, profile_guided=True, profiled_runs=5, cuda_kernels=False,
    xla_flags={"xla_gpu_autotune_level": 0, "xla_cpu_enable_fast_min_max": False, "xla_dump_hlo_pass_re": ""},
)
assert not configuration.started(), "`configure` must not start JAX"
assert configured == runtime.settings()
assert all(item.source == "configure" and item.changeable for item in configured)
assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.5" and "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ
assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == os.environ["JAX_VON_MISES_CUDA_KERNELS"] == "false"
# The user's flags stay, including repeated ones, except those that `configure` sets.
assert os.environ["XLA_FLAGS"].split() == [
    "--xla_disable_hlo_passes=a", "--xla_disable_hlo_passes=b", "--xla_cpu_prefer_vector_width=512",
    "--xla_gpu_force_compilation_parallelism=2", "--xla_gpu_enable_latency_hiding_scheduler=true",
    "--xla_gpu_autotune_level=0", "--xla_cpu_enable_fast_min_max=false", "--xla_dump_hlo_pass_re=",
]
runtime.configure(profile_guided=False)  # on a CPU, JAX finds no profile and warns
x = jax.numpy.arange(4, dtype="float64")
assert len(jax.devices()) == 3 and x.dtype == "float64"
if sys.platform == "linux":
    names = (open(f"/proc/self/task/{i}/comm").read().strip() for i in os.listdir("/proc/self/task"))
    assert collections.Counter(names)["tf_XLAEigen"] in (1, 3)  # for one device, or for each
assert configuration.started()
runtime.configure(x64=False, threads=1)  # x64 can still change, and `threads` already has this value
assert jax.numpy.zeros(2).dtype == "float32"
before = dict(os.environ)
try:
    runtime.configure(x64=True, threads=2, cpu_devices=4, xla_flags="--xla_gpu_autotune_level=1")
except RuntimeError as error:
    print(error)
assert dict(os.environ) == before and not jax.config.jax_enable_x64, "nothing may change"
print(sorted(item.name for item in runtime.settings() if item.changeable))
# Later changes by other code are kept.
variables["PJRT_NPROC"] = os.environ["PJRT_NPROC"] = "7"
jax.config.update("jax_pgle_profiling_runs", 9)
assert {item.name: item.source for item in runtime.settings()}["threads"] == "environment"
print(sorted(runtime.reset()))
assert dict(os.environ) == variables and runtime.reset() == ()
assert jax.config.jax_pgle_profiling_runs == 9 and not jax.config.jax_enable_pgle
"""


def test_set_shown_and_undone():
    own = "--xla_cpu_enable_fast_min_max=true --xla_disable_hlo_passes=a --xla_disable_hlo_passes=b"
    variables = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".6", "XLA_FLAGS": own, "JAX_PLATFORMS": None}
    message, changeable, kept = children.run(EARLY, **variables)
    assert "on cpu, and threads, cpu_devices, xla_flags can no longer change" in message
    assert "PJRT_NPROC=2 JAX_NUM_CPU_DEVICES=4" in message
    assert "XLA_FLAGS=" in message
    assert changeable == "['cuda_kernels', 'profile_guided', 'profiled_runs', 'x64']"
    for name in ("PJRT_NPROC", "XLA_FLAGS", "XLA_CLIENT_MEM_FRACTION", "jax_num_cpu_devices", "jax_platforms"):
        assert repr(name) in kept
    assert "x64" not in kept


# For each argument: a value (some are JAX's defaults), and the variable and text that set it without this package.
VALUES = {
    "platform": ("cpu", "JAX_PLATFORMS", "cpu"),
    "x64": (False, "JAX_ENABLE_X64", "0"),
    "memory_fraction": (0.75, "XLA_CLIENT_MEM_FRACTION", "0.75"),
    "preallocate": (True, "XLA_PYTHON_CLIENT_PREALLOCATE", "true"),
    "allocator": ("default", "XLA_PYTHON_CLIENT_ALLOCATOR", "default"),
    "threads": (2, "PJRT_NPROC", "2"),
    "vector_width": (128, "XLA_FLAGS", "--xla_cpu_prefer_vector_width=128"),
    "cpu_devices": (1, "JAX_NUM_CPU_DEVICES", "1"),
    "compile_threads": (1, "XLA_FLAGS", "--xla_gpu_force_compilation_parallelism=1"),
    "latency_hiding": (False, "XLA_FLAGS", "--xla_gpu_enable_latency_hiding_scheduler=false"),
    "profile_guided": (False, "JAX_ENABLE_PGLE", "false"),
    "profiled_runs": (3, "JAX_PGLE_PROFILING_RUNS", "3"),
    "cuda_kernels": (False, "JAX_VON_MISES_CUDA_KERNELS", "0"),
    "xla_flags": ("--xla_gpu_autotune_level=4", "XLA_FLAGS", "--xla_gpu_autotune_level=4"),
}
SHOWN = """
import json, os
import jax
before = dict(os.environ), dict(jax.config.values)
from jax_von_mises import runtime
from jax_von_mises.runtime import configuration, variables
assert (dict(os.environ), dict(jax.config.values)) == before, "the import must change nothing"
assert not configuration.started() and runtime.reset() == ()

def shown():
    return {item.name: [item.value, item.source] for item in runtime.settings()}

found = {"before": shown()}
values = json.loads(os.environ.pop("VALUES"))
for name, value in values.items():
    found[name] = runtime.configure(**{name: value}, check=False) and shown()
    runtime.reset()
found["reset"] = shown()
runtime.configure(**values, check=False)
assert variables.findings(gpus=True) == [], "the doctor must accept what `configure` sets"
runtime.reset()
print(json.dumps(found))

# A flag that belongs to an argument is shown as that argument, even if `xla_flags` sets it.
runtime.configure(xla_flags="--xla_gpu_force_compilation_parallelism=2 --xla_gpu_autotune_level=0", check=False)
assert shown()["compile_threads"] == [2, "configure"], shown()
own = os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
# Other code may add and change flags.
os.environ["XLA_FLAGS"] += " --xla_gpu_enable_command_buffer= --xla_gpu_force_compilation_parallelism=3"
assert shown()["compile_threads"] == [3, "environment"]
assert shown()["xla_flags"] == [f"{own} --xla_gpu_enable_command_buffer=", "configure"]
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=1"
assert shown()["xla_flags"] == ["--xla_gpu_autotune_level=1", "environment"]
# Values that `configure` would refuse are shown unchanged.
os.environ["PJRT_NPROC"] = "many"
assert shown()["threads"] == ["many", "environment"]
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("environment", [False, True])
def test_each_setting_has_its_value_and_source(environment):
    """Every argument of `configure` is shown with its value and source, even if its value is JAX's default."""
    values = {name: value for name, (value, _, _) in VALUES.items()}
    assert set(values) == set(inspect.signature(runtime.configure).parameters) - {"check", "timeout"}
    variables = dict(WITHOUT)
    if environment:
        texts = {}
        for _, variable, text in VALUES.values():
            texts.setdefault(variable, []).append(text)
        variables |= {variable: " ".join(listed) for variable, listed in texts.items()}
    (line,) = children.run(SHOWN, **variables, VALUES=json.dumps(values))
    shown = json.loads(line)
    without = {name: [value, "environment"] if environment else [None, "default"] for name, value in values.items()}
    assert shown["before"] == shown["reset"] == without
    for name, value in values.items():
        assert shown[name] == without | {name: [value, "configure"]}


REFUSED = """
import os, warnings
import jax
from jax_von_mises import runtime
before = dict(os.environ)
for options in (
    dict(xla_flags="--xla_gpu_autotune=4 --xla_no_such=1", threads=1),
    dict(platform="tpu", x64=True),
    dict(xla_flags="--xla_gpu_autotune_level=1", timeout=0.01),
):
    try:
        runtime.configure(**options)
    except ValueError as error:
        print(error)
assert dict(os.environ) == before and not jax.config.jax_enable_x64
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    runtime.configure(xla_flags={"xla_cpu_fast_math_honor_nans": "false", "xla_cpu_fast_math_honor_infs": True})
print(*(warning.message for warning in caught))
jax.numpy.zeros(2)
"""


@pytest.mark.slow
def test_fatal_settings_are_refused():
    unknown, platform, slow, harmful = children.run(REFUSED, JAX_PLATFORMS=None)
    assert "--xla_gpu_autotune: the installed jaxlib does not know it" in unknown
    assert "--xla_no_such" in unknown
    assert "use --xla_gpu_autotune_level=0 to 4" in unknown
    assert "with these settings JAX does not start" in platform
    assert "Error: " in platform, "the message must give the reason"
    assert "did not start within 0.01 s" in slow
    assert "--xla_cpu_fast_math_honor_nans gives plausible angles" in harmful
    assert "honor_infs" not in harmful


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"platform": "gpu"}, ValueError, "'cuda' and 'rocm'"),
        ({"platform": "cpu,cudda"}, ValueError, "'cpu,cudda' is not one of"),
        ({"platform": 3}, TypeError, "platform=3"),
        ({"x64": 1}, TypeError, "x64=1 must be True or False"),
        ({"memory_fraction": 1.5}, ValueError, "memory_fraction=1.5 must be above 0 and at most 1"),
        ({"memory_fraction": float("nan")}, ValueError, "memory_fraction=nan"),
        ({"memory_fraction": "half"}, TypeError, "must be a number"),
        ({"allocator": "malloc"}, ValueError, "allocator='malloc' is not one of default, platform"),
        ({"threads": 0}, ValueError, "threads=0 must be at least 1"),
        ({"vector_width": 300}, ValueError, "vector_width=300 is not one of 128, 256, 512"),
        ({"cpu_devices": 2.5}, TypeError, "cpu_devices=2.5 must be an integer"),
        ({"xla_flags": "xla_cpu_x=1"}, ValueError, "as '--xla_name=value'"),
        ({"xla_flags": "--xla_a=1 b"}, ValueError, "'b' is not a flag"),
        ({"xla_flags": ["--xla_a=1"]}, TypeError, "a string or a dict"),
        ({"xla_flags": {"xla_a": """'"'"""}}, ValueError, "both kinds of quotes"),
        ({"xla_flags": "--xla_a=\0"}, ValueError, "null character"),
        ({"x64": True, "xla_flags": {"xla_a": "\ud800"}}, ValueError, "surrogates not allowed"),
    ],
)
def test_invalid_arguments(options, error, words):
    before = dict(os.environ)
    with pytest.raises(error, match=f"configure: .*{words}"):
        runtime.configure(**options)
    assert dict(os.environ) == before


def test_flags_are_read_as_xla_reads_them(tmp_path):
    text = "--xla_a=1 --xla_b  --xla_c=\"two words\"\n--xla_d='x=y' --xla_a=2 --xla_e="
    values = [("xla_a", "1"), ("xla_b", None), ("xla_c", "two words"), ("xla_d", "x=y"), ("xla_a", "2"), ("xla_e", "")]
    found = [flags.Flag(*pair) for pair in values]
    assert flags.parse(text) == found
    assert flags.parse(flags.join(found)) == found
    assert str(flags.Flag("xla_f", 'say "no"')) == """--xla_f='say "no"'"""
    (tmp_path / "flags").write_text(text)
    assert flags.parse(str(tmp_path / "flags")) == found
    assert flags.parse("--xla_a=1 words") == [flags.Flag("xla_a", "1")]
    with pytest.raises(FileNotFoundError):
        flags.parse("garbage")
    (refused,) = flags.refusals(
        'F1 1 parse_flags_from_env.cc:171] Could not open file "x" to read flags for environment variable "XLA_FLAGS".'
    )
    assert refused.reason.startswith('Could not open file "x"')


@pytest.mark.slow
def test_all_refused_flags_are_found(monkeypatch):
    """All refused flags are found, although XLA reports one kind at a time and JAX lacks the requested platform."""
    without_gpu = child.configuration() | {"JAX_PLATFORMS": "gpu"}
    monkeypatch.setattr(child, "configuration", lambda: without_gpu)
    invalid = "--xla_no_such=1 --xla_gpu_autotune_level=x --xla_nor_this --xla_gpu_enable_command_buffer=NOPE"
    refused = flags.refused(flags.parse(f"{invalid} --xla_cpu_multi_thread_eigen=true --xla_dump_hlo_pass_re="))
    reasons = {item.flag: item.reason for item in refused}
    assert set(reasons) == {flag.name for flag in flags.parse(invalid)}
    assert reasons["xla_gpu_autotune_level"] == "its value 'x' is not allowed"
    assert reasons["xla_gpu_enable_command_buffer"] == "its value 'NOPE' is not allowed"


@pytest.mark.slow
def test_advice_is_about_existing_flags():
    """The installed jaxlib knows all flags called harmful or useless by the advice, and at most one called gone."""
    exists = [flags.Flag(name, "1") for name, advice in flags.ADVICE.items() if advice.level != flags.GONE]
    assert not [item for item in flags.refused(exists) if "does not know" in item.reason]
    gone = [name for name, advice in flags.ADVICE.items() if advice.level == flags.GONE]
    known = {"xla_gpu_enable_llvm_module_compilation_parallelism"}  # exists in jaxlib 0.10
    assert {item.flag for item in flags.refused([flags.Flag(name, "1") for name in gone])} >= set(gone) - known
