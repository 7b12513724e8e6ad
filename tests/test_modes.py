"""Public functions return the same bits in every mode of JAX; without jit, the results agree up to rounding.

``CPU_DEVICES=1 pytest tests/test_modes.py`` runs them on one CPU device, the usual number. ``-m slow`` adds one mode
for each function, in turn, and all functions on eight devices.
"""

import contextlib
import itertools
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_von_mises as jvm
from jax_von_mises import numpyro, runtime

# The other tests run under stricter promotion rules than most users have.
PLAIN = (lambda: jax.numpy_dtype_promotion("standard"), lambda: jax.numpy_rank_promotion("allow"))
MODES = {
    "plain": PLAIN,
    "debug_nans": (lambda: jax.debug_nans(True),),
    "debug_infs": (lambda: jax.debug_infs(True),),
    "checking_leaks": (jax.checking_leaks,),
    "debug_key_reuse": (lambda: jax.debug_key_reuse(True),),
    "enable_checks": (lambda: jax.enable_checks(True),),
    "legacy_prng_key": (lambda: jax.legacy_prng_key("error"),),
    "default_matmul_precision": (lambda: jax.default_matmul_precision("bfloat16"),),
    "default_prng_impl": (lambda: jax.default_prng_impl("rbg"),),
    "threefry_partitionable": (lambda: jax.threefry_partitionable(False),),
    "enable_x64": (lambda: jax.enable_x64(True),),
    "disable_jit": (jax.disable_jit,),
}
# These modes can be combined in one test.
TOGETHER = [name for name in MODES if name not in ("threefry_partitionable", "enable_x64", "disable_jit")]


class Arguments(NamedTuple):
    """Valid arguments; each array has four elements."""

    key: jax.Array
    loc: jax.Array
    k: jax.Array
    x: jax.Array
    q: jax.Array
    folder: pathlib.Path


def gradient(function, *arguments):
    """Return the gradient of a nonlinear function of the results with respect to all arguments."""
    return jax.grad(lambda *at: jnp.sum(jnp.sin(function(*at))), tuple(range(len(arguments))))(*arguments)


def shards(a):
    mesh = jax.make_mesh((jax.device_count(),), ("d",))
    sample = lambda key: jvm.sample_shard(key, a.loc[0], a.k[0], (3,), "d")  # noqa: E731
    return jax.jit(jax.shard_map(sample, mesh=mesh, in_specs=P(), out_specs=P("d")))(a.key)


def von_mises(a):
    return jvm.VonMises(a.loc, a.k)


def mixture(a):
    return jvm.Mixture(logits=jnp.stack([a.x, a.q]), components=von_mises(a))


def numpyro_von_mises(a):
    return numpyro.VonMises(a.loc, a.k, validate_args=False)


def written(a):
    out = a.folder / "angles.npy"
    jvm.write_samples(out, a.key, a.loc, a.k, 5, block_rows=2, force=True)
    jvm.verify_samples(out)
    return np.load(out)


