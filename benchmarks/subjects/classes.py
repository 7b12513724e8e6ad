"""Draw from every class of distribution, compute its density, and make the first call of its slowest method.

A class appears here by being declared in the package: its table of parameters says which values are allowed. Every row
is compared with as many normal draws as the numbers of a draw, a yardstick that no change of the package moves.
"""

import functools
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.competitors import of_arrays, of_keys
from benchmarks.peers import NORMAL
from benchmarks.results import OURS
from benchmarks.runner import Case
from benchmarks.timing import Competitor

__all__ = ["Made", "cases", "made", "slowest"]

# For a parameter of this name, or else with this rule about its values: allowed values from a generator, whose shape
# has the axis of a vector if there is one.
VALUES = {
    "low": lambda generator, shape: generator.uniform(-2, -1, shape),
    "high": lambda generator, shape: generator.uniform(1, 2, shape),
    "ovalness": lambda generator, shape: generator.uniform(0, 0.25, shape),
    "angle": lambda generator, shape: generator.uniform(-0.5, 0.5, shape),
    "real": lambda generator, shape: generator.uniform(-0.5, 0.5, shape),
    "vector": lambda generator, shape: 2 * generator.normal(size=shape),
    "matrix": lambda generator, shape: 2 * generator.normal(size=shape),
    "nonnegative": lambda generator, shape: np.exp(generator.uniform(np.log(0.5), np.log(50), shape)),
    "length": lambda generator, shape: generator.uniform(0.1, 0.9, shape),
    "half length": lambda generator, shape: generator.uniform(0.05, 0.45, shape),
    "share": lambda generator, shape: generator.uniform(-0.8, 0.8, shape),
}
VALUES |= {"nonnegative and finite": VALUES["nonnegative"], "direction": VALUES["vector"]}
COUNT = 1000  # draws of a first call
BASE = "normal"  # the first call with which others are compared


class Made(NamedTuple):
    """A kind of distribution: a function from parameters to it, and ``parameters(generator, shape)``, in order."""

    build: Callable
    parameters: Callable

    def given(self, shape=()):
        """Return parameters of distributions of this shape."""
        values = self.parameters(np.random.default_rng(0), shape)
        return tuple(np.asarray(value, np.float32) for value in values)

    def event(self):
        """Return the shape of one draw."""
        return self.build(*self.given()).event_shape


def of_class(kind):
    """Return how to make distributions of a class, from the rules about its parameters."""

    def parameters(dimension, generator, shape):
        for each in kind.PARAMETERS:
            yield VALUES.get(each.name, VALUES[each.values])(generator, shape + (dimension,) * each.event_rank)

    for dimension in (3, 4):  # rotations have four components
        made = Made(kind, functools.partial(parameters, dimension))
        try:
            made.event()
        except ValueError:
            continue
        return made
    raise TypeError(f"{kind.__name__} takes no vectors of three or four components; add them here")


def three_modes(x, k):
    """Return an unnormalised log density with three modes."""
    import jax.numpy as jnp

    return jnp.log(sum(jnp.exp(k * (jnp.cos(x - centre) - 1)) for centre in (-2.0, 0.2, 2.0)))


def made():
    """Return how to make every declared class, and what is made of other distributions or of a function, by name."""
    import jax.numpy as jnp

    import jax_von_mises as jvm
    from jax_von_mises.engine import base

    importlib.import_module("jax_von_mises.public")  # defines the classes
    importlib.import_module("jax_von_mises.rotations")
    found = {kind.__name__: of_class(kind) for kind in sorted(base.declared(), key=lambda kind: kind.__name__)}
    weights, places = (np.array(values, np.float32) for values in ((0.2, 0.3, 0.5), (-2.0, 0.2, 2.0)))

    def positive(generator, shape):
        return (VALUES["nonnegative"](generator, shape),)

    def mixture(k):
        return jvm.Mixture(probs=weights, components=jvm.VonMises(places, jnp.asarray(k)[..., None]))

    found["CircularDistribution"] = Made(lambda k: jvm.CircularDistribution(three_modes, k), positive)
    found["Mixture"] = Made(mixture, positive)
    found["SineSkewed"] = Made(lambda k: jvm.SineSkewed(jvm.VonMises(0.0, k), 0.7), positive)
    found["Torus"] = Made(lambda k: jvm.Torus(jvm.VonMises(places, jnp.asarray(k)[..., None])), positive)
    return found


def normal(event, count):
    """Return as many normal draws."""
    import jax

    return of_keys(lambda key: jax.random.normal(key, (count, *event)))


