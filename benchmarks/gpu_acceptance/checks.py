"""Check the sampler on a GPU; each check yields its outcomes as `Found`."""

import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

import jax_von_mises as jvm
from benchmarks import reference
from benchmarks.exactness import __main__ as exactness
from benchmarks.exactness import expected, verdicts
from benchmarks.exactness import plan as exactness_plan
from benchmarks.words import CIPHERS
from jax_von_mises.sampling import counter, cuda, cuda_launch, cuda_self_test, cuda_trial, sampler
from jax_von_mises.sampling.request import DrawRequest

__all__ = ["CHECKS", "Found", "compared", "fused", "run", "switched"]

METHODS = ("table", "direct")
KAPPAS = (0.0, 1e-3, 0.1, 0.5, 1.0, 2.0, 4.9999, 5.0, 16.9, 17.1, 30.0, 100.0, 1e4, 1e6, 1e8)
STARTS = (0, 2**32 - 6, 2**40 + 3, 2**64 - 4096)
GRADIENT = 2e-4
ROOT = Path(__file__).resolve().parents[2]


class Found(NamedTuple):
    """The outcome of one check; `ok` is None if it could not be run."""

    check: str
    ok: bool | None
    detail: str


def key_of(implementation):
    """Return a key; None if this JAX lacks the implementation."""
    try:
        return jax.random.key(20261121, impl=implementation)
    except ValueError:
        return None


def fused():
    """Return the paths available here: False for the plain one, True for the kernel."""
    request = DrawRequest(jax.random.key(0), jnp.zeros(()), jnp.ones(()), None, (8,), np.dtype(np.float32), "direct")
    return (False, True) if cuda.use_cuda_kernel(request) else (False,)


@contextlib.contextmanager
def switched(value):
    """Turn the kernels on ("1") or off ("0"), overriding the environment."""
    before = os.environ.get(cuda.VARIABLE)
    os.environ[cuda.VARIABLE] = value
    try:
        yield
    finally:
        os.environ.pop(cuda.VARIABLE)
        if before is not None:
            os.environ[cuda.VARIABLE] = before


def path_name(kernel):
    """Return the name of a path in the tables."""
    return "kernel" if kernel else "plain"


def draw(key, loc, kappa, start, shape, dtype, method, kernel):
    """Draw angles by one path."""
    loc, kappa = jnp.asarray(loc, jnp.float32), jnp.asarray(kappa, jnp.float32)
    request = DrawRequest(key, loc, kappa, counter.halves(start), shape, jnp.dtype(dtype), method)
    return sampler.PLAIN.new(request, engine="kernel" if kernel else "xla")


def on_cpu(function, *arguments):
    """Return the result of `function` on the CPU."""
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu):
        return np.asarray(function(*jax.device_put(arguments, cpu)))


def drawn_twice(kernel, key, loc, kappa, *where):
    """Return the angles from this device and from the plain path on the CPU; `where` is start, shape, dtype, method."""
    given = key, np.float32(loc), np.float32(kappa)
    return np.asarray(draw(*given, *where, kernel)), on_cpu(lambda *given: draw(*given, *where, False), *given)


def kernels(plan):
    """Run the package's self-test on every kernel."""
    if not cuda_launch.devices():
        yield Found("CUDA kernels", None, "there is no CUDA device")
        return
    specs = list(cuda_trial.specs())
    failed = sorted({spec.name for spec in specs if not cuda_self_test.passes(spec)})
    detail = f"all {len({spec.name for spec in specs})} pass the package's self-test"
    yield Found("CUDA kernels", not failed, cuda.kernel_report() if failed else detail)
    # Without kernels, all other checks would silently test the plain path alone.
    yield Found("draws use the kernels", True in fused(), cuda.kernel_report())


