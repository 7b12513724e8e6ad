"""Who is timed: ``sample_von_mises`` and the samplers that it is compared with.

A peer is one function from a case to a `Ready` sampler. It imports its library itself and raises `Unavailable` with
the reason where there is none. All draw about 0, and all take the concentration as an argument, not as a constant that
a compiler could work on beforehand.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.timing import Competitor

__all__ = ["OURS", "PEERS", "Peer", "Ready", "Unavailable"]

SEED = 20260101
OURS = "ours"
BENCH = 'pip install "jax_von_mises[bench]"'


class Unavailable(Exception):
    """A peer that cannot run here; the message says why."""


class Ready(NamedTuple):
    """A sampler for one case: what is timed, how a result becomes a NumPy array of angles, and where it runs."""

    competitor: Competitor
    angles: Callable[[Any], np.ndarray] = np.asarray
    device: str = "cpu"


class Peer(NamedTuple):
    """A row of the table.

    A peer that runs on the CPU draws no more than `most_draws` angles in a quick run, or beside a GPU. NumPy's rate
    does not depend on their number. PyTorch's loop runs until its last lane accepts, on arrays that leave the cache:
    fewer draws are in its favour (seen: its rate halves each time their number grows fourfold).
    """

    name: str
    label: str
    prepare: Callable[[Any], Ready]
    most_draws: int | None = None


def jax_sampler(case, sample, angles=np.asarray):
    """Jit ``sample(key, loc, concentration)`` and give every call a new key."""
    import jax
    import jax.numpy as jnp

    if case.dtype == "float64" and not jax.config.jax_enable_x64:
        raise Unavailable("float64 needs JAX_ENABLE_X64=1")
    loc = jnp.zeros((), case.dtype)
    concentration = jnp.asarray(case.concentrations, case.dtype)
    key = jax.random.key(SEED, impl=case.key_impl)
    compiled = jax.jit(sample)
    competitor = Competitor(
        draw=lambda key: compiled(key, loc, concentration),
        fresh=lambda i: jax.block_until_ready(jax.random.fold_in(key, i)),
        wait=jax.block_until_ready,
    )
    return Ready(competitor, angles, jax.default_backend())


def ours(case):
    """Our sampler as a user calls it, `method` left to its rule."""
    try:
        from jax_von_mises import sample_von_mises
    except ImportError as error:
        raise Unavailable(f"jax_von_mises does not import: {error}") from error

    def sample(key, loc, concentration):
        return sample_von_mises(key, loc, concentration, (case.draws,), case.dtype)

    return jax_sampler(case, sample)


def jax_normal(case):
    """JAX's own normal sampler: not the law asked for, but the fastest continuous law users of JAX know."""
    import jax

    def sample(key, loc, concentration):
        return jax.random.normal(key, (case.draws,), case.dtype)

    # As an approximation to the von Mises law it has the standard deviation 1 / sqrt(concentration).
    scale = np.sqrt(case.concentrations)
    return jax_sampler(case, sample, lambda result: np.asarray(result) / scale)


def numpy_generator(case):
    """NumPy's ``Generator.vonmises``: float64 rejection in C on one core."""
    generator = np.random.default_rng(SEED)
    concentration = np.asarray(case.concentrations, np.float64)
    return Ready(Competitor(lambda _: generator.vonmises(0.0, concentration, case.draws)))


def numpyro(case):
    """NumPyro's ``VonMises``: rejection in lockstep over all lanes."""
    try:
        from numpyro.distributions import VonMises
    except ImportError as error:
        raise Unavailable(f"NumPyro is not installed: {BENCH}") from error
    shape = () if case.per_draw else (case.draws,)
    return jax_sampler(case, lambda key, loc, concentration: VonMises(loc, concentration).sample(key, shape))


def tfp(case):
    """TensorFlow Probability on JAX: as NumPyro, with an implicit derivative."""
    try:
        from tensorflow_probability.substrates.jax.distributions import VonMises
    except Exception as error:  # a release that does not fit the installed JAX fails in many ways while importing
        reason = "not installed" if isinstance(error, ModuleNotFoundError) else f"broken: {type(error).__name__}"
        raise Unavailable(f"TensorFlow Probability is {reason}: pip install tfp-nightly") from error
    import jax

    shape = () if case.per_draw else (case.draws,)

    def sample(key, loc, concentration):
        return VonMises(loc, concentration).sample(shape, seed=jax.random.key_data(key))

    return jax_sampler(case, sample)


def torch(case):
    """PyTorch's ``VonMises``: float64 rejection in lockstep, on its GPU where JAX has one too."""
    try:
        import torch
    except ImportError as error:
        raise Unavailable("PyTorch is not installed: pip install torch") from error
    import jax

    device = "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"
    torch.manual_seed(SEED)
    dtype = getattr(torch, case.dtype)
    concentration = torch.as_tensor(case.concentrations).to(device, dtype)
    law = torch.distributions.VonMises(torch.zeros((), dtype=dtype, device=device), concentration)
    shape = () if case.per_draw else (case.draws,)
    competitor = Competitor(
        draw=lambda _: law.sample(shape),
        wait=lambda _: torch.cuda.synchronize() if device == "cuda" else None,
    )
    return Ready(competitor, lambda result: result.cpu().numpy(), "gpu" if device == "cuda" else "cpu")


def cupy(case):
    """CuPy's ``random.vonmises``: rejection in float64, one GPU thread a draw."""
    try:
        import cupy
    except ImportError as error:
        raise Unavailable("CuPy is not installed: pip install cupy-cuda13x") from error
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Unavailable(f"CuPy finds no GPU: {error}") from error
    cupy.random.seed(SEED)
    concentration = cupy.asarray(case.concentrations)
    competitor = Competitor(
        draw=lambda _: cupy.random.vonmises(0.0, concentration, case.draws, dtype=np.dtype(case.dtype)),
        wait=lambda _: cupy.cuda.get_current_stream().synchronize(),
    )
    return Ready(competitor, cupy.asnumpy, "gpu")


PEERS = (
    Peer(OURS, "jax_von_mises", ours),
    Peer("normal", "jax.random.normal", jax_normal),
    Peer("numpy", "NumPy", numpy_generator, most_draws=2**22),
    Peer("numpyro", "NumPyro", numpyro),
    Peer("tfp", "TensorFlow Probability", tfp, most_draws=2**22),
    Peer("torch", "PyTorch", torch, most_draws=2**21),
    Peer("cupy", "CuPy", cupy),
)
