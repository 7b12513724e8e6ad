"""Time the kernels, the plain path, JAX's samplers, other libraries and memory traffic, in turns in one process."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import goals, timing
from benchmarks.cases import Case, LogUniform
from benchmarks.gpu_acceptance.checks import fused, key_of, path_name
from benchmarks.peers import PEERS, Unavailable
from jax_von_mises.sampling import cuda, cuda_launch, sampler
from jax_von_mises.sampling.request import DrawRequest

__all__ = ["GOALS", "Goal", "judge", "measure"]

KAPPA = 5.0
SPREAD = LogUniform(1e-2, 1e4)
OTHERS = ("numpyro", "cupy", "torch")


class Goal(NamedTuple):
    """Require `at_least` times the rate of `peer`, in numbers per second, or in bytes per second with `of_bytes`."""

    name: str
    peer: str
    at_least: float
    of_bytes: bool = False

    @property
    def of_kernel(self):
        """Whether the goal applies to a CUDA kernel."""
        return self.name.startswith(f"{path_name(True)}, ")


PLAIN, KERNEL = "plain, threefry2x32, float32", "kernel, threefry2x32, float32"
# Drawn by the kernel if there is one, else by the plain path.
ONE, ARRAYS = "ours, one concentration", "ours, arrays"
NORMAL = "jax.random.normal"
GOALS = (
    Goal(PLAIN, NORMAL, 1.2),
    Goal(KERNEL, NORMAL, 1.8),
    Goal("kernel, philox4x32, float32", "fill", 0.7, of_bytes=True),
    Goal(ARRAYS, f"{NORMAL}, arrays", 0.5),
    Goal(ONE, "numpyro", 25),
    Goal(ONE, "cupy", 25),
    Goal(ONE, "torch", 300),
)


class Entry(NamedTuple):
    """A timed function, which makes `count` numbers per call and moves `width` bytes per number."""

    count: int
    width: int
    competitor: timing.Competitor


def of_keys(function, implementation="threefry2x32"):
    """Return a competitor that gives every call a new key; None if this JAX lacks the implementation."""
    key = key_of(implementation)
    if key is None:
        return None
    compiled = jax.jit(function)
    fresh = lambda i: jax.block_until_ready(jax.random.fold_in(key, i))  # noqa: E731
    return timing.Competitor(compiled, fresh, jax.block_until_ready)


def ours(count, implementation, dtype, method, kernel, kappa):
    """Return a competitor that draws by one path, or None if this JAX lacks the key implementation."""
    arguments = jnp.zeros((), jnp.float32), jnp.asarray(kappa, jnp.float32)

    def draw(key, loc, kappa):
        request = DrawRequest(key, loc, kappa, None, (count,), jnp.dtype(dtype), method)
        return sampler.PLAIN.new(request, engine="kernel" if kernel else "xla")

    competitor = of_keys(draw, implementation)
    return competitor and competitor._replace(draw=lambda key: competitor.draw(key, *arguments))


def no_kernel():
    """Return the reason why no kernel is timed."""
    return cuda.kernel_report() or "no CUDA device"


def entries(plan):
    """Return the timed functions by name, and the reasons for the missing ones."""
    timed, missing = {}, {}
    one = [
        (f"{implementation}, {dtype}", plan.draws, implementation, dtype, "table", KAPPA)
        for implementation, dtype in itertools.product(("threefry2x32", "philox4x32"), ("float32", "bfloat16"))
    ]
    arrays = "arrays", plan.timed_arrays, "threefry2x32", "float32", "direct", SPREAD.values(plan.timed_arrays)
    for kernel, (what, count, implementation, dtype, method, kappa) in itertools.product((False, True), [*one, arrays]):
        name = f"{path_name(kernel)}, {what}"
        if kernel not in fused():
            missing[name] = no_kernel()
        elif (competitor := ours(count, implementation, dtype, method, kernel, kappa)) is None:
            missing[name] = "this JAX has no such key"
        else:
            # The array of concentrations is also read.
            timed[name] = Entry(count, 8 if what == "arrays" else jnp.dtype(dtype).itemsize, competitor)
    for name in ("bits", "uniform", "normal"):
        function = getattr(jax.random, name)
        timed[f"jax.random.{name}"] = Entry(plan.draws, 4, of_keys(lambda key, f=function: f(key, (plan.draws,))))
    few = plan.timed_arrays
    timed[f"{NORMAL}, arrays"] = Entry(few, 4, of_keys(lambda key: jax.random.normal(key, (few,))))
    for name, width, function in (
        ("fill", 4, lambda x: jnp.full(plan.draws, x[0])),
        ("copy", 8, lambda x: -x),
    ):
        arrays = [jnp.full(plan.draws if name == "copy" else 8, np.float32(i)) for i in range(2)]
        fresh = lambda i, arrays=arrays: jax.block_until_ready(arrays[i % 2])  # noqa: E731
        timed[name] = Entry(plan.draws, width, timing.Competitor(jax.jit(function), fresh, jax.block_until_ready))
    for peer in PEERS:
        if peer.name in OTHERS:
            count = min(plan.peers, peer.most.get("sample", plan.peers))
            try:
                competitor = peer.prepare(Case(peer.name, "one", count, KAPPA)).competitor
                timing.first_call(competitor)
            except Unavailable as error:
                missing[peer.name] = str(error)
            except Exception as error:  # a library that does not run on this machine
                missing[peer.name] = f"{type(error).__name__}: {str(error)[:150]}"
            else:
                timed[peer.name] = Entry(count, 4, competitor)
    return timed, missing


def measure(plan, say=print):
    """Time all functions, which take turns; return rows by name, and the reasons for the missing ones."""
    timed, missing = entries(plan)
    competitors = {name: entry.competitor for name, entry in timed.items()}
    first = {name: timing.first_call(competitor) for name, competitor in competitors.items()}
    say(f"  timing {len(timed)} functions in {plan.rounds} rounds", flush=True)
    seconds = timing.interleave(competitors, plan.rounds)
    rows = {}
    for name, entry in timed.items():
        found = timing.Timing(first[name], tuple(seconds[name]))
        rows[name] = {
            "count": entry.count,
            "seconds": found.median,
            "spread": found.spread,
            "noisy": bool(found.wide),
            "first": found.first,
            "rate": entry.count / found.median,
            "bytes_per_second": entry.count * entry.width / found.median,
        }
    for name, kernel, plain in ((ONE, KERNEL, PLAIN), (ARRAYS, "kernel, arrays", "plain, arrays")):
        rows[name] = rows.get(kernel, rows[plain])
    for name, row in rows.items():
        limit = rows["copy" if name == "copy" else "fill"]
        row["share_of_memory"] = row["bytes_per_second"] / limit["bytes_per_second"]
    return rows, missing


def judge(rows, missing):
    """Return each goal with its ratio and its state: met, MISSED, too noisy, or not measured.

    A goal for the kernels that is not measured counts as missed if there is a CUDA device.
    """
    found = []
    for goal in GOALS:
        ratio, noisy, why = None, False, ""
        if absent := [name for name in (goal.name, goal.peer) if name not in rows]:
            why = missing.get(absent[0], "not made")
        else:
            one, other = rows[goal.name], rows[goal.peer]
            what = "bytes_per_second" if goal.of_bytes else "rate"
            ratio, noisy = one[what] / other[what], one["noisy"] or other["noisy"]
        verdict = goals.Verdict(goal.name, goal.peer, goal.at_least, ratio, noisy)
        state = verdict.state
        if state == goals.NOT_MEASURED and goal.of_kernel and cuda_launch.devices():
            state = goals.MISSED
        found.append(goal._asdict() | {"ratio": ratio, "state": state, "why": why})
    return found
