"""What must hold on a GPU: each check gives what it found, in words, and whether that is right."""

import os
import shutil
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

import jax_von_mises as jvm
from benchmarks import reference
from benchmarks.exactness import __main__ as exactness
from benchmarks.exactness import law as promise
from benchmarks.exactness import plan as laws
from benchmarks.exactness import verdicts
from benchmarks.words import CIPHERS
from jax_von_mises import counter, cuda, sampler

__all__ = ["CHECKS", "Found", "compared", "fused", "run"]

METHODS = ("table", "direct")
KAPPAS = (0.0, 1e-3, 0.1, 0.5, 1.0, 2.0, 4.9999, 5.0, 16.9, 17.1, 30.0, 100.0, 1e4, 1e6, 1e8)
STARTS = (0, 2**32 - 6, 2**40 + 3, 2**64 - 4096)
GRADIENT = 2e-4


class Found(NamedTuple):
    """One check: `ok` is None where it could not be made."""

    check: str
    ok: bool | None
    told: str


def key_of(implementation):
    """A key; None where this JAX has no such one."""
    try:
        return jax.random.key(20261121, impl=implementation)
    except ValueError:
        return None


def fused():
    """The paths there are: False for the plain one, True for the kernel."""
    arguments = jnp.zeros(()), jnp.ones(()), (8,), np.dtype(np.float32), "direct", None
    return (False, True) if cuda.chosen(jax.random.key(0), *arguments) else (False,)


def path_name(kernel):
    """For tables."""
    return "kernel" if kernel else "plain"


def draw(key, loc, kappa, start, shape, dtype, method, kernel):
    """Angles by one path."""
    loc, kappa = jnp.asarray(loc, jnp.float32), jnp.asarray(kappa, jnp.float32)
    dtype = jnp.dtype(dtype)
    return sampler.draw(key, loc, kappa, counter.halves(start), shape, dtype, method, None, kernel)


def on_cpu(function, *given):
    """The same on the CPU."""
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu):
        return np.asarray(function(*jax.device_put(given, cpu)))


def kernels(plan):
    """Whether each passes the test that the package makes before it uses one."""
    if not cuda.devices():
        yield Found("CUDA kernels", None, "there is no CUDA device")
        return
    names = {cuda.Job(cipher, method, dtype, ()) for cipher in CIPHERS for method in METHODS for dtype in cuda.DTYPES}
    failed = sorted({job.name for job in names if not cuda.works(job)})
    yield Found(
        "CUDA kernels", not failed, cuda.report() if failed else f"all {len(names)} pass the package's own test"
    )


def words(plan):
    """Those of every cipher, here and on the CPU."""
    for name in CIPHERS:
        key = key_of(name)
        if key is None:
            yield Found(f"words, {name}", None, "this JAX has no such key")
            continue
        function = jax.jit(lambda key, hi, lo: counter.words(key, (plan.words,), 1, (hi, lo))[0])
        same = [
            np.array_equal(np.asarray(function(key, *halves)), on_cpu(function, key, *halves))
            for halves in map(counter.halves, STARTS)
        ]
        yield Found(f"words, {name}", all(same), f"{plan.words:,} from each of {len(same)} places, bit for bit")


def compared(x, words, kappa):
    """How far angles about 0 are from those of their words, at most, as a share of what is allowed."""
    t = ((words >> 1) + 0.5) * 2.0**-32
    size = np.abs(x).astype(np.float64)
    if not np.isfinite(size).all() or not np.array_equal(x < 0, (words & 1 == 1) & (size > 0)):
        return np.inf
    off = np.abs(reference.tail(size, kappa) - t)
    return float(np.max(off / promise.slack_at(size, t, kappa, "float32")))


def angles(plan):
    """Over the grid of concentrations, by both routes and paths; and how far from the CPU's."""
    key = jax.random.key(3, impl="threefry2x32")
    drawn = np.asarray(counter.words(key, (plan.angles,), 1)[0])
    for kernel in fused():
        for method in METHODS:
            worst, at, apart = 0.0, None, 0.0
            program = lambda key, k, kernel=kernel, method=method: draw(  # noqa: E731
                key, 0.0, k, 0, (plan.angles,), "float32", method, kernel
            )
            for kappa in KAPPAS:
                k = np.float32(kappa)
                x = np.asarray(program(key, k))
                beside = on_cpu(
                    lambda key, k, method=method: draw(key, 0.0, k, 0, (plan.angles,), "float32", method, False), key, k
                )
                share = compared(x, drawn, float(k))
                if share >= worst:
                    worst, at = share, kappa
                apart = max(apart, float(np.mean(np.abs(x - beside) > promise.ULP * np.spacing(np.abs(beside)))))
            told = f"at most {worst:.2f} of what is allowed, at k={at:g}; "
            told += f"at most {apart:.1%} further than {promise.ULP} ulp from the CPU's at any k"
            yield Found(f"angles, {method}, {path_name(kernel)}", worst <= 1, told)


