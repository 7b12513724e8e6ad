"""Make competitors of other libraries for draws and functions of the von Mises distribution about 0.

Each function takes what is drawn or computed, and returns a dict from the name of a library to a function of the number
of elements. `k` is a concentration or, for one that differs between elements, a `Spread`.
"""

import contextlib
import functools
import importlib.util
import multiprocessing
import os
from typing import NamedTuple
from unittest import mock

import numpy as np

from benchmarks.competitors import SEED, Unavailable, cycling, of_arrays, of_keys
from benchmarks.results import OURS
from benchmarks.timing import Competitor

__all__ = [
    *("ALONE", "BROAD", "CUPY", "KERNELS", "MKL", "NARROW", "NORMAL", "NORMAL_ALONE", "NUMPY", "NUMPYRO", "SCIPY"),
    *("TFP", "TORCH", "Spread", "angles", "at_most", "functions", "gradients", "numpyro", "samplers", "shape", "tfp"),
    "values",
]

NORMAL = "jax.random.normal"
NUMPY, MKL, SCIPY, NUMPYRO = "NumPy", "mkl_random", "SciPy", "NumPyro"
TFP, TORCH, CUPY = "TFP", "PyTorch", "CuPy"
KERNELS = "our CUDA kernel"
# Draws without a derivative, beside derivatives.
ALONE, NORMAL_ALONE = "the draw alone", "normal draws alone"


class Spread(NamedTuple):
    """Concentrations, one for each element, log-uniform between two bounds."""

    low: float
    high: float

    def values(self, count):
        """Return a float64 array of `count` concentrations, identical in every run and for every competitor."""
        spread = np.random.default_rng(0).uniform(np.log(self.low), np.log(self.high), count)
        return np.exp(spread)


BROAD, NARROW = Spread(1e-2, 1e4), Spread(0.5, 50.0)


def values(k, count):
    """Return the concentrations of `count` elements: a number or an array."""
    return k.values(count) if isinstance(k, Spread) else np.float64(k)


def shape(k, count):
    """Return the shape of a sample to ask for, in addition to the shape of the concentrations."""
    return () if isinstance(k, Spread) else (count,)


def at_most(most, make):
    """Return `make` for at most so many elements, for a library whose rate does not depend on their number."""
    return lambda count: make(min(count, most))._replace(count=min(count, most))


def tfp():
    """Import the distributions of TensorFlow Probability."""
    try:
        from tensorflow_probability.substrates.jax import distributions
    except ModuleNotFoundError:
        raise
    except Exception as error:  # a release incompatible with the installed JAX fails in many ways on import
        raise Unavailable(f"its import fails: {type(error).__name__}") from error
    return distributions


def numpyro():
    """Import the distributions of NumPyro."""
    from numpyro import distributions

    return distributions


def host_samplers(k):
    """Return NumPy's and `mkl_random`'s draws: float64 rejection on one core."""

    def numpy_draws(count):
        generator, concentration = np.random.default_rng(SEED), values(k, count)
        return Competitor(lambda _: generator.vonmises(0.0, concentration, count))

    return {NUMPY: at_most(2**20, numpy_draws), MKL: at_most(2**20, functools.partial(mkl_draws, k))}


def mkl_draws(k, count):
    """Return draws by ``mkl_random`` in a separate process, since it disturbs NumPy's generator."""
    if importlib.util.find_spec("mkl_random") is None:
        raise ModuleNotFoundError(name="mkl_random")
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    spawn.Process(target=serve_mkl, args=(there, values(k, count), count), daemon=True).start()
    there.close()
    return Competitor(draw=lambda _: here.send(None), wait=lambda _: here.recv())


def serve_mkl(connection, concentration, count):
    """Draw once for each message."""
    import mkl_random

    generator = mkl_random.MKLRandomState(SEED)
    with contextlib.suppress(EOFError):
        while True:
            connection.recv()
            generator.vonmises(0.0, concentration, count)
            connection.send(None)


def torch_device():
    """Return PyTorch and the device on which it competes: the GPU if JAX uses one."""
    import jax
    import torch

    device = "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"
    return torch, device, lambda _: torch.cuda.synchronize() if device == "cuda" else None


def torch_draws(k, dtype, count):
    """Return PyTorch's draws, whose loop is TorchScript, which `torch.compile` would not change."""
    torch, device, wait = torch_device()
    dtype = getattr(torch, dtype)
    concentration = torch.as_tensor(values(k, count)).to(device, dtype)
    loc = torch.zeros((), dtype=dtype, device=device)
    distribution = torch.distributions.VonMises(loc, concentration, validate_args=False)
    torch.manual_seed(SEED)
    return Competitor(lambda _: distribution.sample(shape(k, count)), wait=wait)


def cupy_draws(k, dtype, count):
    """Return CuPy's draws: rejection in float64, one GPU thread per draw."""
    import cupy

    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Unavailable("finds no GPU") from error
    cupy.random.seed(SEED)
    concentration = cupy.asarray(values(k, count))
    return Competitor(
        draw=lambda _: cupy.random.vonmises(0.0, concentration, count, dtype=np.dtype(dtype)),
        wait=lambda _: cupy.cuda.get_current_stream().synchronize(),
    )