def words(plan):
    """Compare the words of every cipher with those of the CPU."""
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
    """Return the largest error of angles about 0, given their words, relative to the allowed error."""
    t = ((words >> 1) + 0.5) * 2.0**-32
    size = np.abs(x).astype(np.float64)
    if not np.isfinite(size).all() or not np.array_equal(x < 0, (words & 1 == 1) & (size > 0)):
        return np.inf
    off = np.abs(reference.tail(size, kappa) - t)
    return float(np.max(off / expected.slack_at(size, t, kappa, "float32")))


def angles(plan):
    """Compare angles of every cipher, concentration, method and path with the reference and with the CPU's."""
    for cipher, kernel, method in itertools.product(CIPHERS, fused(), METHODS):
        name = f"angles, {method}, {cipher}, {path_name(kernel)}"
        key = key_of(cipher)
        if key is None:
            yield Found(name, None, "this JAX has no such key")
            continue
        drawn = np.asarray(counter.words(key, (plan.angles,), 1)[0])
        worst, at, apart = 0.0, None, 0.0
        for kappa in KAPPAS:
            x, on_cpu = drawn_twice(kernel, key, 0.0, kappa, 0, (plan.angles,), "float32", method)
            share = compared(x, drawn, float(np.float32(kappa)))
            if share >= worst:
                worst, at = share, kappa
            apart = max(apart, float(np.mean(np.abs(x - on_cpu) > expected.ULP * np.spacing(np.abs(on_cpu)))))
        detail = f"at most {worst:.2f} of the allowed error, at k={at:g}; "
        detail += f"at most {apart:.1%} of the angles differ by more than {expected.ULP} ulp from the CPU's, at any k"
        yield Found(name, worst <= 1, detail)


