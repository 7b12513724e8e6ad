"""Test that suggested batch sizes fit under a real memory limit, and that much larger ones do not."""

import sys

import jax
import numpy as np
import pytest

from jax_von_mises import runtime
from jax_von_mises.runtime import memory
from tests import children

NEAR = """
import itertools, pathlib, resource, sys
import jax, numpy as np
from jax_von_mises import sample_batches, sample_block, runtime
from jax_von_mises.runtime import memory
columns, in_flight, beyond = map(float, sys.argv[1:])
columns, in_flight = int(columns), int(in_flight)
shape, k = ((), 4.0) if columns == 1 else ((columns,), np.linspace(1, 9, columns, dtype=np.float32))
key = jax.random.key(0)
def draw(rows):
    if in_flight == 3:  # a loop holds the current batch while the next two are drawn
        for batch in itertools.islice(sample_batches(key, 0.0, k, 8 * rows, rows), 5):
            batch.block_until_ready()
    else:
        kept = [sample_block(key, 0.0, k, i, (rows, *shape)).block_until_ready() for i in range(in_flight)]
draw(64)
runtime.suggest_batch_size(k, shape=shape, in_flight=in_flight)  # the compiler takes its memory before the limit is set
used = int(pathlib.Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
limit = used + 200 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
memory.host_memory = lambda: (limit, limit - used)  # as a control group of this size would report
(report,) = runtime.memory_report()
rows = runtime.suggest_batch_size(k, shape=shape, in_flight=in_flight, share=0.85)
(program,) = runtime.warmup((rows, *shape), concentration=k, block=True)
need = program.temporary_bytes + in_flight * program.output_bytes
assert 0.75 * report.free < need < 0.85 * report.free, (rows, program, report)
draw(rows)
try:
    draw(int(rows * beyond))
except jax.errors.JaxRuntimeError as error:
    assert "RESOURCE_EXHAUSTED" in str(error)
else:
    raise SystemExit(f"{beyond} times as many rows also fit")
try:
    runtime.suggest_batch_size(k, shape=(2**28, *shape))
except MemoryError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_DATA as on Linux")
@pytest.mark.parametrize(("columns", "in_flight"), [(1, 3), (5, 1)])
def test_near_the_limit(columns, in_flight):
    """A suggested size fits under a real limit, and a size larger by the factor `beyond` does not.

    In a loop, the third batch may be allocated late, so only a much larger size is certain to fail.
    """
    (message,) = children.run(NEAR, columns, in_flight, {1: 1.4, 3: 1.9}[in_flight])
    assert message.startswith(f"suggest_batch_size: one row of {columns * 2**28} angles needs ")


class Device:
    """A stand-in for a GPU with the given statistics."""

    platform, id, device_kind = "cuda", 1, "Stand-in"

    def __init__(self, stats):
        self.stats = stats

    def memory_stats(self):
        """Return the statistics, like `jax.Device.memory_stats`."""
        return self.stats


def test_report():
    (cpu, *_) = runtime.memory_report()
    assert cpu.device == "cpu:0"
    assert 0 < cpu.in_use <= cpu.peak
    assert 0 < cpu.free < cpu.limit
    gpu = memory.of_device(Device({"bytes_in_use": 3, "peak_bytes_in_use": 5, "bytes_limit": 10}))
    assert gpu == ("cuda:1", "Stand-in", 3, 5, 10, 7)
    # Some backends report no statistics, or only some of them.
    assert memory.of_device(Device(None))[2:] == (None, None, None, None)
    assert memory.of_device(Device({"bytes_in_use": 3}))[2:] == (3, None, None, None)


def test_suggestion(monkeypatch):
    """The suggestion depends on the free memory of the device, and has an upper limit."""
    free = 2**20
    monkeypatch.setattr(memory, "host_memory", lambda: (2**40, free))
    rows = runtime.suggest_batch_size(4.0, method="direct", in_flight=2, share=1)
    (program,) = runtime.warmup(rows, concentration=4.0, method="direct", block=True)
    assert free * 0.93 < program.temporary_bytes + 2 * program.output_bytes <= free


@pytest.mark.more
def test_suggestions_for_rows(monkeypatch):
    """Rows take more memory than angles; there is an upper limit, and none without a known limit of memory."""
    free = 2**20
    monkeypatch.setattr(memory, "host_memory", lambda: (2**40, free))
    rows = runtime.suggest_batch_size(4.0, method="direct", in_flight=2, share=1)
    fewer = runtime.suggest_batch_size(4.0, shape=(10,), method="direct", in_flight=2, share=0.5)
    assert fewer == pytest.approx(rows / 20, rel=0.1)
    free = 2**50
    assert runtime.suggest_batch_size(4.0, device=jax.local_devices()[-1]) == 2**26
    assert runtime.suggest_batch_size(np.ones(3, np.float32), shape=(3,)) * 3 <= 2**26
    monkeypatch.setattr(memory, "host_memory", lambda: (None, None))
    with pytest.raises(MemoryError, match="does not report"):
        runtime.suggest_batch_size()
    with pytest.raises(TypeError, match="device='cpu' must be a JAX device"):
        runtime.suggest_batch_size(device="cpu")


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups(tmp_path, monkeypatch, version):
    """A limit is found at any level of the control groups, of either version."""
    root, limit_file, usage_file, cached_entry, line, unlimited = {
        1: ("memory", "limit_in_bytes", "usage_in_bytes", "total_inactive_file", "4:cpu,memory:/job/step", 2**63 - 1),
        2: ("", "max", "current", "inactive_file", "0::/job/step", "max"),
    }[version]

    def group(path, limit, usage, cached):
        folder = tmp_path / "cgroup" / root / path
        folder.mkdir(parents=True)
        (folder / f"memory.{limit_file}").write_text(f"{limit}\n")
        (folder / f"memory.{usage_file}").write_text(f"{usage}\n")
        (folder / "memory.stat").write_text(f"anon 1\n{cached_entry} {cached}\n")

    group("job", 1000, 400, 100)
    group("job/step", unlimited, 50, 0)
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(f"5:cpuset:/\n{line}\n1:name=systemd:/job\n")
    (tmp_path / "meminfo").write_text("MemTotal:       9 kB\nMemFree:        1 kB\nMemAvailable:   8 kB\n")
    monkeypatch.setattr(memory, "PROC", tmp_path)
    assert memory.host_memory() == (1000, 700)
    (tmp_path / "meminfo").write_text("MemTotal:       9 kB\nMemFree:        0 kB\nMemAvailable:   0 kB\n")
    assert memory.host_memory() == (1000, 0)
    (tmp_path / "self" / "cgroup").write_text("5:cpuset:/\n")
    assert memory.host_memory() == (9 * 1024, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="compares with /proc")
def test_other_systems(tmp_path, monkeypatch):
    """Without /proc, the numbers come from psutil where it is installed."""
    pytest.importorskip("psutil")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    here = memory.of_device(jax.local_devices()[0])
    monkeypatch.setattr(memory, "PROC", tmp_path / "none")
    other = memory.of_device(jax.local_devices()[0])
    assert other.limit == here.limit
    assert other.in_use == pytest.approx(here.in_use, rel=0.2)
    assert 0 < other.free < other.limit
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert memory.of_device(jax.local_devices()[0])[2:] == (None, None, None, None)


def test_sizes_are_few():
    sizes = {memory._rounded(rows) for rows in range(1, 4096)}
    assert len(sizes) < 150
    assert all(0.93 * rows < memory._rounded(rows) <= rows for rows in range(1, 4096))