def parameters(plan):
    """Bad ones, infinite ones and arrays of them."""
    key = jax.random.key(4)
    kappa = np.array([-1, np.nan, np.inf, 0, 5, 1e30, 5, 5], np.float32)
    loc = np.array([0, 0, 0.5, 0, np.inf, 1, 3e7, -3], np.float32)
    for kernel in fused():
        x = np.asarray(draw(key, loc, kappa, 0, (8,), "float32", "direct", kernel))
        right = np.array_equal(np.isnan(x), [1, 1, 0, 0, 1, 0, 1, 0]) and x[2] == 0.5 and abs(x[5] - 1) < 1e-6
        table = np.asarray(draw(key, 0.0, -1.0, 0, (8,), "float32", "table", kernel))
        point = np.asarray(draw(key, 0.5, np.inf, 0, (8,), "float32", "table", kernel))
        right = right and np.isnan(table).all() and (point == 0.5).all()
        yield Found(f"bad and infinite parameters, {path_name(kernel)}", bool(right), "NaN where they are bad")


def dtypes(plan):
    """Two short floats are the roundings of float32, and float64 keeps its own promise."""
    key = jax.random.key(5)
    for kernel in fused():
        for method in ("table", "direct"):
            whole = draw(key, 2.0, 5.0, 0, (plan.angles,), "float32", method, kernel)
            for dtype in ("bfloat16", "float16"):
                short = draw(key, 2.0, 5.0, 0, (plan.angles,), dtype, method, kernel)
                same = bool((short == whole.astype(dtype)).all())
                yield Found(f"{dtype}, {method}, {path_name(kernel)}", same, "float32 rounded once, bit for bit")
    with jax.enable_x64(True):
        draw64 = lambda key: jvm.sample_von_mises(key, 0.0, 5.0, (plan.angles,), "float64")  # noqa: E731
        apart = float(np.max(np.abs(np.asarray(draw64(key)) - on_cpu(draw64, key))))
    yield Found("float64", apart < 1e-11, f"{apart:.1e} from the CPU's")


def sizes(plan):
    """Every size gives the beginning of the longest draw, from the inside of a block too."""
    key = jax.random.key(6)
    for kernel in fused():
        for method in ("direct", "table"):
            # Each size is a program of its own, which takes XLA seconds where it makes more than a launch.
            every = {(True, "direct"): 1, (True, "table"): 10}.get((kernel, method), 25)
            tried = plan.sizes[::every]
            longest = np.asarray(draw(key, 1.0, 5.0, 2**32 - 1001, (max(tried),), "float32", method, kernel))
            wrong = [
                size
                for size in tried
                if not np.array_equal(
                    draw(key, 1.0, 5.0, 2**32 - 1001, (size,), "float32", method, kernel), longest[:size]
                )
            ]
            told = f"{len(tried)} sizes up to {max(tried)}" + (f"; wrong: {wrong[:10]}" if wrong else "")
            yield Found(f"sizes, {method}, {path_name(kernel)}", not wrong, told)


def huge(plan):
    """One draw of more than 2^32 angles, slices of which are blocks of the stream."""
    if not plan.huge:
        yield Found("more than 2^32 angles", None, "left out of this plan")
        return
    key, part = jax.random.key(7), 1001
    for kernel in fused():
        try:
            x = draw(key, 1.0, 5.0, 0, (plan.huge,), "bfloat16", "table", kernel)
            places = (0, 2**31 - 500, 2**32 - 500, plan.huge - part)
            same = []
            for place in places:
                block = draw(key, 1.0, 5.0, place, (part,), "bfloat16", "table", kernel)
                same.append(np.array_equal(jax.lax.slice(x, (place,), (place + part,)), block))
            del x
        except Exception as error:  # the memory may not be there
            yield Found(f"more than 2^32 angles, {path_name(kernel)}", None, str(error).split("\n")[0][:150])
            continue
        told = f"slices of {plan.huge:,} angles are the blocks at their places"
        yield Found(f"more than 2^32 angles, {path_name(kernel)}", all(same), told)


