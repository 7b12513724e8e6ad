"""Use the package as a typical program does; `make lint` checks the types against the package's annotations."""

from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises import (
    VonMises,
    cdf,
    derive_key,
    fit,
    icdf,
    initialize_compilation_cache,
    log_prob,
    runtime,
    sample_antithetic,
    sample_batches,
    sample_block,
    sample_pmap,
    sample_von_mises,
    write_samples,
)


def evaluate(key: jax.Array, headings: np.ndarray) -> float:
    """Draw, evaluate and fit with numbers, NumPy arrays and JAX arrays."""
    angles = sample_von_mises(key, 0.5, jnp.ones(3), (10, 3), jnp.float32, method="direct")
    assert_type(angles, jax.Array)
    assert_type(sample_block(derive_key(key, "epoch", 3), 0.0, 4.0, 2**40, 100), jax.Array)
    assert_type(sample_antithetic(key, headings, 4.0, headings.shape, "bfloat16"), jax.Array)
    assert_type(sample_pmap(key, 0.0, 4.0, [jax.local_device_count(), 10], devices=jax.devices()), jax.Array)
    assert_type(log_prob(headings, 0.5, 4.0) + cdf(x=0.3, loc=angles, concentration=np.float32(2)), jax.Array)
    assert_type(icdf(q=0.5, loc=0.0, concentration=4), jax.Array)
    estimate = fit(headings, axis=(0,))
    distribution = VonMises(estimate.loc, estimate.concentration)
    assert_type(distribution, VonMises)
    assert_type(distribution.sample(key, 10), jax.Array)
    assert_type(distribution.kl_divergence(VonMises.fit(angles)), jax.Array)
    return float(distribution.entropy())


def stream(key: jax.Array) -> int:
    """Draw in batches and write a file, after setting up the runtime."""
    runtime.configure(threads=8, xla_flags={"xla_cpu_enable_fast_math": False})
    print(initialize_compilation_cache("compiled").path)
    for program in runtime.warmup([1_000, (64, 128)], ["float32"], concentration=4.0):
        print(program.output_bytes)
    for batch in sample_batches(key, 0.0, 4.0, total=10**6, batch_size=runtime.suggest_batch_size(4.0)):
        print(batch.mean())
    return write_samples("angles.npy", key, 0.0, 4.0, 10**6, resume=True).shape[0]