def draws(how, each, count):
    """Return draws with one set of parameters, or with parameters for each."""
    shape = () if each else (count,)

    def draw(key, *given):
        return how.build(*given).sample(key, shape)

    return of_keys(draw, *how.given((count,) if each else ()))


def densities(how, count):
    """Return log densities at draws."""
    import jax

    def points(generator):
        return how.build(*how.given()).sample(jax.random.key(generator.integers(2**31)), (count,))

    return of_arrays(lambda x, *given: how.build(*given).log_prob(x), points, "float32", *how.given())


def methods(distribution):
    """Return a function without arguments for each method of a distribution whose arguments are known here."""
    import jax

    key = jax.random.key(0)
    # Unit vectors are also angles. Draws would compile programs of which others then have parts.
    values = np.random.default_rng(1).normal(size=(COUNT, *distribution.event_shape)).astype(np.float32)
    values /= np.linalg.norm(values, axis=-1, keepdims=True) if values.ndim > 1 else 1
    known = {"value": values, "samples": values, "key": key, "other": distribution, "size": COUNT, "order": 1}
    known |= {"q": np.float32(0.3), "mass": np.float32(0.3), "phi": np.float32(0.3)}
    found = {"gradient of sample": lambda: gradient(distribution, key)}
    for name in dir(type(distribution)):
        function = getattr(type(distribution), name)
        if name.startswith("_") or not callable(function) or re.fullmatch(r"See `\w+`\.", function.__doc__ or ""):
            continue  # the last are other names of methods
        listed = inspect.signature(function).parameters.values()
        needed = [each.name for each in listed if each.default is each.empty and each.name != "self"]
        if all(each in known for each in needed) and name not in ("sample", "sample_and_log_prob"):
            method = getattr(distribution, name)
            found[name] = functools.partial(method, **{each: known[each] for each in needed})
    return found | {"sample": lambda: distribution.sample(key, (COUNT,))}


def gradient(distribution, key):
    """Return the gradient of the sum of draws with respect to the parameters."""
    import jax

    return jax.grad(lambda d: d.sample(key, (COUNT,)).sum(), allow_int=True)(distribution)


def first_calls(name, method=None):
    """Print the seconds of the first call of one method in this process, or of each, without compiled programs.

    The first call of `jax.random.normal` comes before it.
    """
    import time

    import jax

    how, found = made()[name], {}
    key = jax.block_until_ready(jax.random.key(0))
    base = {BASE: lambda: jax.random.normal(key, (COUNT,))}
    calls = base | methods(how.build(*how.given()))
    for each in [BASE, method] if method else calls:
        jax.clear_caches()
        begin = time.perf_counter()
        try:
            jax.block_until_ready(jax.tree.leaves(calls[each]()))
        except (AttributeError, NotImplementedError, TypeError, ValueError):
            continue  # of some kinds only, or with other arguments
        found[each] = time.perf_counter() - begin
    print(json.dumps(found))


def elsewhere(*arguments):
    """Return what `first_calls` prints in a new process."""
    command = [sys.executable, "-m", __spec__.name, *arguments]
    found = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError(found.stderr.strip().splitlines()[-1])
    return json.loads(found.stdout.splitlines()[-1])


def slowest(name, count):
    """Return the first call, in new processes, of the method whose first call takes longest."""
    seconds = elsewhere(name)
    method = max(seconds, key=seconds.get)
    note = f"{method}, the slowest of {len(seconds)} methods"
    return Competitor(lambda i: elsewhere(name, method)[method], measures=True, note=note)


def cases():
    """Return the cases."""
    found = []
    for name, how in made().items():
        event = how.event()
        size = 2 ** (17 - max(0, sum(event) - 1).bit_length())

        def case(what, ours, unit, name=name, event=event, size=size):
            peers = {OURS: ours, NORMAL: functools.partial(normal, event)}
            return Case(f"`{name}`, {what}", size, peers, unit, gpu=2**4)

        found.append(case("one set of parameters", functools.partial(draws, how, False), "draws"))
        if name != "CircularDistribution":  # its function is evaluated at all parameters together
            found.append(case("parameters each", functools.partial(draws, how, True), "draws"))
        found.append(case("`log_prob`", functools.partial(densities, how), "points"))
        found.append(Case(f"`{name}`, slowest first call", 1, {OURS: functools.partial(slowest, name)}, "s"))
    return found


if __name__ == "__main__":
    first_calls(*sys.argv[1:])
