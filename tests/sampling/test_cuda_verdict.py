"""The CUDA kernels are used by default once they have passed their trial, and never for a file.

The trial's checks run on kernels that the CPU executes. A stand-in in C replaces the driver. Stand-in programs replace
the process of the trial; they end as that process would after an error on a GPU.
"""

import argparse
import ctypes
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_von_mises
from jax_von_mises import environment
from jax_von_mises.runtime import kernel_trial
from jax_von_mises.sampling import cuda, cuda_driver, cuda_launch, cuda_self_test, cuda_trial, cuda_verdict
from jax_von_mises.sampling.request import DrawRequest
from tests import children, host_kernels
from tests.host_kernels import on_host  # noqa: F401

ABOUT = {"card": "a card", "driver": "580.65.06", "jaxlib": "0.10.2", "ptx": "0" * 64}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Provide a cache directory without verdicts."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernel_trial, "MPS_PIPES", tmp_path / "none")
    cuda_verdict.find.cache_clear()
    yield tmp_path
    cuda_verdict.find.cache_clear()


# The file of the verdict.


@pytest.mark.parametrize("failed", ["", "other words"])
def test_a_verdict_is_kept(home, failed):
    """A verdict applies only to its own setup, and is kept in a private file."""
    path = cuda_verdict.keep(ABOUT, failed)
    assert cuda_verdict.read(ABOUT) == failed
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(path.parent) == [path.name]
    for name in ABOUT:
        assert cuda_verdict.read(ABOUT | {name: "another"}) is None
    cuda_verdict.keep(ABOUT, "now it fails")
    assert cuda_verdict.read(ABOUT) == "now it fails"


def test_the_setup_of_a_verdict(home, monkeypatch):
    """The setup of a verdict includes everything that may affect a kernel's result."""
    identities = [cuda_verdict.identity(jax.devices()[0])]
    monkeypatch.setattr(environment, "nvidia_driver", lambda: "580.65.06")
    identities.append(cuda_verdict.identity(jax.devices()[0]))
    monkeypatch.setattr(cuda_launch, "ptx_text", lambda: "another text")
    identities.append(cuda_verdict.identity(jax.devices()[0]))
    monkeypatch.setattr(cuda_driver, "version", lambda: 13010)
    identities.append(cuda_verdict.identity(jax.devices()[0]))
    for version in ("0.12.0", "0.12.0.1"):
        wheel = home / "jax_cuda13_pjrt.dist-info"
        wheel.mkdir(exist_ok=True)
        (wheel / "METADATA").write_text(f"Name: jax-cuda13-pjrt\nVersion: {version}\n")
        monkeypatch.syspath_prepend(home)
        identities.append(cuda_verdict.identity(jax.devices()[0]))
        assert f"jax-cuda13-pjrt {version}" in identities[-1]["wheels"]
    assert set(identities[0]) == {
        *("card", "driver", "user-mode driver", "cuda"),
        *("jaxlib", "jax", "wheels", "jax_von_mises", "ptx"),
    }
    assert [a == b for a, b in itertools.pairwise(identities)] == [False] * 5
    assert cuda_verdict.path_of(identities[0]) is None, "no driver reports its version"


def changed(**fields):
    """Return a function that changes fields of a verdict's file."""
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def foreign(path):
    if os.getuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, 54321, -1)


def linked(path):
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(path.read_text()[:-1]),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_text("[" * 10000),
        lambda path: path.write_text(path.read_text() + " " * cuda_verdict.LARGEST),
        lambda path: path.write_text("[]"),
        lambda path: path.unlink(),
        changed(format="jax_von_mises/kernels/0"),
        changed(about=ABOUT | {"driver": "580.65.07"}),
        changed(failed=None),
        changed(failed=0),
        changed(more=1),
        lambda path: path.chmod(0o620),
        lambda path: path.chmod(0o602),
        lambda path: path.parent.chmod(0o777),
        lambda path: path.parent.parent.chmod(0o777),
        foreign,
        lambda path: foreign(path.parent),
        linked,
        pipe,
    ],
)
def test_damaged_and_foreign_files_are_no_verdict(home, damage):
    path = cuda_verdict.keep(ABOUT, "")
    assert cuda_verdict.read(ABOUT) == ""
    damage(path)
    assert cuda_verdict.read(ABOUT) is None