LONG = 20_011  # a size that a single CPU device computes in rows
CALLS = {
    "sample_von_mises": lambda a: jvm.sample_von_mises(a.key, a.loc, a.k),
    "sample, table": lambda a: jvm.sample_von_mises(a.key, a.loc[0], a.k[0], (LONG,)),
    "sample, gradient": lambda a: gradient(lambda loc, k: jvm.sample_von_mises(a.key, loc, k), a.loc, a.k),
    "sample_block": lambda a: jvm.sample_block(a.key, a.loc, a.k, 2**33 + 1, (2, 4)),
    "sample_pmap": lambda a: jvm.sample_pmap(a.key, a.loc, a.k, (jax.device_count(), 4)),
    "sample_shard": shards,
    "sample_antithetic": lambda a: jvm.sample_antithetic(a.key, a.loc, a.k, (2, 4)),
    "sample_stratified": lambda a: jvm.sample_stratified(a.key, a.loc, a.k, (3, 4)),
    "sample_truncated": lambda a: jvm.sample_truncated(a.key, a.loc, a.k, a.x, a.x + 2),
    "truncated, gradient": lambda a: gradient(
        lambda loc, k, low: jvm.sample_truncated(a.key, loc, k, low, low + 2), a.loc, a.k, a.x
    ),
    "log_prob": lambda a: jvm.log_prob(a.x, a.loc, a.k),
    "prob": lambda a: jvm.prob(a.x, a.loc, a.k),
    "cdf": lambda a: jvm.cdf(a.x, a.loc, a.k),
    "sf": lambda a: jvm.sf(a.x, a.loc, a.k),
    "log_cdf": lambda a: jvm.log_cdf(a.x, a.loc, a.k),
    "log_sf": lambda a: jvm.log_sf(a.x, a.loc, a.k),
    "icdf": lambda a: jvm.icdf(a.q, a.loc, a.k),
    "isf": lambda a: jvm.isf(a.q, a.loc, a.k),
    "log_prob, gradient": lambda a: gradient(jvm.log_prob, a.x, a.loc, a.k),
    "prob, gradient": lambda a: gradient(jvm.prob, a.x, a.loc, a.k),
    "cdf, gradient": lambda a: gradient(jvm.cdf, a.x, a.loc, a.k),
    "log_cdf, gradient": lambda a: gradient(jvm.log_cdf, a.x, a.loc, a.k),
    "icdf, gradient": lambda a: gradient(jvm.icdf, a.q, a.loc, a.k),
    "mean": lambda a: (jvm.mean(a.loc, a.k), jvm.mode(a.loc, a.k)),
    "variance": lambda a: (jvm.variance(a.k), gradient(jvm.variance, a.k)),
    "stddev": lambda a: (jvm.stddev(a.k), gradient(jvm.stddev, a.k)),
    "entropy": lambda a: (jvm.entropy(a.k), gradient(jvm.entropy, a.k)),
    "kl_divergence": lambda a: jvm.kl_divergence(a.loc, a.k, a.x, a.q),
    "kl, gradient": lambda a: gradient(jvm.kl_divergence, a.loc, a.k, a.x, a.q),
    "fit": lambda a: jvm.fit(a.x, a.q),
    "fit, gradient": lambda a: gradient(lambda x: jvm.fit(x).concentration, a.x),
    "standard_errors": lambda a: jvm.standard_errors(a.k, a.q),
    "VonMises": lambda a: (von_mises(a).sample(a.key), von_mises(a).cdf(a.x), von_mises(a).entropy()),
    "Mixture": lambda a: (mixture(a).log_prob(a.x[:1]), mixture(a).cdf(a.x[:1]), mixture(a).mean()),
    "Mixture.sample": lambda a: mixture(a).sample(a.key),
    "Torus": lambda a: (jvm.Torus(von_mises(a)).sample(a.key), jvm.Torus(von_mises(a)).log_prob(a.x)),
    "numpyro": lambda a: (
        numpyro_von_mises(a).log_prob(a.x),
        numpyro_von_mises(a).cdf(a.x),
        numpyro_von_mises(a).icdf(a.q),
    ),
    "numpyro.sample": lambda a: numpyro_von_mises(a).sample(a.key),
    "sample_batches": lambda a: list(jvm.sample_batches(a.key, a.loc, a.k, 5, 2)),
    "prefetch_to_host": lambda a: list(jvm.prefetch_to_host(jvm.sample_batches(a.key, a.loc, a.k, 5, 2))),
    "batched_apply": lambda a: jvm.batched_apply(lambda x: jvm.log_prob(x, a.loc[0], a.k[0]), a.x, 3),
    "write_samples": written,
    "derive_key": lambda a: jax.random.key_data(jvm.derive_key(a.key, "a", 3)),
    "warmup": lambda a: [compiled.shape for compiled in runtime.warmup((4,), loc=a.loc, concentration=a.k)],
    "suggest_batch_size": lambda a: runtime.suggest_batch_size(a.k, shape=(4,)) > 0,
}


# Calls that take seconds to compile.
LENGTHY = {name for name in CALLS if "gradient" in name and name != "log_prob, gradient"}
LENGTHY |= {"sample_stratified", "sample_truncated", "isf", "sf", "log_cdf", "log_sf", "variance", "stddev", "entropy"}
LENGTHY |= {"kl_divergence", "VonMises", "Mixture", "Mixture.sample", "numpyro", "sample_antithetic", "sample_pmap"}
LENGTHY |= {"sample_block", "warmup", "suggest_batch_size", "fit", "prob"}
DEVICES = jax.config.jax_num_cpu_devices


def cases(*modes):
    """Return the calls, each with one of `modes` in turn if given; mark those not run by default as slow."""
    marked = []
    for name, mode in zip(CALLS, itertools.cycle(modes or [None]), strict=False):
        marks = (pytest.mark.slow,) if name in LENGTHY or DEVICES > 1 or modes else ()
        marked.append(pytest.param(name, *([mode] if modes else []), marks=marks))
    return marked


@pytest.fixture
def arguments(key, tmp_path):
    values = [[0.3, -2.0, 3.1, 100.0], [0.5, 4.0, 60.0, 1e6], [0.1, -2.5, 3.0, 99.0], [0.5, 1e-3, 0.99, 1e-20]]
    return Arguments(key, *(jnp.array(v, jnp.float32) for v in values), tmp_path)


def flat(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def compare(name, modes, arguments):
    expected = flat(CALLS[name](arguments))
    with contextlib.ExitStack() as stack:
        for mode in modes:
            for enter in MODES[mode]:
                stack.enter_context(enter())
        results = flat(CALLS[name](arguments))
    assert len(results) == len(expected)
    for one, other in zip(results, expected, strict=True):
        assert one.dtype == other.dtype
        if "disable_jit" in modes:  # each operation is then a separate program with its own rounding
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        else:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", cases())
def test_together(name, arguments):
    compare(name, TOGETHER, arguments)


@pytest.mark.parametrize("name", ["sample_von_mises", "cdf"])
def test_float32_in_64_bits(name, arguments):
    """Functions of float32 arguments compute in float32 even if x64 is enabled."""
    compare(name, ["enable_x64"], arguments)


@pytest.mark.parametrize(("name", "mode"), cases(*MODES))
def test_alone(name, mode, arguments):
    if (name, mode) == ("Mixture.sample", "threefry_partitionable"):
        pytest.skip("the mode changes jax.random.categorical, which chooses the components")
    compare(name, [mode], arguments)


@pytest.mark.parametrize("name", ["sample_von_mises", "icdf", "fit", "sample_batches"])
def test_no_hidden_transfers(name, arguments):
    """If the parameters are on the device, a call transfers nothing else to it implicitly."""
    expected = flat(CALLS[name](arguments))
    with jax.transfer_guard("disallow"):
        results = flat(CALLS[name](arguments))
    assert all(map(np.array_equal, results, expected))
