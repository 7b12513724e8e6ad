"""Whether hours of work leave anything behind: memory, threads, open files, compiled programs, or a wrong angle.

``python -m benchmarks.endurance --minutes 60`` samples from several threads in every public way, with changing keys and
parameters and shapes from a fixed set: whole arrays, blocks, batches, over all devices, to files, densities, quantiles
and gradients. After a round that compiles everything nothing may grow. Angles are compared with those that were drawn
before the threads began, bit for bit.
"""

import argparse
import contextlib
import gc
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import environment, memory
from benchmarks.files import finish, new_file, rounded
from benchmarks.text import environment_text, positive, table

__all__ = ["Action", "Point", "Run", "Verdict", "actions", "judge", "main", "work"]

FORMAT = 1
MINUTES = {"quick": 0.25, "full": 10.0}
THREADS = 4
# Bytes: what allocators keep moves by less, and what is left behind in each call is soon more.
GROWTH = 64 * 2**20
# Points of a run: enough for medians of its quarters, few enough for a file.
POINTS = 400
# What JAX tells its listeners each time that XLA has compiled a program.
COMPILED = "/jax/core/compile/backend_compile_duration"


class Action(NamedTuple):
    """Something that is done again and again, in any thread."""

    name: str
    call: object
    """``call(number)``: works with keys and parameters that depend on the number alone, and gives an array or None."""


class Point(NamedTuple):
    """What the process holds at a moment."""

    seconds: float
    memory: int
    """Bytes of its own."""
    threads: int
    files: int
    """Open files, and what else has a descriptor."""
    programs: int
    """Programs that XLA has compiled since the work began."""
    arrays: int
    """Arrays of JAX that are alive."""


class Run(NamedTuple):
    """What came of the work."""

    points: tuple
    calls: dict
    """How often each action was done."""
    faults: tuple
    """Errors, and angles that were not those of before."""


class Verdict(NamedTuple):
    """One thing that must hold."""

    what: str
    found: float
    allowed: float

    @property
    def held(self):
        """Whether it does."""
        return self.found <= self.allowed


class Programs:
    """Counts the programs that XLA compiles, as a context manager."""

    def __init__(self):
        self.count = 0

    def __enter__(self):
        import jax

        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *exception):
        import jax

        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event, seconds, **_):
        if event == COMPILED:
            self.count += 1