def test_a_verdict_that_cannot_be_kept(home, monkeypatch):
    """The error gives the reason. It is also raised if the verdict could be written but would not be read."""
    with pytest.raises(cuda_verdict.NotKept, match="does not report its version"):
        cuda_verdict.keep(ABOUT | {"driver": None}, "")
    home.chmod(0o777)
    with pytest.raises(cuda_verdict.NotKept, match="is writable by everyone"):
        cuda_verdict.keep(ABOUT, "")
    home.chmod(0o700)
    (home / "jax_von_mises" / "kernels").rmdir()  # nothing was written
    (home / "jax_von_mises" / "kernels").write_text("in the way")
    with pytest.raises(cuda_verdict.NotKept, match="kernels: Not a directory"):
        cuda_verdict.keep(ABOUT, "")
    monkeypatch.setattr(environment, "cache_directory", lambda: None)
    with pytest.raises(cuda_verdict.NotKept, match="no home directory"):
        cuda_verdict.keep(ABOUT, "")
    assert cuda_verdict.read(ABOUT) is None


# The use of a verdict in a process.


@pytest.fixture
def one_card(home, monkeypatch):
    """Let the CPU device stand in for a CUDA device; return the names of kernels that are self-tested."""
    monkeypatch.setattr(cuda_launch, "PLATFORM", "cpu")
    monkeypatch.setattr(jax, "device_count", lambda *_: 1)
    monkeypatch.setattr(environment, "nvidia_driver", lambda: "580.65.06")
    monkeypatch.delenv(cuda.VARIABLE, raising=False)
    tested = []
    monkeypatch.setattr(cuda_self_test, "_tested", lambda spec: tested.append(spec.name))
    cuda_launch.devices.cache_clear()
    cuda.warn.cache_clear()
    yield tested
    cuda_launch.devices.cache_clear()
    host_kernels.forget()


def used(key):
    """Return whether a draw uses a kernel."""
    request = DrawRequest(key, jnp.zeros(()), jnp.ones(()), None, (8,), np.dtype(np.float32), "direct")
    return request.engine() == "kernel"


def keep(failed):
    """Keep a verdict for this device, as another process would."""
    assert cuda_verdict.keep(cuda_verdict.identity(cuda_launch.devices()[0]), failed)


@pytest.mark.parametrize(
    ("verdict", "variable", "drawn", "self_test", "detail"),
    [
        ("", "", True, False, "the CUDA kernels, which passed their trial"),
        ("", "0", False, False, f"{cuda.VARIABLE} turns the CUDA kernels off"),
        ("", "1", True, False, "which passed their trial"),
        (None, "", False, False, "the CUDA kernels have no verdict on cpu; `jax-von-mises doctor` tries them"),
        (None, "1", True, True, "the CUDA kernels threefry2x32_direct"),
        ("other words", "", False, False, "the CUDA kernels failed their trial on cpu: other words"),
        ("other words", "1", True, True, "the CUDA kernels threefry2x32_direct"),
    ],
)
def test_verdict_selects_the_path(one_card, monkeypatch, verdict, variable, drawn, self_test, detail):
    """A passed trial selects the kernel without a self-test, and the variable overrides the trial."""
    if verdict is not None:
        keep(verdict)
    monkeypatch.setenv(cuda.VARIABLE, variable)
    assert used(jax.random.key(0)) == drawn
    assert bool(one_card) == self_test
    assert detail in cuda.kernel_report()


def test_several_devices_take_the_plain_path(one_card, monkeypatch):
    keep("")
    monkeypatch.setattr(jax, "device_count", lambda *_: 2)
    assert not used(jax.random.key(0))
    assert "since there are several devices" in cuda.kernel_report()


