r"""The quantile of the von Mises law: from a tail probability to an angle, without a loop.

For the tail probability t and c = 1/2 - t the distance to the root is, to first order, with the integral J of
`integral`, :math:`u = J - t N e^q` (tail) or :math:`u = J + c N e^q` (centre). The root is the Taylor series of the
inverse function, x' = 1/p, in :math:`d = \kappa \sin(x) u` and :math:`e = \kappa \cos(x) u^2`; see `refine`. One step
from `guess` is enough for float32, and a second one for float64. Tails that no sample reaches are bracketed instead.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises import bessel, tables
from jax_von_mises.density import KAPPA_MIN, HalfAngle, density, score
from jax_von_mises.elementary import LOG2_E, clip, exp2, exp_product, kept_on_cuda, log2, only, polynomial2
from jax_von_mises.integral import KAPPA_MAX, derivative, integrals
from jax_von_mises.tails import tail_beyond

# The angles lie in [-pi, pi): the largest float below pi, since the nearest float32 to pi is larger than pi.
LARGEST_ANGLE = {
    np.dtype(np.float32): float(np.nextafter(np.float32(np.pi), np.float32(0))),
    np.dtype(np.float64): float(np.pi),
}


def largest_angle(dtype):
    """The largest float below pi."""
    return LARGEST_ANGLE[np.dtype(dtype)]


def guess(t, kappa, inverse, root, wide=False):
    """Starting angle, float32, for the tail probability `t`; `inverse` and `root` are 1 / kappa and kappa^-1/2.

    The variable is a logit that saturates where the angle reaches pi, and vanishes with it at t = 1/2,

        L = log2((1 + E) / (2 t + E)),   E = exp(-2 kappa) = p(pi) / p(0).

    A polynomial in L / (2 + kappa) and 1 / (2 + kappa) covers small concentrations, one in L and 1 / kappa the
    rest; with `wide` for tails down to 2^-65. `tables` gives the error, as |dx| max(kappa sin x, sqrt(kappa)).
    """
    switch = tables.GUESS64_SWITCH if wide else tables.GUESS_SWITCH
    low_table = tables.GUESS64_LOW if wide else tables.GUESS_LOW
    high_table = tables.GUESS64_HIGH if wide else tables.GUESS_HIGH
    low = jnp.minimum(kappa, switch)
    floor = exp2((-2 * LOG2_E) * low)
    # Two logarithms side by side are quicker than a quotient and one: the chain is shorter.
    level = log2(1 + floor) - log2(2 * t + floor)
    shrink = 1 / (2 + low)
    y = level * shrink
    small = y * polynomial2(low_table, y, shrink)
    r = jnp.minimum(inverse, 1 / switch)
    large = (level * root) * polynomial2(high_table, level, r)
    return clip(jnp.where(kappa < switch, small, large), 0, largest_angle(t.dtype))


def refine(x, t, c, kappa, inverse, dtype_rule=None):
    """One step towards the quantile of `t`, from an `x` with a weighted error (see `guess`) below about 0.08.

    The series to fifth order; what it leaves is about the sixth power of the weighted error:

        x + u (1 + d/2 + (2 d^2 + e)/6 + (6 d^3 + 7 d e - d u^2)/24
                 + (24 d^4 + 46 d^2 e + 7 e^2 - 11 d^2 u^2 - e u^2)/120)
    """
    (j,), centre, half = integrals(x, kappa, inverse, dtype_rule=dtype_rule)
    x, j, centre, half = lax.platform_dependent(x, j, centre, half, cuda=halved_again, default=lambda *all_: all_)
    n, shift = bessel.norm(kappa, inverse)
    u = j - jnp.where(centre, -c, t) * n * exp_product(kappa, half.parts, shift)
    u2 = u * u
    d = kappa * half.sin * u
    e = kappa * half.cos * u2
    d2 = d * d
    third = (1 / 3) * d2 + (1 / 6) * e
    fourth = d * (0.25 * d2 + (7 / 24) * e - (1 / 24) * u2)
    fifth = d2 * (0.2 * d2 + (46 / 120) * e - (11 / 120) * u2) + e * ((7 / 120) * e - (1 / 120) * u2)
    series = (0.5 * d + third) + (fourth + fifth)
    return clip(x + (u + u * series), 0, largest_angle(x.dtype))


def halved_again(x, j, centre, half):
    """The same, of which two numbers an angle are stored: the rest is less to compute again; see `kept_on_cuda`.

    The integral is negative on the centre's side alone.
    """
    x, j = lax.optimization_barrier((x, j))
    return x, j, j <= 0, HalfAngle.of(x, exact=x.dtype == jnp.float64)


def half_quantile(t, c, kappa):
    """|x| with P(X > |x|) = `t`, for a law centred at 0.

    Parameters
    ----------
    t, c : float32 or float64 arrays
        Tail probability in (0, 1/2], at least 2^-33 (float32) or 2^-65 (float64), and 1/2 - `t`, given apart so
        that angles near 0 keep their relative accuracy.
    kappa : array of the same dtype
        Concentration in [0, inf]; NaN gives NaN.

    Returns
    -------
    array
        Radians, in [0, pi). Accuracy: see `sample_von_mises`.
    """
    root_full = lax.rsqrt(jnp.maximum(kappa, KAPPA_MIN))
    root = jnp.maximum(root_full, KAPPA_MAX**-0.5)
    k = jnp.clip(kappa, KAPPA_MIN, KAPPA_MAX)
    inverse = root * root
    if t.dtype == jnp.float64:
        # In float32, which is enough, and where one concentration gives the digits that an array of it gives (XLA's
        # float64 exponential does not). The short rule serves the first step; the second makes its error invisible.
        single = (a.astype(jnp.float32) for a in (t, k, inverse, root))
        x = kept_on_cuda(guess(*single, wide=True)).astype(jnp.float64)
        x = refine(x, t, c, k, inverse, dtype_rule=jnp.float32)
    else:
        x = kept_on_cuda(guess(t, k, inverse, root))
    x = refine(x, t, c, k, inverse)
    # 1 up to KAPPA_MAX, then the normal law's own scaling; 0 at infinity.
    return x * jnp.minimum(root_full * KAPPA_MAX**0.5, 1)


@jax.custom_jvp
def inverse_density(x, kappa):
    """1 / p, but finite where p is no float, so that a tangent of 0 times it is 0."""
    return 1 / jnp.maximum(density(x, kappa), float(jnp.finfo(x.dtype).tiny))


@inverse_density.defjvp
def _inverse_density_jvp(primals, tangents):
    # From the logarithm: the square of p may be no float.
    value, (along, across) = inverse_density(*primals), score(*primals)
    return value, -value * (along * tangents[0] + across * tangents[1])


# Half quantiles start from a guess for the tails that a sampler's words reach; deeper ones are bracketed.
SMALLEST_TAIL = {"float32": 2.0**-33, "float64": 2.0**-65}
# log p falls by at most 3.9 (float32) or 15.8 times as much for any float, and goes with the square of the chord, so
# this many times the angle is beyond the deepest tail; then one bisection a digit, and some for the bracket.
REACH = {"float32": 3.3, "float64": 6.6}
BISECTIONS = {"float32": 27, "float64": 57}


@jax.custom_jvp
def any_half_quantile(t, c, kappa):
    """`half_quantile` for tails down to 0, where it is pi. Differentiable in `kappa` and in `t`, which `c` follows."""
    name = np.dtype(t.dtype).name
    x = half_quantile(jnp.maximum(t, SMALLEST_TAIL[name]), c, kappa)
    deep = t < SMALLEST_TAIL[name]

    def bisect(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        inside = tail_beyond(middle, kappa) > t
        return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

    def search(x):
        ends = x, jnp.minimum(REACH[name] * x, largest_angle(x.dtype))
        low, high = lax.fori_loop(0, BISECTIONS[name], bisect, ends)
        # A bracket of NaN is that of a bad concentration, which has no end either.
        return jnp.where(deep, jnp.where((t > 0) | jnp.isnan(x), 0.5 * (low + high), np.pi), x)

    return lax.cond(jnp.any(deep), search, lambda x: x, x)


@any_half_quantile.defjvp
def _any_half_quantile_jvp(primals, tangents):
    t, c, kappa = primals
    x = any_half_quantile(t, c, kappa)
    return x, derivative(x, kappa) * tangents[2] - tangents[0] * inverse_density(x, kappa)


def signed_quantile(q, kappa):
    """The angle in [-pi, pi] with P(X < angle) = `q`; NaN outside [0, 1]."""
    q = only(q, (q >= 0) & (q <= 1))
    left = q < 0.5
    x = any_half_quantile(jnp.where(left, q, 1 - q), jnp.where(left, 0.5 - q, q - 0.5), kappa)
    return jnp.where(left, -x, x)