def jax_draws(k, dtype, implementation="threefry2x32"):
    """Return the draws of the libraries on JAX."""
    import jax

    import jax_von_mises as jvm

    def of(draw, count):
        return of_keys(draw, values(k, count).astype(dtype), implementation=implementation)

    def ours(count):
        return of(lambda key, k: jvm.sample_von_mises(key, 0.0, k, (count,), dtype), count)

    def normal(count):
        return of(lambda key, k: jax.random.normal(key, (count,), dtype), count)

    def with_numpyro(count):
        distribution, size = numpyro().VonMises, shape(k, count)
        return of(lambda key, k: distribution(jax.numpy.zeros((), dtype), k).sample(key, size), count)

    def with_tfp(count):
        distribution, size = tfp().VonMises, shape(k, count)
        if implementation != "threefry2x32":
            raise Unavailable("takes only threefry2x32 keys")

        def draw(key, k):
            words = jax.random.key_data(key)
            return distribution(jax.numpy.zeros((), dtype), k).sample(size, seed=words)

        return of(draw, count)

    return {OURS: ours, NORMAL: normal, NUMPYRO: with_numpyro, TFP: with_tfp}


def by_kernels(k, count):
    """Return draws by the package's CUDA kernels, which are off by default."""
    import jax

    import jax_von_mises as jvm
    from jax_von_mises import environment
    from jax_von_mises.von_mises import cuda

    if jax.default_backend() != "gpu":
        raise Unavailable("JAX does not run on a GPU")
    if count < cuda.SMALLEST:
        raise Unavailable("the kernels do not draw so few angles")
    if why := cuda.fault("threefry2x32"):
        raise Unavailable(f"the kernels are not used: {why}")

    def draw(key, k):
        with mock.patch.dict(os.environ, {environment.CUDA_KERNELS: "1"}):  # read while the program is traced
            return jvm.sample_von_mises(key, 0.0, k, (count,))

    return of_keys(draw, values(k, count).astype(np.float32))


def samplers(k, dtype="float32", implementation="threefry2x32"):
    """Return draws by all libraries."""
    # Each draw of PyTorch needs 94 to 121 bytes, and its rate falls once the arrays leave the cache.
    most = 2**21 if dtype != "float64" else 2**20
    return {
        **jax_draws(k, dtype, implementation),
        **host_samplers(k),
        TORCH: at_most(most, functools.partial(torch_draws, k, dtype)),
        CUPY: functools.partial(cupy_draws, k, dtype),
        **({KERNELS: functools.partial(by_kernels, k)} if isinstance(k, Spread) and dtype == "float32" else {}),
    }


def gradients(k, dtype="float32"):
    """Return derivatives of the sum of the draws with respect to the concentrations."""
    import jax

    import jax_von_mises as jvm

    def ours(count):
        def total(key, k):
            return jvm.sample_von_mises(key, 0.0, k, (count,), dtype).sum()

        return of_keys(jax.grad(total, 1), values(k, count).astype(dtype))

    def with_tfp(count):
        distribution, size = tfp().VonMises, shape(k, count)

        def total(key, k):
            return distribution(jax.numpy.zeros((), dtype), k).sample(size, seed=jax.random.key_data(key)).sum()

        return of_keys(jax.grad(total, 1), values(k, count).astype(dtype))

    draws = jax_draws(k, dtype)
    return {OURS: ours, ALONE: draws[OURS], NORMAL_ALONE: draws[NORMAL], TFP: with_tfp}


def angles(count, dtype):
    """Return a function that makes angles; an angle closer to pi could round to more than pi."""
    return lambda generator: generator.uniform(-3.14, 3.14, count).astype(dtype)


def functions(task, k, dtype="float32", gradient=False, points=angles):
    """Return ``log_prob`` or ``cdf`` of all libraries, or the gradient of its sum with respect to k.

    ``points(count, dtype)`` returns a function that makes the arguments from a generator.
    """
    import jax
    import jax.numpy as jnp

    import jax_von_mises as jvm

    def of(function, count):
        if gradient:
            function = jax.grad(lambda x, k, function=function: function(x, k).sum(), 1)
        return of_arrays(function, points(count, dtype), dtype, values(k, count))

    def ours(count):
        return of(lambda x, k: getattr(jvm, task)(x, 0.0, k), count)

    def with_class(library, count):
        distribution = library().VonMises
        return of(lambda x, k: getattr(distribution(jnp.zeros((), dtype), k), task)(x), count)

    def with_scipy(count):
        from scipy import stats

        concentration = values(k, count)
        function = {"log_prob": stats.vonmises.logpdf, "cdf": stats.vonmises.cdf}[task]
        return Competitor(lambda x: function(x, concentration), cycling(points(count, "float64")))

    found = {OURS: ours}
    if task == "log_prob":
        found["jax.scipy"] = lambda count: of(jax.scipy.stats.vonmises.logpdf, count)
        found[NUMPYRO] = functools.partial(with_class, numpyro)
    found[TFP] = functools.partial(with_class, tfp)
    if not gradient:
        found[SCIPY] = at_most(2**18, with_scipy)
    if task == "log_prob":
        found[TORCH] = functools.partial(torch_log_prob, k, dtype, gradient, points)
    return found


def torch_log_prob(k, dtype, gradient, points, count):
    """Return PyTorch's log density, compiled by `torch.compile`, or the gradient of its sum."""
    torch, device, wait = torch_device()
    concentration = torch.as_tensor(values(k, count)).to(device, getattr(torch, dtype)).requires_grad_(gradient)
    loc = torch.zeros_like(concentration)

    def density(x, loc, concentration):
        return torch.distributions.VonMises(loc, concentration, validate_args=False).log_prob(x)

    torch.compiler.reset()  # `torch.compile` silently stops compiling after eight programs of one function
    compiled = torch.compile(density, dynamic=False)

    def draw(x):
        if not gradient:
            return compiled(x, loc, concentration)
        return torch.autograd.grad(compiled(x, loc, concentration).sum(), concentration)

    return Competitor(draw, cycling(points(count, dtype), lambda x: torch.as_tensor(x).to(device)), wait)