def test_a_process_keeps_its_verdict(one_card):
    """If another process keeps a verdict after the first draw, the angles of this process do not change."""
    assert not used(jax.random.key(0))
    keep("")
    assert not used(jax.random.key(0))
    cuda_verdict.find.cache_clear()
    assert used(jax.random.key(0))
    cuda_verdict.find.cache_clear()
    keep("other words")
    assert not used(jax.random.key(0))


@pytest.mark.parametrize(
    ("verdict", "variable", "devices", "detail"),
    [
        (None, "", 1, "have no verdict on cpu"),
        ("other words", "", 1, "the CUDA kernels failed their trial on cpu: other words"),
        ("", "", 1, None),
        (None, "0", 1, None),
        (None, "1", 1, None),
        (None, "", 2, None),
    ],
)
def test_one_line_gives_the_reason_for_the_plain_path(
    one_card, monkeypatch, caplog, verdict, variable, devices, detail
):
    """If a missing verdict or a failed trial rules out the kernels, one warning is logged, which names the remedy."""
    if verdict is not None:
        keep(verdict)
    monkeypatch.setenv(cuda.VARIABLE, variable)
    monkeypatch.setattr(jax, "device_count", lambda *_: devices)
    for _ in range(2):
        used(jax.random.key(0))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * (detail is not None)
    if detail:
        for words in (detail, "`jax-von-mises doctor`", f"{cuda.VARIABLE}=1 uses them", f"{cuda.VARIABLE}=0 silences"):
            assert words in caplog.text


def test_an_unreadable_verdict_is_none(one_card, monkeypatch):
    def broken(device):
        raise RuntimeError("no such attribute")

    keep("")
    monkeypatch.setattr(cuda_verdict, "identity", broken)
    assert not used(jax.random.key(0))


# The checks of the trial.


def on_this_host(name, grid, block, out, *operands, at_end):
    """Launch a kernel on the CPU with few threads, in place of `Driver.launch`."""
    few = (min(3, grid[0]), min(2, grid[1])), (1, min(2, block[1]))
    return host_kernels.launch(name, *few, out, *operands)


@pytest.fixture
def small(monkeypatch):
    """Reduce the trial to two kernels and few sizes."""
    kernels = [("philox4x32", "table", "bfloat16"), ("threefry2x32", "direct", "float32")]
    monkeypatch.setattr(cuda_trial, "SIZES", (3, 8))
    monkeypatch.setattr(cuda_trial, "STARTS", (3, 2**32 - 6, 2**64 - 8))
    monkeypatch.setattr(cuda_trial, "ROWS", 4)
    monkeypatch.setattr(cuda_trial, "specs", lambda: [cuda_launch.KernelSpec(*names, (8,)) for names in kernels])
    cuda_trial.words_of.cache_clear()
    yield
    cuda_trial.words_of.cache_clear()


def test_correct_kernels_pass(small):
    assert list(cuda_trial.faults(on_this_host)) == []


@pytest.mark.slow
def test_all_correct_kernels_pass():
    assert list(cuda_trial.faults(on_this_host)) == []


def last_place(x, name, sizes, at_end):
    """Flip the last bit of one angle."""
    view = x.view(np.uint16 if x.dtype.itemsize == 2 else np.uint32)
    if sizes[0] == 3:
        view[0, 1] ^= 1


def sign(x, name, sizes, at_end):
    x[0, 0] = -x[0, 0]


def short(x, name, sizes, at_end):
    """Replace the last angle, at the end of the memory, as if the kernel had not written it."""
    if at_end and sizes[0] == 8:
        x[:, -1] = 1.5


def one_row(x, name, sizes, at_end):
    """Give row 2 the angles of row 0."""
    if len(x) > 1:
        x[2] = x[0]


def only_direct(x, name, sizes, at_end):
    if name.endswith("direct"):
        x *= -1