def arrays(plan):
    """Compare draws for arrays of parameters with the CPU's, from the start of a group of four and from inside one."""
    key, count = jax.random.key(10), plan.arrays
    kappa = np.geomspace(1e-3, 1e8, count).astype(np.float32)
    loc = np.linspace(-400, 400, count).astype(np.float32)
    kappa[count // 2], loc[count // 3] = -1, np.inf
    cases = {
        "concentrations": (0.5, kappa, "direct"),
        "directions": (loc, 5.0, "direct"),
        "both": (loc, kappa, "direct"),
        "directions, by the table": (loc, 5.0, "table"),
    }
    for kernel, (name, (loc, kappa, method)) in itertools.product(fused(), cases.items()):
        allowed = cuda_self_test.allowed(kappa)
        right, worst = True, 0.0
        for start in (0, 2**32 - 5):
            x, on_cpu = drawn_twice(kernel, key, loc, kappa, start, (count,), "float32", method)
            apart = np.abs(np.mod(x.astype(np.float64) - on_cpu + np.pi, 2 * np.pi) - np.pi)
            valid = ~np.isnan(on_cpu)
            right = right and np.array_equal(valid, ~np.isnan(x)) and bool((np.abs(x[valid]) < np.pi).all())
            worst = max(worst, float(np.max((apart / allowed)[valid])))
        detail = f"{count:,} angles, at most {worst:.2f} of the allowed difference to the CPU's; NaN in the same places"
        yield Found(f"arrays, {name}, {path_name(kernel)}", right and worst <= 1, detail)


def parameters(plan):
    """Draw with invalid and infinite parameters, alone and in arrays."""
    key = jax.random.key(4)
    kappa = np.array([-1, np.nan, np.inf, 0, 5, 1e30, 5, 5], np.float32)
    loc = np.array([0, 0, 0.5, 0, np.inf, 1, 3e7, -3], np.float32)
    for kernel in fused():
        x = np.asarray(draw(key, loc, kappa, 0, (8,), "float32", "direct", kernel))
        right = np.array_equal(np.isnan(x), [1, 1, 0, 0, 1, 0, 1, 0]) and x[2] == 0.5 and abs(x[5] - 1) < 1e-6
        table = np.asarray(draw(key, 0.0, -1.0, 0, (8,), "float32", "table", kernel))
        point = np.asarray(draw(key, 0.5, np.inf, 0, (8,), "float32", "table", kernel))
        right = right and np.isnan(table).all() and (point == 0.5).all()
        yield Found(f"invalid and infinite parameters, {path_name(kernel)}", bool(right), "NaN for invalid ones")


def dtypes(plan):
    """Compare 16-bit floats with rounded float32 angles, and float64 angles with the CPU's."""
    for kernel in fused():
        # The plain path rounds in the same way for every cipher, but each kernel rounds by itself.
        for cipher, method in itertools.product(CIPHERS if kernel else CIPHERS[:1], METHODS):
            key = key_of(cipher)
            if key is None:
                yield Found(f"16 bits, {method}, {cipher}", None, "this JAX has no such key")
                continue
            single = np.asarray(draw(key, 2.0, 5.0, 1, (plan.angles,), "float32", method, kernel))
            for dtype in ("bfloat16", "float16"):
                short = np.asarray(draw(key, 2.0, 5.0, 1, (plan.angles,), dtype, method, kernel))
                name = f"{dtype}, {method}, {cipher}, {path_name(kernel)}"
                yield Found(
                    name, bool((short == single.astype(short.dtype)).all()), "float32 rounded once, bit for bit"
                )
    key = jax.random.key(5)
    with jax.enable_x64(True):
        draw64 = lambda key: jvm.sample_von_mises(key, 0.0, 5.0, (plan.angles,), "float64")  # noqa: E731
        apart = float(np.max(np.abs(np.asarray(draw64(key)) - on_cpu(draw64, key))))
    yield Found("float64", apart < 1e-11, f"{apart:.1e} from the CPU's")


# Starts at the beginning of a group of four angles, which a kernel writes at once, and inside a group.
WHERE = (2**32 - 1004, 2**32 - 1001)
# Few sizes for the plain path, where XLA handles the ends.
PLAIN_SIZES = (1, 3, 1024, 4099)


def sizes(plan):
    """Compare draws of every size with the longest draw, from each start in `WHERE`."""
    key = jax.random.key(6)
    cases = [(kernel, method, "float32") for kernel in fused() for method in ("direct", "table")]
    cases += [(True, method, "bfloat16") for method in METHODS if True in fused()]
    for kernel, method, dtype in cases:
        # Each size is a separate program, and XLA takes seconds to compile a program that does more than a launch.
        tried = plan.sizes if (method, dtype) == ("direct", "float32") else plan.few_sizes
        tried = tried if kernel else [size for size in PLAIN_SIZES if size <= max(tried)]

        def part(start, size, kernel=kernel, method=method, dtype=dtype):
            return np.asarray(draw(key, 1.0, 5.0, start, (size,), dtype, method, kernel))

        largest = max(tried)
        longest = [part(start, largest) for start in WHERE]
        skip = WHERE[1] - WHERE[0]
        same = np.array_equal(longest[0][skip:], longest[1][: largest - skip])
        wrong = [] if same else ["overlap of the longest draws"]
        for start, full in zip(WHERE, longest, strict=True):
            wrong += [f"{size} from {start}" for size in tried if not np.array_equal(part(start, size), full[:size])]
        detail = f"{len(tried)} sizes up to {largest}, each from {len(WHERE)} places"
        detail += f"; wrong: {', '.join(wrong[:10])}" if wrong else ""
        yield Found(f"sizes, {method}, {dtype}, {path_name(kernel)}", not wrong, detail)


def huge(plan):
    """Draw more than 2^32 angles in one call, and compare slices with blocks of the stream."""
    if not plan.huge:
        yield Found("more than 2^32 angles", None, "not in this plan")
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
        except Exception as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            yield Found(f"more than 2^32 angles, {path_name(kernel)}", None, str(error).split("\n")[0][:150])
            continue
        detail = f"slices of {plan.huge:,} angles equal the blocks at their places"
        yield Found(f"more than 2^32 angles, {path_name(kernel)}", all(same), detail)


def gradients(plan):
    """Compare gradients with respect to the concentration and the direction with the CPU's."""
    key = jax.random.key(8)
    for kernel, method in itertools.product(fused(), METHODS):

        def gradient(loc, kappa, kernel, method=method):
            total = lambda *both: (draw(key, *both, 0, (1024,), "float32", method, kernel) ** 2).sum()  # noqa: E731
            return jnp.stack(jax.grad(total, (0, 1))(loc, kappa))

        worst = 0.0
        for kappa in (0.1, 1.0, 5.0, 100.0, 1e4):
            arguments = jnp.float32(0.3), jnp.float32(kappa)
            ours = np.asarray(jax.jit(functools.partial(gradient, kernel=kernel))(*arguments))
            cpu = on_cpu(functools.partial(gradient, kernel=False), *arguments)
            worst = max(worst, float(np.max(np.abs(ours - cpu) / np.abs(cpu))))
        yield Found(
            f"gradients, {method}, {path_name(kernel)}", worst < GRADIENT, f"relative error at most {worst:.1e}"
        )


def rows(plan):
    """Map the sampler over key, direction and concentration, jointly and separately, and over many short rows."""
    keys = jax.random.split(jax.random.key(9), 3)
    arguments = keys, jnp.array([-3.0, 0.5, 3.0]), jnp.array([0.1, 5.0, 1e3])
    for method, count in itertools.product(METHODS, (64, 1027)):

        @jax.jit
        def one(key, loc, kappa, method=method, count=count):
            return jvm.sample_von_mises(key, loc, kappa, (count,), method=method)

        same = []
        for over in ((0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0)):
            some = [x if axis == 0 else x[1] for x, axis in zip(arguments, over, strict=True)]
            single = [one(*(x[i] if axis == 0 else x for x, axis in zip(some, over, strict=True))) for i in range(3)]
            same.append(np.array_equal(jax.jit(jax.vmap(one, over))(*some), np.stack(single)))
        twice = jax.jit(jax.vmap(jax.vmap(one, (None, None, 0)), (0, 0, None)))(*arguments)
        single = [[one(key, loc, kappa) for kappa in arguments[2]] for key, loc in zip(*arguments[:2], strict=True)]
        same.append(np.array_equal(twice, np.stack(single)))
        yield Found(f"vmap, {method}, {count} angles", all(same), f"rows mapped in {len(same)} ways equal single draws")
    for method in METHODS:

        def short(key, loc, kappa, method=method):
            return jvm.sample_von_mises(key, loc, kappa, (41,), method=method)

        many = jax.random.split(jax.random.key(11), plan.rows), *jnp.linspace(-3, 9, 2 * plan.rows).reshape(2, -1)
        together = jax.jit(jax.vmap(short))(*many)
        apart = jax.jit(lambda *arguments, short=short: jax.lax.map(lambda each: short(*each), arguments))(*many)
        shared = jax.jit(jax.vmap(lambda key, short=short: short(key, 1.0, 2.0)))(many[0])
        alone = jax.jit(lambda keys, short=short: jax.lax.map(lambda key: short(key, 1.0, 2.0), keys))(many[0])
        same = np.array_equal(together, apart, equal_nan=True) and np.array_equal(shared, alone)
        yield Found(f"vmap, {method}, {plan.rows:,} rows", same, "with a parameter per row, and with shared ones")


def transformations(plan):
    """Compare `vmap`, `scan`, `shard_map` and `pmap` with single draws."""
    keys = jax.random.split(jax.random.key(9), 3)

    def one(key):
        return jvm.sample_von_mises(key, 1.0, 5.0, (67,), method="direct")

    expected = np.stack([one(key) for key in keys])
    yield from rows(plan)
    scanned = jax.lax.scan(lambda _, key: (None, one(key)), None, keys)[1]
    yield Found("scan", np.array_equal(scanned, expected), "steps equal single draws")
    count = jax.local_device_count()
    mesh = jax.make_mesh((count,), ("device",), axis_types=(AxisType.Auto,))
    body = lambda key: jvm.sample_shard(key, 1.0, 5.0, (67,), "device", method="direct")  # noqa: E731
    parts = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec("device")))(
        keys[0]
    )
    mapped = jvm.sample_pmap(keys[0], 1.0, 5.0, (count, 67), method="direct")
    single = np.asarray(jvm.sample_von_mises(keys[0], 1.0, 5.0, (count * 67,), method="direct"))
    # A single draw on several devices uses the plain path.
    near = all(np.allclose(np.asarray(each).reshape(-1), single, atol=5e-6) for each in (parts, mapped))
    yield Found("shard_map and pmap", near, f"the parts of {count} device(s) make up the single draw")