def gradients(plan):
    """In the concentration and in the direction, beside the CPU's."""
    key = jax.random.key(8)
    for kernel in fused():
        for method in ("table", "direct"):

            def total(loc, kappa, kernel=kernel, method=method):
                return (draw(key, loc, kappa, 0, (1024,), "float32", method, kernel) ** 2).sum()

            worst = 0.0
            for kappa in (0.1, 1.0, 5.0, 100.0, 1e4):
                given = jnp.float32(0.3), jnp.float32(kappa)
                ours = np.array(jax.jit(jax.grad(total, (0, 1)))(*given))
                cpu = lambda *given, method=method: jnp.stack(  # noqa: E731
                    jax.grad(lambda *each: total(*each, kernel=False, method=method), (0, 1))(*given)
                )
                expected = on_cpu(cpu, *given)
                worst = max(worst, float(np.max(np.abs(ours - expected) / np.abs(expected))))
            yield Found(f"gradients, {method}, {path_name(kernel)}", worst < GRADIENT, f"{worst:.1e} off at most")


def transformations(plan):
    """`vmap`, `scan`, `shard_map` and `pmap` give the angles of single draws."""
    keys = jax.random.split(jax.random.key(9), 3)

    def one(key):
        return jvm.sample_von_mises(key, 1.0, 5.0, (67,), method="direct")

    expected = np.stack([one(key) for key in keys])
    yield Found("vmap", np.array_equal(jax.jit(jax.vmap(one))(keys), expected), "rows are single draws")
    scanned = jax.lax.scan(lambda _, key: (None, one(key)), None, keys)[1]
    yield Found("scan", np.array_equal(scanned, expected), "steps are single draws")
    count = jax.local_device_count()
    mesh = jax.make_mesh((count,), ("device",), axis_types=(AxisType.Auto,))
    body = lambda key: jvm.sample_shard(key, 1.0, 5.0, (67,), "device", method="direct")  # noqa: E731
    parts = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec("device")))(
        keys[0]
    )
    mapped = jvm.sample_pmap(keys[0], 1.0, 5.0, (count, 67), method="direct")
    whole = np.asarray(jvm.sample_von_mises(keys[0], 1.0, 5.0, (count * 67,), method="direct"))
    # With several devices the whole is drawn by the plain path.
    near = all(np.allclose(np.asarray(each).reshape(-1), whole, atol=5e-6) for each in (parts, mapped))
    yield Found("shard_map and pmap", near, f"parts of {count} device(s) are the whole")


def law(plan):
    """The search for errors of `benchmarks.exactness`, with as many angles of each law."""
    weights = sum(each.weight for each in laws.LAWS)
    given = exactness.parser().parse_args(["--angles", str(plan.law * weights)])
    rows, _, drawn = exactness.run(given)
    reported = verdicts.alarms([verdict for _, verdict in rows])
    told = f"{len(rows)} tests on {drawn:,} angles"
    names = [f"{law.name}, {verdict.test}" for law, verdict in rows if verdict in reported]
    yield Found("the law", not reported, f"{told}; reported: {'; '.join(names)}" if names else told)


# Sizes with ends everywhere in a group of four and in a block of threads.
OUTSIDE = """
import jax, numpy as np
from jax_von_mises import sample_block
for method in ("table", "direct"):
    for size in (1, 3, 4, 5, 1023, 1027, 4099, 2**20 + 3):
        for start in (0, 2**32 - 6):
            for dtype in ("float32", "bfloat16"):
                sample_block(jax.random.key(0), 0.5, 5.0, start, (size,), dtype, method=method).block_until_ready()
"""


def outside(plan, tool="compute-sanitizer"):
    """No write outside of the result, by NVIDIA's tool."""
    found = shutil.which(tool)
    if found is None:
        yield Found("no write outside", None, f"{tool} is not on the path")
        return
    # Each array in memory of its own: in one large piece the tool could not tell them apart.
    alone = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [found, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-c", OUTSIDE]
    done = subprocess.run(command, env=os.environ | alone, capture_output=True, text=True, timeout=3600)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    yield Found("no write outside", done.returncode == 0, lines[-1].strip() if lines else "no output")


CHECKS = (kernels, words, angles, parameters, dtypes, sizes, huge, gradients, transformations, outside, law)


def run(plan, say=print, checks=CHECKS):
    """Make all checks; an error in one is told as its result."""
    results = []
    for check in checks:
        try:
            for found in check(plan):
                results.append(found)
                mark = {True: "right", False: "WRONG", None: "not made"}[found.ok]
                say(f"  {mark:9} {found.check}: {found.told}", flush=True)
        except Exception as error:
            results.append(Found(check.__name__, False, f"{type(error).__name__}: {str(error)[:300]}"))
            say(f"  WRONG     {check.__name__}: {results[-1].told}", flush=True)
    return results