@pytest.mark.parametrize(
    ("damage", "detail"),
    [
        (last_place, "philox4x32_table_bfloat16 in bfloat16: 3 angles from 3 do not"),
        (sign, "philox4x32_table_bfloat16 in bfloat16: 3 angles from 3 do not"),
        (short, "philox4x32_table_bfloat16 in bfloat16: 8 angles from 3 do not"),
        (one_row, "philox4x32_table_bfloat16 in bfloat16: rows that vary in key differ from single draws"),
        (only_direct, "threefry2x32_direct in float32: from 3 the signs do not match the words"),
    ],
)
def test_wrong_kernels_fail(small, damage, detail):
    def launch(name, grid, block, out, *operands, at_end):
        x = on_this_host(name, grid, block, out, *operands, at_end=at_end).copy()
        damage(x, name, operands[2], at_end)
        return x

    assert next(cuda_trial.faults(launch)).startswith(detail)


def test_one_block_draws_all_rows(small):
    """The trial also launches a single block, since a block of a card's usual grid seldom processes several rows."""

    def launch(name, grid, block, out, *operands, at_end):
        x = on_this_host(name, grid, block, out, *operands, at_end=at_end).copy()
        if len(x) > 1 and grid == (1, 1) and block == (4, 1):
            x[-1, -1] = 0
        return x

    (detail, *_) = cuda_trial.faults(launch)
    rows = "rows that vary in key differ from single draws, in one block"
    assert detail == f"philox4x32_table_bfloat16 in bfloat16: {rows}"


def test_rows_of_maps_are_tried(on_host):  # noqa: F811
    """The trial finds rows under `jax.vmap` in the wrong order, since each row has its own key and concentrations."""
    device = jax.devices()[0]
    assert cuda_trial.fault_of_maps(device) is None
    on_host.setattr(cuda_launch, "launch", lambda *arguments: host_kernels.callback(*arguments)[::-1])
    assert (
        cuda_trial.fault_of_maps(device)
        == "threefry2x32_direct in rows under jax.vmap: angles differ from the plain path's"
    )


@pytest.mark.slow
def test_long_draws_are_tried(on_host):  # noqa: F811
    """The trial finds errors in the middle and at the end of long draws, where threads process several angles."""
    on_host.setattr(cuda_trial, "LONG", 12001)
    on_host.setattr(cuda_trial, "specs", lambda: [cuda_launch.KernelSpec("threefry2x32", "table", "float32", (8,))])
    on_host.setattr(cuda_trial, "faults", lambda launch: ())
    on_host.setattr(cuda_driver, "Driver", lambda ordinal: argparse.Namespace(launch=None))
    on_host.setattr(cuda_launch, "BLOCKS", 1)
    on_host.setattr(cuda_launch, "MULTIPROCESSORS", 2)
    right, wrong = host_kernels.launch, {}

    def launch(name, grid, block, out, *operands):
        x = right(name, grid, block, out, *operands)
        if out.shape[1] == 12001:
            assert grid == (2, 1)
            for place, error in wrong.items():
                x[0, place] += error
        return x

    on_host.setattr(host_kernels, "launch", launch)
    assert cuda_trial.try_on(jax.devices()[0]) == ""
    for place in (6000, 12000):
        wrong.clear()
        wrong[place] = 1e-3
        assert "its float32 angles are up to 1.0e-03 away" in cuda_trial.try_on(jax.devices()[0])


# The driver.


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return the path of the compiled stand-in for the driver."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler to build the stand-in for the driver")
    path = tmp_path_factory.mktemp("driver") / "libcuda.so"
    source = children.ROOT / "tests" / "fake_cuda.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", path, source], check=True)
    return str(path)


@pytest.fixture
def driver(library, monkeypatch):
    """Replace the driver with the stand-in, none of whose functions fails at first."""
    monkeypatch.setattr(cuda_driver, "LIBRARY", library)
    stand_in = ctypes.CDLL(library)
    stand_in.fail(b"", 0)
    return stand_in


