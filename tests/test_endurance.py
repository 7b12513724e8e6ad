"""Long runs leak no memory, threads, open files, arrays or compiled programs.

``ENDURANCE_MINUTES=60 pytest -m slow tests/test_endurance.py`` runs for an hour; the default is a minute.
"""

import contextlib
import gc
import os
import random
import shutil
import threading
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

import jax_von_mises as jvm

SECONDS = 60 * float(os.environ.get("ENDURANCE_MINUTES", "1"))
THREADS = 4
# The results for this many numbers are computed before the threads start.
KNOWN = 2
# Allowed growth in bytes: allocators retain less than this, and a leak in each call soon exceeds it.
MEMORY = 64 * 2**20
# Threads that the pools of libraries may start late.
POOL = 4
COUNT = 2**14


def given(number):
    """Return a key and parameters that depend on a number."""
    rng = np.random.default_rng(number)
    return jax.random.key(number), np.float32(rng.uniform(-np.pi, np.pi)), np.float32(10 ** rng.uniform(-2, 6))


@jax.jit
def gradient(key, loc, concentration):
    def mean(loc, concentration):
        return jnp.mean(jnp.cos(jvm.sample_von_mises(key, loc, concentration, (COUNT // 4,), method="direct")))

    return jax.grad(mean, (0, 1))(loc, concentration)


def actions(folder):
    """Map names to functions of a number, which determines the key and the parameters but no shape."""
    devices = jax.local_device_count()
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    points = np.linspace(0.001, 0.999, 1_000, dtype=np.float32)

    def batches(number):
        return list(jvm.prefetch_to_host(jvm.sample_batches(*given(number), 3 * COUNT // 4, COUNT // 4)))

    def left_early(number):
        return next(jvm.prefetch_to_host(jvm.sample_batches(*given(number), COUNT, COUNT // 4)))

    def stream(number, ending):
        # Two threads may use the same number, but a file has one writer.
        out = folder / f"{threading.get_ident()}-{number}.{ending}"
        jvm.write_samples(out, *given(number), COUNT, block_rows=COUNT // 4)
        record = jvm.verify_samples(out)
        shutil.rmtree(out) if out.is_dir() else out.unlink()
        out.with_name(f"{out.name}.blocks").unlink(missing_ok=True)
        return np.array(record["redrawn"], np.uint32)

    calls = {
        "sample small": lambda number: jvm.sample_von_mises(*given(number), (1_000,)),
        "sample matrix": lambda number: jvm.sample_von_mises(*given(number), (64, 48)),
        "sample large": lambda number: jvm.sample_von_mises(*given(number), (COUNT,)),
        "block": lambda number: jvm.sample_block(*given(number), number << 32, (COUNT // 2,)),
        "batches": batches,
        "batches left early": left_early,
        "pmap": lambda number: jvm.sample_pmap(*given(number), (devices, COUNT // 8)),
        "sharded": lambda number: jvm.sample_von_mises(*given(number), (devices * 64, 8), out_sharding=sharding),
        "gradient": lambda number: gradient(*given(number)),
        "log_prob": lambda number: jvm.log_prob(points, *given(number)[1:]),
        "cdf": lambda number: jvm.cdf(points, *given(number)[1:]),
        "icdf": lambda number: jvm.icdf(points, *given(number)[1:]),
        "fit": lambda number: jvm.fit(jvm.sample_von_mises(*given(number), (1_000,))),
        "file": lambda number: stream(number, "npy"),
    }
    with contextlib.suppress(ImportError):
        import zarr  # noqa: F401

        calls["store"] = lambda number: stream(number, "zarr")
    return calls


def digest(result):
    """Return the checksum of all elements of a result."""
    checksum = 0
    for leaf in jax.tree.leaves(result):
        checksum = zlib.crc32(np.ascontiguousarray(leaf), checksum)
    return checksum


def work(calls, known, seconds):
    """Make random calls from several threads for `seconds`; return how often each was made."""
    stop, end = threading.Event(), time.monotonic() + seconds

    def worker(seed):
        rng, done = random.Random(seed), Counter()
        try:
            while not stop.is_set() and time.monotonic() < end:
                name = rng.choice(list(calls))
                number = rng.choice([rng.randrange(KNOWN), rng.randrange(2**31)])
                result = digest(calls[name](number))
                assert known.get((name, number), result) == result, f"{name}, number {number}: the values have changed"
                done[name] += 1
        except BaseException:
            stop.set()  # one failure is enough
            raise
        return done

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(worker, range(THREADS)), Counter())


def held(process):
    """Return the resources that the process holds while no call runs."""
    gc.collect()
    memory = process.memory_info()
    return {
        "memory": memory.rss - getattr(memory, "shared", 0),
        "threads": process.num_threads(),
        "files": process.num_fds(),
        "arrays": len(jax.live_arrays()),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_long_work_leaks_nothing(tmp_path):
    process, calls, events = psutil.Process(), actions(tmp_path), Counter()

    def listen(event, seconds, **_):
        events[event] += 1

    known = {(name, number): digest(call(number)) for name, call in calls.items() for number in range(KNOWN)}
    jax.monitoring.register_event_duration_secs_listener(listen)
    work(calls, known, SECONDS / 4)  # until thread pools and allocators have grown to their full size
    before = held(process)
    done = work(calls, known, 3 * SECONDS / 4)
    after = held(process)
    print(f"{dict(done)}\nbefore: {before}\nafter: {after}\nevents of JAX: {dict(events)}")
    growth = {name: after[name] - before[name] for name in before}
    assert set(done) == set(calls), "an action never ran: increase ENDURANCE_MINUTES"
    assert growth["arrays"] == growth["files"] == 0
    assert growth["threads"] <= POOL
    assert growth["memory"] < MEMORY
    assert not [event for event in events if event.startswith("/jax/core/compile")], "a program was traced or compiled"
    assert list(tmp_path.iterdir()) == []