def distributions(plan, state=None):
    """Run `benchmarks.exactness`; if there are kernels, also on fewer angles of the plain path.

    With `state`, the counts are kept in files with names that begin with it, and a later run continues from them.
    """
    # Give every distribution the same number of angles.
    equal = tuple(each._replace(weight=1) for each in exactness_plan.DISTRIBUTIONS)
    paths = [("the distributions", "as-drawn", plan.distributions, "every", "1")]
    if True in fused():
        paths.append(("the distributions, plain", "plain", plan.distributions_plain, "some", "0"))
    for name, file, count, words, kernels in paths:
        kept = None if state is None else Path(f"{state}.{file}.npz")
        with switched(kernels):
            found, drawn = exactness.run(count * len(equal), words, kept, distributions=equal)
        rows = [(each.name, verdict) for each, one in found.items() for verdict in one.verdicts]
        reported = verdicts.alarms([verdict for _, verdict in rows])
        detail = f"{len(rows)} tests on {drawn:,} angles, the same number for each of {len(equal)} distributions"
        names = [f"{each}, {verdict.test}" for each, verdict in rows if verdict in reported]
        yield Found(name, not reported, f"{detail}; reported: {'; '.join(names)}" if names else detail)


def outside(plan, tool="compute-sanitizer"):
    """Check with NVIDIA's tool that no kernel reads or writes outside its arrays."""
    name, found = "no out-of-bounds access", shutil.which(tool)
    if found is None:
        yield Found(name, None, f"{tool} is not on the path")
        return
    # Allocate each array separately, since the tool does not detect accesses to other arrays in the same allocation.
    alone = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", cuda.VARIABLE: "1"}
    command = [found, "--tool", "memcheck", "--error-exitcode", "9"]
    command += [sys.executable, "-m", "benchmarks.gpu_acceptance.outside"]
    code, lines = bounded(command, plan.outside, os.environ | alone)
    if code is None:
        # The tool has not checked all cases, so this is not a pass.
        lines = [f"not finished in {plan.outside} s", *lines[-1:]]
    detail = "; ".join(lines[:1] + lines[-1:] if code is None else lines[-2:])
    yield Found(name, code == 0, detail or "no output")


def bounded(command, seconds, environment):
    """Run a command; return its exit code (None after a timeout) and its lines. A timeout also ends its children."""
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    with subprocess.Popen(command, env=environment, cwd=ROOT, **options) as child:
        try:
            output, code = child.communicate(timeout=seconds)[0], child.returncode
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, code = child.communicate()[0], None
    return code, [line.strip() for line in output.splitlines() if line.strip()]


# The longest checks come last.
CHECKS = {
    check.__name__: check
    for check in (
        *(kernels, words, angles, arrays, parameters, dtypes, sizes, huge, gradients, transformations),
        *(outside, distributions),
    )
}


def run(check, plan, say=print):
    """Run one check; an exception in it becomes a failed outcome."""
    results = []

    def add(found):
        results.append(found)
        mark = {True: "right", False: "WRONG", None: "skipped"}[found.ok]
        say(f"  {mark:9} {found.check}: {found.detail}", flush=True)

    try:
        for found in check(plan):
            add(found)
    except Exception as error:
        name = getattr(check, "func", check).__name__
        add(Found(name, False, f"{type(error).__name__}: {str(error)[:300]}"))
    return results