def arguments(size, dtype="float32"):
    """Return the arguments of a launch."""
    sizes = np.array([size, 0, 1, 0, cuda_launch.KERNEL_DTYPES[dtype]], np.uint32)
    operands = np.arange(2, dtype=np.uint32), np.zeros(2, np.uint32), sizes, np.float32(4), np.float32(0)
    return "threefry2x32_direct", (1, 1), (32, 1), jax.ShapeDtypeStruct((1, size), dtype), *operands


@pytest.mark.parametrize(("size", "dtype"), [(1, "bfloat16"), (8, "float32"), (1025, "float16")])
def test_launches_by_the_driver(driver, size, dtype):
    """Results at either end of the memory are what the kernel wrote from the given operands."""
    before = driver.launched()
    launcher = cuda_driver.Driver()
    for at_end in (False, True):
        x = launcher.launch(*arguments(size, dtype), at_end=at_end)
        assert (x.shape, x.dtype) == ((1, size), np.dtype(dtype))
        assert x.tobytes() == (bytes([0, 0, 0, 0, 1, 0, 0, 0]) * size)[: x.nbytes]
    assert driver.launched() - before == 2
    with pytest.raises(ValueError, match="more bytes than the 65536 of its memory"):
        launcher.launch(*arguments(2**15), at_end=False)


@pytest.mark.parametrize("name", cuda_driver.FUNCTIONS)
def test_errors_of_the_driver(driver, name):
    """An error while the driver is set up raises `Unavailable`; an error during a launch raises `DriverError`."""
    driver.fail(name.encode(), 700)
    expected = f"{name} fails with error 700"
    if name in ("cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuCtxSynchronize") or "Memcpy" in name:
        launcher = cuda_driver.Driver()
        with pytest.raises(cuda_driver.DriverError, match=expected):
            launcher.launch(*arguments(8), at_end=False)
    else:
        with pytest.raises(cuda_driver.Unavailable, match=expected):
            cuda_driver.Driver()


def test_a_result_that_is_not_written(driver):
    driver.fail(b"cuLaunchKernel", 0)
    assert set(cuda_driver.Driver().launch(*arguments(8), at_end=True).tobytes()) == {cuda_driver.MARK}


def test_version_of_the_driver(driver):
    assert cuda_driver.version() == 13010
    driver.fail(b"cuDriverGetVersion", 3)
    assert cuda_driver.version() is None


def test_without_a_driver(monkeypatch, library):
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libcuda-of-nobody.so")
    assert cuda_driver.version() is None
    with pytest.raises(cuda_driver.Unavailable, match="libcuda-of-nobody"):
        cuda_driver.Driver()
    monkeypatch.setattr(cuda_driver, "LIBRARY", library)
    monkeypatch.setitem(cuda_driver.FUNCTIONS, "cuNothing", ())
    with pytest.raises(cuda_driver.Unavailable, match="cuNothing"):
        cuda_driver.Driver()


OVERRUN = """
import ctypes, sys
import numpy as np
from jax_von_mises.sampling import cuda_driver
from tests.sampling.test_cuda_verdict import arguments
cuda_driver.LIBRARY = sys.argv[1]
ctypes.CDLL(sys.argv[1]).overrun(int(sys.argv[2]), int(sys.argv[3]))
cuda_driver.Driver().launch(*arguments(5), at_end=bool(int(sys.argv[4])))
"""


@pytest.mark.parametrize(
    ("before", "after", "at_end", "code"),
    [
        (1, 0, 0, -signal.SIGSEGV),
        pytest.param(0, 1, 1, -signal.SIGSEGV, marks=pytest.mark.slow),
        pytest.param(1, 1, 0, -signal.SIGSEGV, marks=pytest.mark.slow),
        pytest.param(0, 1, 0, 0, marks=pytest.mark.slow),
        pytest.param(1, 0, 1, 0, marks=pytest.mark.slow),
    ],
)
def test_a_byte_outside_is_found(library, before, after, at_end, code):
    """A write just before a result at the start of its memory, or just after one at its end, ends the process."""
    command = [sys.executable, "-c", OVERRUN, library, str(before), str(after), str(at_end)]
    done = subprocess.run(command, env=children.environment(), capture_output=True, cwd=children.ROOT)
    assert done.returncode == code


