"""Compare the angles of single words with the float64 reference, without statistics."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from jax import lax, random

from jax_von_mises import sample_von_mises
from jax_von_mises.engine import tails
from jax_von_mises.von_mises import bessel, quantile, transform
from tests import reference
from tests.marks import more

CONCENTRATIONS = (
    0.0, 1e-30, 1e-8, 1e-3, 0.03, 0.3, 1.0, 2.5, 4.999, 5.0, 5.001, 6.5, 9.0, 13.0, 16.999, 17.0, 17.001,
    25.0, 80.0, 1e3, 1e5, 1e8, 1e12, 1e17, 1e20, 1e30,
)  # fmt: skip
WORDS = 2**31  # 31 bits; the 32nd is the sign
# By default, test one word in STRIDE (a prime, so that no bit pattern is favoured) and all words next to both ends;
# `-m slow` tests every word.
STRIDE = 18731
# The accuracy of `sample_von_mises`: the larger of a relative error of the tail probability and 4 ulp of the angle.
# The two bounds meet where one ulp of the angle changes its tail by a quarter of the first. Beyond, floats are too
# coarse.
BOUND = {"float32": 2e-6, "float64": 1e-12}
BOUND_ULP = 4
CELLS = 256  # per octave; the error of Hermite interpolation of the exact quantile is then 4e-12


OCTAVES = 33


@functools.cache
def reference_table(k):
    """Return coefficients (rows, 4) of cubics that interpolate quantiles between the tails 2^-o (1 + j / CELLS)."""
    t = (2.0 ** -np.arange(OCTAVES + 1, 1, -1.0)[:, None] * (1 + np.arange(CELLS) / CELLS)).ravel()
    t = np.r_[t, 0.5]
    x = reference.quantile(t, k, np.where(t == 0.5, 0.0, 0.5 - t))
    slope, h, rise = -1 / reference.pdf(x, k), np.diff(t), np.diff(x)
    p, q = h * slope[:-1], h * slope[1:]
    return np.stack([x[:-1], p, 3 * rise - 2 * p - q, p + q - 2 * rise], -1)


@jax.jit
def word_errors(m, x, table, k, norm):
    """Return the largest errors of the angles `x` of words `m`, with the tail probabilities at which they occur.

    They are errors of the tail, or of the angle in ulp where floats are too coarse.

    The errors are computed in float64 by a compiled program, since NumPy would take hours for all words.
    """
    t = (m.astype(jnp.float64) + 0.5) * 2.0**-32
    # The exponent and the leading mantissa bits number the cells; the other bits are the position in the cell.
    place_bits = 52 - CELLS.bit_length() + 1
    bits = lax.bitcast_convert_type(t, jnp.uint64)
    row = (bits >> place_bits).astype(jnp.int64) - ((1023 - OCTAVES - 1) * CELLS)
    place = (bits & (2**place_bits - 1)).astype(jnp.float64) * 2.0**-place_bits
    a, b, c, d = table[row].T
    exact = a + place * (b + place * (c + place * d))
    near = exact.astype(jnp.float32)
    ulp = (lax.nextafter(near, jnp.full_like(near, jnp.inf)) - near).astype(jnp.float64)
    rate = jnp.exp(-2 * k * jnp.sin(exact / 2) ** 2) / norm / t
    error = jnp.abs(x.astype(jnp.float64) - exact)
    fine = ulp * rate <= BOUND["float32"] / BOUND_ULP
    # NaN must count as the largest error.
    tail = jnp.where(fine, jnp.nan_to_num(error * rate, nan=jnp.inf), 0)
    ulps = jnp.where(fine, 0, jnp.nan_to_num(error / ulp, nan=jnp.inf))
    return (tail.max(), t[tail.argmax()]), (ulps.max(), t[ulps.argmax()])


def assert_accurate(x, t, k, dtype, exact):
    """Assert the guaranteed bound at every point."""
    x, t, k, exact = (each.ravel() for each in np.broadcast_arrays(x.astype(np.float64), t, k, exact))
    ulp = np.spacing(exact.astype(dtype)).astype(np.float64)
    rate = reference.pdf(exact, k) / t
    error = np.abs(x - exact)
    fine = ulp * rate <= BOUND[dtype] / BOUND_ULP
    tail_error = np.where(fine, error * rate, 0)
    ulps = np.where(fine, 0, error / ulp)
    worst, coarse = tail_error.argmax(), ulps.argmax()
    assert tail_error[worst] <= BOUND[dtype], f"k={k[worst]}: tail off by {tail_error[worst]:.2e} at t={t[worst]:.3g}"
    assert ulps[coarse] <= BOUND_ULP, f"k={k[coarse]}: angle off by {ulps[coarse]:.2f} ulp at t={t[coarse]:.3g}"


def words(first, last, step=1):
    return np.arange(first, last, step, dtype=np.uint32)


@functools.cache
def angle(method):
    """Return a program for |angle| that takes the upper 31 bits, a concentration and, in float64, the lower words."""

    def draw(high, k, *low):
        return jnp.abs(transform.angles((high << 1, *low), jnp.zeros_like(k), k, method))

    return jax.jit(draw)


def check_words(m, k, method):
    k32 = np.float32(k)
    x = angle(method)(m, k32)
    with jax.enable_x64(True):
        exact = float(k32)
        errors = word_errors(m, x, reference_table(exact), exact, reference.norm(exact))
        tail, at, ulps, coarse_at = map(float, jax.tree.leaves(errors))
    assert tail <= BOUND["float32"], f"k={k}: tail off by {tail:.2e} at t={at:.3g}"
    assert ulps <= BOUND_ULP, f"k={k}: angle off by {ulps:.2f} ulp at t={coarse_at:.3g}"


@pytest.mark.parametrize("k", [0.3, 1e5])
def test_word_errors_detects_errors(k):
    """`word_errors` reports no error for exact angles, and the error and the tail probability of one wrong angle."""
    m = np.random.default_rng(6).integers(0, WORDS, 5000, dtype=np.uint32)
    t = (m + 0.5) * 2.0**-32
    x = reference.quantile(t, k)
    with jax.enable_x64(True):
        check = functools.partial(word_errors, m, table=reference_table(k), k=k, norm=reference.norm(k))
        tail, _, ulps, _ = map(float, jax.tree.leaves(check(x=x)))
        assert tail < 1e-10
        assert ulps < 1e-3
        x[17] += 1e-5 * t[17] / reference.pdf(x[17], k)
        tail, at, ulps, coarse_at = map(float, jax.tree.leaves(check(x=x)))
    assert (tail == pytest.approx(1e-5, rel=1e-4) and at == t[17]) or (ulps > BOUND_ULP and coarse_at == t[17])


@pytest.mark.parametrize("method", ["direct", "table"])
@pytest.mark.parametrize("k", CONCENTRATIONS)
def test_words(k, method):
    ends = words(0, 2**13), words(WORDS - 2**13, WORDS)
    check_words(np.concatenate([*ends, words(0, WORDS, STRIDE)]), k, method)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["direct", "table"])
@pytest.mark.parametrize("k", CONCENTRATIONS)
def test_every_word(k, method):
    for first in range(0, WORDS, 2**22):
        check_words(words(first, first + 2**22), k, method)


def test_many_concentrations():
    """Angles are accurate for 400 random concentrations with separate words."""
    rng = np.random.default_rng(3)
    k = np.float32(10.0 ** rng.uniform(-3, 6, 400))
    m = rng.integers(0, WORDS, (400, 50), dtype=np.uint32)
    m[:, ::2] >>= rng.integers(0, 31, (400, 25), dtype=np.uint32)  # half of them in the tails
    x = np.asarray(angle("direct")(m, k[:, None]))
    t = (m.astype(np.float64) + 0.5) * 2.0**-32
    wide = np.broadcast_to(k.astype(np.float64)[:, None], t.shape)
    assert_accurate(x, t, wide, "float32", reference.quantile(t, wide))


@pytest.mark.parametrize("k", [0.0, 0.3, 20.0, 33.0, 1e4, 1e12])
@pytest.mark.parametrize("method", ["direct", *more("table")])
def test_float64(k, method):
    """Angles of 63-bit words are accurate, also in tails beyond those of float32."""
    rng = np.random.default_rng(4)
    m = np.concatenate([
        rng.integers(0, 2**63, 5000, dtype=np.uint64),
        rng.integers(0, 2**63, 5000, dtype=np.uint64) >> rng.integers(0, 63, 5000, dtype=np.uint64),
    ])  # fmt: skip
    high, low = (m >> np.uint64(32)).astype(np.uint32), (m & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    with jax.enable_x64(True):
        x = np.asarray(angle(method)(high, np.float64(k), low))
    t = (m.astype(np.float64) + 0.5) * 2.0**-64
    assert_accurate(x, t, k, "float64", reference.quantile(t, k))


def test_infinite_and_invalid_concentrations():
    m = words(0, WORDS, 2**20)
    for method in ("direct", "table"):
        assert (np.asarray(angle(method)(m, np.float32(np.inf))) == 0).all()
        assert np.isnan(angle(method)(m, np.float32(np.nan))).all()
        assert np.isnan(angle(method)(m, np.float32(-1))).all()


@pytest.mark.parametrize(("k", "method"), [(1e5, "direct"), (1e9, "table")])
def test_distinct_values(k, method):
    """At least as many values are distinct as from a normal sampler; samplers that use arccos have about 1000."""
    key = random.key(8)
    draws = 2 * 10**5
    ours = np.unique(np.abs(sample_von_mises(key, 0.0, k, (draws,), method=method)))
    normal = np.unique(np.abs(random.normal(key, (draws,)) / np.sqrt(np.float32(k))))
    assert len(ours) >= len(normal)


def test_sign_and_tail_bits():
    """The extreme words give the smallest tail probability and the largest, next to 1/2, with either sign."""
    first, last = tails.tail((jnp.uint32([0, 1]),)), tails.tail((jnp.uint32([0xFFFFFFFE, 0xFFFFFFFF]),))
    assert first.t.tolist() == [2.0**-33] * 2
    assert last.half_minus_t.tolist() == [2.0**-33] * 2
    assert first.sign.tolist() == last.sign.tolist() == [False, True]


@jax.jit
def norm_and_complement(k):
    return *bessel.norm(k, 1 / k), bessel.ratio_complement(k, 1 / k)


@pytest.mark.parametrize("k", [1e-20, 0.1, 4.9999, 5.0, 7.9999, 8.0, 29.9, 30.1, 1e4, 1e15])
def test_bessel(k):
    exact = float(np.float32(k))
    n, s, complement = map(float, norm_and_complement(np.float32(k)))
    assert n * np.exp(-s) == pytest.approx(reference.norm(exact), rel=3e-7)
    assert complement == pytest.approx(reference.ratio_complement(exact), rel=1e-6)
    with jax.enable_x64(True):
        n, s, complement = map(float, norm_and_complement(np.float64(k)))
        assert abs(mp.mpf(n) * mp.exp(-mp.mpf(s)) / reference.mp_norm(k) - 1) <= 1e-15
        assert complement == pytest.approx(reference.ratio_complement(k), rel=3e-14)


def test_slope_with_the_quantile():
    """The slope is that of the exact quantile, even next to pi, and the quantile is the same, bit for bit."""
    k = np.float32([c for c in CONCENTRATIONS if 1e-3 <= c <= 1e17])[:, None]
    tails = np.r_[np.linspace(0.01, 0.499, 60), 2.0 ** -np.linspace(2, 33, 200)]
    t, c = np.float32(tails), np.float32(0.5 - np.float32(tails).astype(float))
    x, slope = jax.jit(quantile.half_quantile_and_slope)(*np.broadcast_arrays(t, c, k))
    assert np.array_equal(x, jax.jit(quantile.half_quantile)(*np.broadcast_arrays(t, c, k)))
    exact = reference.quantile(t.astype(float), k.astype(float), c.astype(float))
    np.testing.assert_allclose(slope, reference.dquantile_dk(exact, k.astype(float)), rtol=1e-5)


def test_half_quantile_takes_complement():
    """Near t = 1/2 the angle keeps its relative accuracy, since c = 1/2 - t is given separately."""
    c = np.float32([1e-9, 1e-7, 1e-4])
    half_quantile = jax.jit(quantile.half_quantile)
    for k in (0.0, 2.0, 1e4):
        x = half_quantile(np.float32(0.5 - c), c, np.full(3, k, np.float32))
        exact = reference.quantile(0.5 - c.astype(np.float64), k, c.astype(np.float64))
        np.testing.assert_allclose(x, exact, rtol=4e-6)