def actions(folder, small=False):
    """All public ways to draw and to compute, on the devices that there are; files go to `folder`."""
    import jax
    import jax.numpy as jnp

    import jax_von_mises as jvm

    count = 2**12 if small else 2**18
    devices = jax.local_device_count()
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    def given(number):
        """A key and parameters of this number."""
        rng = np.random.default_rng(number)
        loc, concentration = rng.uniform(-np.pi, np.pi), 10 ** rng.uniform(-2, 6)
        return jax.random.key(number), np.float32(loc), np.float32(concentration)

    @jax.jit
    def gradient(key, loc, concentration):
        def mean(loc, concentration):
            return jnp.mean(jnp.cos(jvm.sample_von_mises(key, loc, concentration, (count // 4,), method="direct")))

        return jnp.stack(jax.grad(mean, (0, 1))(loc, concentration))

    def sample(shape):
        return lambda number: jvm.sample_von_mises(*given(number), shape)

    def block(number):
        return jvm.sample_block(*given(number), number << 32, (count // 2,))

    def batches(number):
        with jvm.prefetch_to_host(jvm.sample_batches(*given(number), 3 * count // 4, count // 4)) as host:
            return np.concatenate(list(host))

    def left_early(number):
        with jvm.prefetch_to_host(jvm.sample_batches(*given(number), count, count // 4)) as host:
            return next(host)

    def pmap(number):
        return jvm.sample_pmap(*given(number), (devices, count // 8))

    def sharded(number):
        return jvm.sample_von_mises(*given(number), (devices * 64, 8), out_sharding=sharding)

    def stream(ending):
        def write(number):
            # Two threads may have the same number, and a file has one writer.
            out = os.path.join(folder, f"{threading.get_ident()}-{number}.{ending}")
            jvm.write_samples(out, *given(number), count, block_rows=count // 4)
            record = jvm.verify_samples(out)
            remove(out)
            return np.array([int(crc, 16) for crc in record["crc32"].values()], np.uint32)

        return write

    def function(call):
        points = np.linspace(0.001, 0.999, 1_000, dtype=np.float32)
        return lambda number: call(points, *given(number)[1:])

    def fit(number):
        return jvm.fit(jvm.sample_von_mises(*given(number), (1_000,)))

    found = [
        Action("sample small", sample((1_000,))),
        Action("sample matrix", sample((64, 48))),
        Action("sample large", sample((count,))),
        Action("block", block),
        Action("batches", batches),
        Action("batches left early", left_early),
        Action("pmap", pmap),
        Action("sharded", sharded),
        Action("gradient", lambda number: gradient(*given(number))),
        Action("log_prob", function(jvm.log_prob)),
        Action("cdf", function(jvm.cdf)),
        Action("icdf", function(jvm.icdf)),
        Action("fit", fit),
        Action("file", stream("npy")),
    ]
    with contextlib.suppress(ImportError):
        import tensorstore  # noqa: F401

        found.append(Action("store", stream("zarr")))
    return found


def remove(out):
    """Remove what a stream has written."""
    shutil.rmtree(out) if os.path.isdir(out) else os.unlink(out)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{out}.json")


def held(start, programs):
    """The `Point` of now."""
    import jax

    folder = Path("/proc/self")
    threads = len(list((folder / "task").iterdir())) if folder.exists() else threading.active_count()
    # The descriptor by which they are counted is one of them.
    files = len(os.listdir(folder / "fd")) - 1 if folder.exists() else 0
    arrays = len(jax.live_arrays())
    return Point(time.perf_counter() - start, memory.resident().private, threads, files, programs.count, arrays)


def digest(result):
    """The checksum of all numbers of a result."""
    import jax

    found = 0
    for leaf in jax.tree.leaves(result):
        found = zlib.crc32(np.ascontiguousarray(leaf), found)
    return found


# Numbers that an action is done with: so few that each is done before the threads begin, and known.
KNOWN = 2


def work(given, seconds, threads=THREADS):
    """Do all actions from several threads for so long; first each by itself, which compiles it and tells what is right.

    Returns
    -------
    Run
        With a point from before the threads begin, some while they work, and one from after.
    """
    known = {(action.name, number): digest(action.call(number)) for action in given for number in range(KNOWN)}
    calls = dict.fromkeys((action.name for action in given), 0)
    faults, lock, stop = [], threading.Lock(), threading.Event()

    def worker(seed):
        rng = random.Random(seed)
        while not stop.is_set():
            action, number = rng.choice(given), rng.randrange(2**31)
            # Every other time one that is known.
            number = number % KNOWN if number % 2 else number
            try:
                found = digest(action.call(number))
                fault = None if known.get((action.name, number), found) == found else "gave other numbers than before"
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"
            with lock:
                calls[action.name] += 1
                if fault is not None:
                    faults.append(f"{action.name}, number {number}: {fault}")
                    stop.set()

    with Programs() as programs:
        workers = [threading.Thread(target=worker, args=(i,), name=f"worker {i}") for i in range(threads)]
        gc.collect()
        held(0.0, programs)  # starts JAX, whose threads are not those of the work
        start = time.perf_counter()
        points = [held(start, programs)]
        for each in workers:
            each.start()
        try:
            while not stop.wait(max(seconds / POINTS, 0.02)) and time.perf_counter() - start < seconds:
                points.append(held(start, programs))
        finally:
            stop.set()
            for each in workers:
                each.join()
        gc.collect()
        points.append(held(start, programs))
    return Run(tuple(points), calls, tuple(faults))


def quarter(points, which, field):
    """The median of a field over a quarter of the time, while threads work."""
    begin, length = points[0].seconds, points[-1].seconds - points[0].seconds
    inside = [
        getattr(point, field)
        for point in points[1:-1]
        if which <= 4 * (point.seconds - begin) / max(length, 1e-9) < which + 1
    ]
    return float(np.median(inside)) if inside else float(getattr(points[-1], field))


def judge(run, growth=GROWTH, left=0):
    """The verdicts on a run; `left` are files that it has left behind."""
    points = run.points
    before, after = points[0], points[-1]

    def grown(field):
        """From the second quarter, when all threads have what they need, to the last."""
        return quarter(points, 3, field) - quarter(points, 1, field)

    return [
        Verdict("errors and wrong numbers", len(run.faults), 0),
        Verdict("actions that were never done", sum(not count for count in run.calls.values()), 0),
        Verdict("programs compiled after the first round", after.programs - before.programs, 0),
        Verdict("growth of memory, bytes", grown("memory"), growth),
        Verdict("growth of threads", grown("threads"), 4),
        Verdict("threads more than before", after.threads - before.threads, 8),
        Verdict("growth of open files", grown("files"), 4),
        Verdict("open files more than before", after.files - before.files, 0),
        Verdict("arrays more than before", after.arrays - before.arrays, 0),
        Verdict("files left behind", left, 0),
    ]


def points_text(points, rows=8):
    """Some of the points as a table."""
    chosen = sorted({round(i) for i in np.linspace(0, len(points) - 1, min(rows, len(points)))})
    lines = [("seconds", "memory, MiB", "threads", "open files", "programs", "arrays")]
    for point in (points[i] for i in chosen):
        lines.append((f"{point.seconds:.0f}", f"{point.memory / 2**20:.0f}", *point[2:]))
    return table(lines)


def verdict_text(verdicts):
    """Lay out the verdicts."""
    return table([(each.what, f"{each.found:,.0f}", "held" if each.held else "NOT HELD") for each in verdicts])


def minutes(text):
    """Read a time above 0."""
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no time above 0")
    return value


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description=__doc__.splitlines()[0])
    made.add_argument("--quick", action="store_true", help="a quarter of a minute, on small arrays")
    made.add_argument("--minutes", type=minutes, help="how long; {quick} quick, {full} else".format(**MINUTES))
    made.add_argument("--threads", type=positive, default=THREADS, help="how many work; %(default)s")
    made.add_argument(
        "--growth", type=positive, default=GROWTH, metavar="BYTES", help="of memory that is allowed; %(default)s"
    )
    made.add_argument("--json", metavar="FILE", type=new_file, help="write all points, verdicts and the environment")
    return made


def main(arguments=None):
    """Run; returns 0 if all held, 1 if something did not, 130 if interrupted."""
    given = parser().parse_args(arguments)
    seconds = 60 * (given.minutes or MINUTES["quick" if given.quick else "full"])
    began = time.perf_counter()
    about = environment.describe()
    print(environment_text(about))
    print(f"  {given.threads} threads for {seconds / 60:g} min, after a round that compiles.", flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="jax_von_mises-") as folder:
            run = work(actions(folder, small=given.quick), seconds, given.threads)
            left = len(os.listdir(folder))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    verdicts = judge(run, given.growth, left)
    print(f"\n{points_text(run.points)}\n")
    print("  " + ", ".join(f"{name} {count:,}" for name, count in run.calls.items()))
    print(f"\n{verdict_text(verdicts)}")
    for fault in run.faults:
        print(f"  {fault}")
    passed = all(each.held for each in verdicts)
    print("\nnothing was left behind" if passed else "\nSOMETHING WAS LEFT BEHIND")
    finish(
        began,
        given.json,
        rounded(
            {
                "format": FORMAT,
                "program": "endurance",
                "environment": about,
                "options": {"minutes": seconds / 60, "threads": given.threads, "growth": given.growth},
                "fields": list(Point._fields),
                "points": [list(point) for point in run.points],
                "calls": run.calls,
                "faults": list(run.faults),
                "verdicts": [{**each._asdict(), "held": each.held} for each in verdicts],
            }
        ),
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