# The process of the trial.


def step(name, **more):
    """Return a program that prints a step."""
    line = cuda_trial.MARK + json.dumps({"step": name, "about": ABOUT, **more})
    return f"print({line!r}, flush=True)\n"


BEGIN, PASS, FAIL = step("begin"), step("end", failed=""), step("end", failed="other words")
DIE = "import os, signal, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.kill(os.getpid(), signal."


@pytest.mark.parametrize(
    ("program", "failed", "detail"),
    [
        (BEGIN + PASS, "", "passed"),
        ("print('XLA says hello')\n" + BEGIN + "print('cuda kernels: {')\n" + PASS, "", "passed"),
        (BEGIN + FAIL, "other words", "failed: other words"),
        (BEGIN + DIE + "SIGSEGV)", "the process crashed: ended by signal 11", "failed: the process crashed"),
        (BEGIN + DIE + "SIGABRT)", "the process crashed: ended by signal 6", "failed: the process crashed"),
        (BEGIN + "raise SystemExit('MemoryError: x')", "the process crashed: MemoryError: x", "failed: the process"),
        (BEGIN + DIE + "SIGKILL)", None, "did not finish: ended by signal 9"),
        (BEGIN + DIE + "SIGTERM)", None, "did not finish: ended by signal 15"),
        (BEGIN + "import time\ntime.sleep(60)", None, "did not finish: no answer within 1 s"),
        (BEGIN, None, "did not finish: it ended without a verdict"),
        (BEGIN + step("unavailable", why="no memory"), None, "did not finish: no memory"),
        ("print('nonsense')", None, "did not start: it ended without a verdict"),
        (BEGIN[:-20] + "')", None, "did not start: it ended without a verdict"),
        ("raise ImportError('no jax')", None, "did not start: ImportError: no jax"),
        (DIE + "SIGSEGV)", None, "did not start: ended by signal 11"),
    ],
)
def test_how_a_trial_ends(home, monkeypatch, program, failed, detail):
    """A verdict on the kernels is kept, whether they pass or fail; an outcome unrelated to them is not."""
    monkeypatch.setattr(kernel_trial, "PROGRAM", ("-S", "-c", program))
    monkeypatch.setattr(kernel_trial, "SANITIZER", "no-such-tool")
    cuda_verdict.keep(ABOUT, "before")
    trials = kernel_trial.run(1 if "sleep" in program else 60)
    assert cuda_verdict.read(ABOUT) == "before", "only `kernel_trial.keep` keeps a verdict"
    (trial,) = kernel_trial.keep(trials)
    assert trial.failed == failed
    assert trial.detail.startswith(detail)
    assert trial.kept == (failed is not None)
    assert cuda_verdict.read(ABOUT) == ("before" if failed is None else failed)


