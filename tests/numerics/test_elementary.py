"""Test elementary functions at the ends of their domains, and at ties of rounding."""

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises.numerics import elementary


def test_clip():
    """At a bound the derivative is 1, as inside, so an angle at the end of its range keeps its derivatives."""
    x = jnp.array([-1.0, 0.0, 0.5, 1.0, 2.0, jnp.nan])
    np.testing.assert_array_equal(elementary.clip(x, 0, 1), [0, 0, 0.5, 1, 1, np.nan])
    slopes = jax.vmap(jax.grad(lambda x: elementary.clip(x, 0, 1)))(x)
    np.testing.assert_array_equal(slopes[:5], [0, 1, 1, 1, 0])


def test_whole_bits():
    """Ties round to the even neighbour, as in NumPy, also for negative numbers."""
    x = np.r_[np.arange(-8, 8, 0.5), 2.0**22 - 1, 1.0 - 2.0**22, 2.0**21 + 0.5].astype(np.float32)
    lower = np.uint32(2**22 - 1)
    bits = np.asarray(elementary.whole_bits(x)).view(np.uint32)
    np.testing.assert_array_equal(bits & lower, np.round(x).astype(np.int32).view(np.uint32) & lower)


def test_with_slopes():
    """Derivatives follow the formula in both modes and twice; None and static arguments have none."""

    @elementary.with_slopes(lambda y, power, x, k, unused: (power * y / x, y / k, None), static=(0,))
    def scaled_power(power, x, k, unused):
        return k * jax.lax.stop_gradient(x) ** power + 0 * unused

    at = jnp.float32(2), jnp.float32(3), jnp.float32(5)
    for derivative in (jax.jacfwd, jax.jacrev):
        assert derivative(scaled_power, (1, 2, 3))(3, *at) == (36, 8, 0)
        assert derivative(derivative(scaled_power, 1), (1, 2))(3, *at) == (36, 12)