@pytest.mark.parametrize(
    ("script", "failed", "detail"),
    [
        ('exec "$@"', "", "passed, also under compute-sanitizer"),
        (
            'echo "========= ERROR SUMMARY: 3 errors"; exit 9',
            "compute-sanitizer found ERROR SUMMARY: 3 errors",
            "failed",
        ),
        ("exit 1", "", "passed, but did not finish under compute-sanitizer"),
    ],
)
def test_memory_tool(home, monkeypatch, script, failed, detail):
    """A finding of compute-sanitizer is a failure of the kernels, but a failure of the tool itself is not."""
    tool = home / "compute-sanitizer"
    check = '[ "$1 $2 $5 $6" = "--tool memcheck --error-exitcode 9" ] || exit 1; shift 6'
    tool.write_text(f"#!/bin/sh\n{check}\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(home), prepend=os.pathsep)
    monkeypatch.setattr(kernel_trial, "PROGRAM", ("-S", "-c", BEGIN + PASS))
    (trial,) = kernel_trial.run(60)
    assert trial.failed == failed
    assert trial.detail.startswith(detail)


@pytest.mark.parametrize("how", ["variable", "folder"])
def test_a_gpu_shared_by_mps(home, monkeypatch, how):
    """Kernels are not tried on a GPU shared through MPS, where a fault would end other programs."""
    monkeypatch.setattr(kernel_trial, "PROGRAM", ("-S", "-c", BEGIN + FAIL))
    if how == "variable":
        monkeypatch.setenv(kernel_trial.MPS_VARIABLE, "/pipes")
    else:
        monkeypatch.setattr(kernel_trial, "MPS_PIPES", home)
    (trial,) = kernel_trial.run(60)
    assert (trial.failed, trial.kept) == (None, False)
    assert trial.detail.startswith("was not run: NVIDIA MPS")


def test_an_unkept_verdict_is_reported(home, monkeypatch):
    (home / "jax_von_mises").write_text("in the way")
    monkeypatch.setattr(kernel_trial, "PROGRAM", ("-S", "-c", BEGIN + PASS))
    monkeypatch.setattr(kernel_trial, "SANITIZER", "no-such-tool")
    detail = f"passed, but the verdict cannot be kept: {home}/jax_von_mises/kernels: Not a directory"
    assert kernel_trial.keep(kernel_trial.run(60)) == (("a card", "", detail, ABOUT, False),)


COMPLETE_TRIAL = """
import sys
import jax
from jax_von_mises import environment
from jax_von_mises.sampling import cuda_driver, cuda_launch, cuda_trial
from tests import host_kernels
from tests.sampling.test_cuda_verdict import on_this_host
environment.nvidia_driver = lambda: "580.65.06"
cuda_launch.PLATFORM, cuda_launch.launch = "cpu", host_kernels.callback
if "wrong" in sys.argv:
    cuda_launch.launch = lambda *arguments: -host_kernels.callback(*arguments)
class Driver:
    def __init__(self, ordinal):
        if "none" in sys.argv:
            raise cuda_driver.Unavailable("no driver")
    launch = staticmethod(on_this_host)
cuda_driver.Driver, cuda_trial.LONG = Driver, 5000
cuda_trial.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "failed", "detail"),
    [
        ("right", "", "passed"),
        ("wrong", "on cpu its float32 angles are up to", "failed: on cpu its float32"),
        ("none", None, "did not finish: no driver"),
    ],
)
def test_a_trial(one_card, monkeypatch, how, failed, detail):
    """A separate process runs the trial; draws use a kernel afterwards if the trial passed."""
    monkeypatch.setattr(kernel_trial, "PROGRAM", ("-W", "error", "-c", COMPLETE_TRIAL, how))
    monkeypatch.setattr(kernel_trial, "SANITIZER", "no-such-tool")
    monkeypatch.chdir(children.ROOT)
    (trial,) = kernel_trial.keep(kernel_trial.run(300, PYTHONPATH=str(children.ROOT), JAX_NUM_CPU_DEVICES="1"))
    assert trial.detail.startswith(detail)
    assert (trial.failed or "").startswith(failed or "")
    assert (trial.failed is None) == (failed is None)
    assert used(jax.random.key(0)) == (how == "right")


# Files.


def test_files_are_drawn_by_the_plain_path(on_host, tmp_path, key):  # noqa: F811
    """Files are drawn by the plain path, so a run can continue without kernels; batches use kernels."""
    names = []

    def launch(name, *operands):
        names.append(name)
        return host_kernels.callback(name, *operands)

    on_host.setattr(cuda_launch, "launch", launch)
    arguments = key, 1.0, 4.0, 3000
    jax_von_mises.write_samples(tmp_path / "angles.npy", *arguments, block_rows=1000)
    assert not names
    next(jax_von_mises.sample_batches(*arguments, batch_size=3000))
    assert names
    on_host.setenv(cuda.VARIABLE, "0")
    (plain,) = jax_von_mises.sample_batches(*arguments, batch_size=3000)
    np.testing.assert_array_equal(np.load(tmp_path / "angles.npy"), plain)
