"""Test the distributions of antithetic, stratified and truncated angles, and the variances of means over them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from jax import random
from scipy import stats

from jax_von_mises import sample_antithetic, sample_stratified, sample_truncated, sample_von_mises
from jax_von_mises.engine import tails
from jax_von_mises.von_mises import truncated, variance_reduction
from tests import arcs, goodness_of_fit, reference
from tests.marks import more

CONCENTRATIONS = (0.0, 0.5, 4.0, 100.0, 1e6)
# Bounds for `sample_truncated`: a relative error of the smaller fraction of the arc's mass, or 4 ulp of the angle.
TOLERANCE = {"float32": 1e-6, "float64": 2e-13}
ULPS = 4
RNG_SEED = 8

truncated_many = jax.jit(functools.partial(sample_truncated, shape=(2**15,)))  # one program for several tests


exact_tail = functools.cache(goodness_of_fit.ExactTail)


def assert_distribution(x, loc, k):
    """Assert that angles pass all goodness-of-fit tests."""
    goodness_of_fit.assert_fits(
        goodness_of_fit.battery(np.asarray(x, np.float64).ravel() - loc, k, exact_tail(k)), f"loc={loc}, k={k}"
    )


# ------------------------------------------------------------------------------------------ mirrored pairs


def test_pairs_are_exact(key):
    """The angles of a pair are opposite, the first is a draw of the sampler, and `loc` adds rounding only."""
    k = np.float32(CONCENTRATIONS)
    x = np.asarray(sample_antithetic(key, 0.0, k, (1000, 5)))
    assert (x[:500] == -x[500:]).all()
    np.testing.assert_array_equal(x[:500], sample_von_mises(key, 0.0, k, (500, 5)))
    y = np.asarray(sample_antithetic(key, 2.0, k, (1000, 5)), np.float64)
    sums = np.remainder(y[:500] + y[500:] - 4 + np.pi, 2 * np.pi) - np.pi
    assert np.abs(sums).max() < 1e-6
    assert ((y >= -np.pi) & (y < np.pi)).all()


# ------------------------------------------------------------------------------------------ strata


@pytest.mark.parametrize(("count", "dtype"), [(1000, "float32"), *more((3, "float64"))])
def test_one_angle_in_each_stratum(key, count, dtype):
    k = np.array(CONCENTRATIONS, dtype)
    with jax.enable_x64(dtype == "float64"):
        x = np.asarray(sample_stratified(key, 0.0, k, (count, 4, len(k)), dtype), np.float64)
    tail = reference.sf(np.abs(x), k)
    # Allow for the error of tail probabilities: in float32, below two thousandths of a stratum.
    slack = {"float32": 3e-6, "float64": 2e-12}[dtype] * tail * count
    place = np.where(x < 0, tail, 1 - tail) * count - np.arange(count)[:, None, None]
    assert ((place >= -slack) & (place <= 1 + slack)).all()


@pytest.mark.parametrize("count", [2**31 + 3, 2**32])
def test_more_strata_than_an_int32_counts(key, count):
    """Strata are numbered beyond 2^31; only those at the ends and near the middle are computed."""
    places = (0, count // 2 - 1, count - count // 2, count - 1)

    def some(key):
        tails = variance_reduction.within_strata(variance_reduction.stream_tails(key, (count,), jnp.float32))
        return [jnp.stack([x[place] for place in places]) for x in tails]

    left, t, c = map(np.asarray, jax.jit(some)(key))
    assert left.tolist() == [True, True, False, False]
    assert (t[[0, 3]] < 1 / count).all()
    np.testing.assert_allclose(t[[1, 2]], 0.5)
    np.testing.assert_allclose(t + c, 0.5)
    assert (c[[1, 2]] < 2 / count).all()


@pytest.mark.more
def test_strata_of_the_far_tail(key):
    """Angles in the outermost of 2^16 strata, on both sides, are distinct and have the distribution of the tail."""
    x = np.asarray(sample_stratified(key, 0.0, 4.0, (2**16, 64)), np.float64)
    outer = np.r_[reference.sf(-x[0], 4.0), reference.sf(x[-1], 4.0)] * 2**16
    assert goodness_of_fit.kolmogorov_smirnov(np.sort(outer)) > goodness_of_fit.P_VALUE
    assert len(np.unique(outer)) == 128


@pytest.mark.more
def test_stratified_distribution(key):
    # Take one angle of each replicate, from a random stratum, since only replicates are independent.
    x = np.asarray(sample_stratified(key, 0.0, 4.0, (16, 2**16)))
    pick = np.random.default_rng(RNG_SEED).integers(0, 16, 2**16)
    assert_distribution(x[pick, np.arange(2**16)], 0.0, 4.0)


@pytest.mark.more
def test_parameters_broadcast_behind_the_strata(key):
    loc, k = np.float32([0.5, -1.0, 0.0]), np.float32([1.0, 5.0, 1e4])
    x = sample_stratified(key, loc, k, (10, 3))
    assert x.shape == (10, 3)
    deviation = np.remainder(np.asarray(x, float) - loc + np.pi, 2 * np.pi) - np.pi
    tail = reference.sf(np.abs(deviation), k)
    assert (np.floor(10 * np.where(deviation < 0, tail, 1 - tail)) == np.arange(10)[:, None]).all()


# ------------------------------------------------------------------------------------------ variance reduction


def variance_ratio(scheme, function, count, replicates=400, k=2.0):
    """Return the variance of the mean of `function` over `count` angles of `scheme`, relative to independent angles."""
    shape = (count, replicates)
    draws = [np.asarray(draw(random.key(RNG_SEED), 0.3, k, shape), float) for draw in (scheme, sample_von_mises)]
    means = function(draws[0]).mean(0)
    return means.var() / (function(draws[1]).var() / count)


@pytest.mark.more
def test_antithetic_gain():
    # About loc = 0.3, sin(x - 0.3) is odd, so its mean varies only by rounding. sin x is nearly odd, and cos(x - 0.3)
    # is even.
    assert variance_ratio(sample_antithetic, lambda x: np.sin(x - 0.3), 64) < 1e-10
    assert variance_ratio(sample_antithetic, np.sin, 64) < 0.2
    assert 1.6 < variance_ratio(sample_antithetic, lambda x: np.cos(x - 0.3), 64) < 2.4


@pytest.mark.more
def test_gain_grows():
    """The variance ratio falls as n^-2: 16 times as many angles lower it by a factor of 256; the test requires 60."""
    few, many = (variance_ratio(sample_stratified, np.cos, count) for count in (8, 128))
    assert few < 0.4
    assert many < few / 60


# ------------------------------------------------------------------------------------------ arcs


def random_arcs(count, dtype, largest=8.0):
    """Draw concentrations and arcs of all widths; a third are placed on the mode, a third on the opposite point."""
    rng = np.random.default_rng(RNG_SEED)
    k = np.where(rng.random(count) < 0.1, 0, 10 ** rng.uniform(-3, largest, count))
    width = np.where(rng.random(count) < 0.5, 10 ** rng.uniform(-4, 0.79, count), rng.uniform(0.01, 6.28, count))
    low = rng.uniform(-np.pi, np.pi, count)
    kind = rng.integers(0, 3, count)
    low = np.where(kind == 1, -rng.random(count) * width, np.where(kind == 2, np.pi - rng.random(count) * width, low))
    return k.astype(dtype), low.astype(dtype), (low + width).astype(dtype)


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def fractions(key, shape, dtype):
    return tails.fractions(variance_reduction.stream_tails(key, shape, np.dtype(dtype)))


def words(key, shape, dtype):
    """Draw the fractions of an arc before and after each angle; half of them extend to the smallest fractions."""
    before, after = (np.array(a) for a in fractions(key, shape, dtype))
    rng = np.random.default_rng(RNG_SEED)
    quarter = shape[0] // 4
    deep = (2.0 ** -rng.uniform(1, 33 if dtype == "float32" else 65, (quarter, *shape[1:]))).astype(dtype)
    before[:quarter], after[:quarter] = deep, 1 - deep
    after[-quarter:], before[-quarter:] = deep, 1 - deep
    return before, after


@jax.jit
def reversed_program(*arguments):
    x, back = jax.vjp(truncated.restricted, *arguments)
    return x, back(jnp.ones_like(x))[2:]


def reverse(*arguments):
    """Return angles at fractions of arcs, and their reverse-mode derivatives with respect to the other arguments."""
    x, slopes = reversed_program(*arguments)
    return np.asarray(x), np.stack(slopes)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_share_of_the_arc(key, dtype):
    """The fraction of the arc's probability before each angle is the one that the angle's word determines."""
    k, low, high = random_arcs(150, dtype)
    with jax.enable_x64(dtype == "float64"):
        before, after = words(key, (16, 150), dtype)
        row = [np.broadcast_to(a, before.shape) for a in (np.zeros_like(k), k, low, high)]
        x, _ = reverse(before, after, *row)
    assert x.dtype == dtype
    for i, j in np.ndindex(x.shape):
        concentration = float(k[j])
        a, y, b = arcs.on_line(float(x[i, j]), 0.0, float(low[j]), float(high[j]))
        ulp = float(np.spacing(np.maximum(np.abs(x[i, j]), np.asarray(np.abs(y), dtype))))
        earlier = arcs.share_before(y - ULPS * ulp, a, b, concentration)
        later = arcs.share_before(y + ULPS * ulp, a, b, concentration)
        u, v = float(before[i, j]), float(after[i, j])
        # If the arc contains the point opposite to the mode, both ends matter, and their rounding moves the fraction.
        moved = 4 * np.finfo(dtype).eps * concentration * max(abs(np.sin(a)), abs(np.sin(b))) if b > np.pi else 0
        slack = (TOLERANCE[dtype] + moved) * min(u, v)
        where = f"k={concentration}, arc from {a} to {b}: x={y}, fraction {u}"
        side = 0 if u < v else 1
        low_fraction, high_fraction = sorted((earlier[side], later[side]))
        assert low_fraction - slack <= min(u, v) <= high_fraction + slack, where


def test_reference_agrees_with_mpmath():
    def density(u):
        return mp.exp(-2 * mp.mpf(k) * (mp.sin(u / 2) ** 2 - mp.sin(1) ** 2))

    for k, a, x, b in [
        (1e4, 2.0, 2.0003, 3.0),
        (3.0, -1.0, 3.5, 4.0),
        (0.0, 1.0, 1.0005, 1.001),
        (50.0, -0.2, 0.1, 0.2),
    ]:
        with mp.workdps(40):
            cuts = sorted({a, x, b, *(p for p in (0.0, mp.pi, a + 1e-3, a + 1e-2) if a < p < b)})
            parts = [(c, mp.quad(density, [c, d])) for c, d in itertools.pairwise(cuts)]
            exact = sum(m for c, m in parts if c < x) / sum(m for _, m in parts)
        assert arcs.share_before(x, a, b, k)[0] == pytest.approx(float(exact), rel=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_angles_lie_in_the_arc(key, dtype):
    """Angles drawn from arcs on any turn lie in the arc up to rounding, and exactly if its ends are in [-pi, pi)."""
    k, low, high = random_arcs(600, dtype)
    loc = np.random.default_rng(1).uniform(-4, 4, 600).astype(dtype)
    with jax.enable_x64(dtype == "float64"):
        x = np.asarray(sample_truncated(key, loc, k, low, high, (50, 600)))
    assert x.dtype == dtype
    assert ((x >= -np.pi) & (x < np.pi)).all()
    plain = (low > -3.14) & (high < 3.14)
    assert 100 < plain.sum() < 500
    assert ((x >= low) & (x <= high))[:, plain].all()
    beyond = np.remainder(x.astype(float) - low.astype(float) + 1e-6, 2 * np.pi) - 1e-6
    assert (beyond <= high.astype(float) - low + 2e-6).all()


@pytest.mark.parametrize(
    ("loc", "k", "low", "high"),
    [(0.0, 2.0, -1.0, 0.5), (0.5, 1.0, 2.0, 5.0), (0.0, 0.3, -3.0, 3.2), (0.0, 1e4, 2.0, 3.0), (1.0, 40.0, 2.0, 2.001),
     (-2.0, 0.0, 3.0, 4.0), (0.0, 1e6, -0.001, 0.003), (0.0, 5.0, -np.pi, np.pi)],
)  # fmt: skip
def test_truncated_distribution(key, loc, k, low, high):
    x = np.asarray(truncated_many(key, loc, k, low, high))[:1000]
    low, high = float(np.float32(low)), float(np.float32(high))
    fractions_before = [
        arcs.share_before(y, a, b, k)[0] for a, y, b in (arcs.on_line(v, loc, low, high) for v in x.astype(float))
    ]
    ordered = np.sort(fractions_before)
    assert goodness_of_fit.kolmogorov_smirnov(ordered) > goodness_of_fit.P_VALUE
    counts = np.bincount((20 * ordered).astype(int).clip(0, 19), minlength=20)
    assert goodness_of_fit.chi_square(counts, np.full(20, 50)) > goodness_of_fit.P_VALUE


def test_full_circle_is_the_distribution(key):
    assert_distribution(truncated_many(key, 0.0, 4.0, -np.pi, np.pi), 0.0, 4.0)


@pytest.mark.parametrize("k", [1e12, 1e30, float(np.finfo(np.float32).max), jnp.inf])
def test_huge_concentration(key, k):
    """If the arc contains the mode, angles are normal about it, with all digits; else they lie at the nearer end."""
    x = np.asarray(truncated_many(key, 0.0, k, -1.0, 2.0), np.float64)
    if k > 1e38:
        assert (x == 0).all()
    else:
        assert (
            goodness_of_fit.kolmogorov_smirnov(np.sort(stats.norm.cdf(x * float(np.float32(k)) ** 0.5)))
            > goodness_of_fit.P_VALUE
        )
    for low, high, nearer in ((1.0, 2.0, 1.0), (-2.0, -1.0, -1.0), (2.0, 4.0, 2.0), (2.5, 4.5, 4.5 - 2 * np.pi)):
        x = np.asarray(truncated_many(key, 0.0, k, low, high), np.float64)
        np.testing.assert_allclose(x, nearer, atol=1e-6)


def test_invalid_arcs_and_parameters_give_nan(key):
    draw = functools.partial(truncated_many, key)
    good = (0.0, 1.0, 0.0, 1.0)
    assert np.isfinite(draw(*good)).all()
    for i, value in ((0, jnp.nan), (0, jnp.inf), (1, -1.0), (1, jnp.nan), (2, 1.0), (2, 2.0), (3, 7.0), (3, jnp.nan)):
        assert np.isnan(draw(*good[:i], value, *good[i + 1 :])).all(), (i, value)


# ------------------------------------------------------------------------------------------ derivatives of arcs

SLOPES = [
    (0.0, 2.0, -1.0, 0.5), (0.5, 1.0, 2.0, 5.0), (0.0, 0.3, -3.0, 3.2), (0.0, 1e4, 2.0, 3.0), (1.0, 40.0, 2.0, 2.001),
    (0.0, 1e-3, 3.0, 4.0), (0.0, 1e6, -0.001, 0.003), (0.0, 5.0, -3.0, -1.0), (0.25, 8.0, 3.0, 8.0),
]  # fmt: skip


@pytest.mark.more
@pytest.mark.parametrize("dtype", ["float32", *more("float64")])
def test_slopes(key, dtype):
    """Reverse-mode slopes agree with those of the distribution at the same angles."""
    with jax.enable_x64(dtype == "float64"):
        before, after = words(key, (16, 150), dtype)
        columns = np.array([SLOPES[j % len(SLOPES)] for j in range(150)], dtype).T
        x, slopes = reverse(before, after, *(np.broadcast_to(a, before.shape) for a in columns))
    assert x.dtype == slopes.dtype == dtype
    for i, j in np.ndindex(4, len(SLOPES)):
        loc, k, low, high = map(float, columns[:, j])
        for y, value in zip(x[:, j].astype(float), slopes[i][:, j].astype(float), strict=True):
            a, y, b = arcs.on_line(y, loc, low, high)
            expected = exact_slope(i, a, y, b, k)
            # The rounding of the distance of an end from `loc` changes the density there by this fraction.
            rounding = 2.4e-7 * k * np.sin(min(np.pi / 2, max(abs(a), abs(b))))
            scale = (high - low) / max(k, 1) if i == 1 else 1.0
            assert value == pytest.approx(expected, rel=1e-5 + rounding, abs=5e-7 * scale + (0 if i == 1 else rounding))


def exact_slope(argument, a, x, b, k):
    """Return the derivative of the angle x with respect to one argument, from integrals over fine panels."""
    before, after = arcs.mass(a, x, k, x), arcs.mass(x, b, k, x)
    before, after = before / (before + after), after / (before + after)
    of_low, of_high = after * np.exp(arcs.rise(a, x - a, k)), before * np.exp(arcs.rise(b, x - b, k))
    if argument != 1:
        return {0: 1 - of_low - of_high, 2: of_low, 3: of_high}[argument]
    # The difference quotient loses half of the digits.
    step = 1e-5 * max(k, 1e-2)
    shift = [arcs.mass(a, x, k + s, x) * after - arcs.mass(x, b, k + s, x) * before for s in (step, -step)]
    return -(shift[0] - shift[1]) / (2 * step)


@pytest.mark.more
def test_slopes_at_the_ends_of_the_range(key):
    """Slopes are finite for concentrations from 0 to infinity, but not for a negative one."""
    before, after = words(key, (16, 150), "float32")
    ks = np.float32([0.0, 3.0, 1e8, np.inf, -1.0])
    row = (np.float32(0.2), np.resize(ks, 150), np.float32(-1.0), np.float32(2.5))
    _, slopes = reverse(before, after, *(np.broadcast_to(a, before.shape) for a in row))
    assert (np.isfinite(slopes) == (np.resize(ks, 150) >= 0)).all()


# ------------------------------------------------------------------------------------------ transformations, errors


@pytest.mark.more
def test_derivatives_of_pairs_and_strata(key):
    """Stratified angles have the derivatives of the quantile function, and pairs have opposite derivatives."""
    slopes = jax.jit(jax.jacfwd(functools.partial(sample_antithetic, key, shape=(6,)), 1))(0.5, 3.0)
    np.testing.assert_array_equal(slopes[:3], -slopes[3:])
    x, slope = jax.jit(lambda k: jax.jvp(lambda k: sample_stratified(key, 0.0, k, (9,)), (k,), (1.0,)))(3.0)
    x = np.asarray(x, float)
    np.testing.assert_allclose(slope, np.sign(x) * reference.dquantile_dk(np.abs(x), 3.0), rtol=5e-6, atol=2e-7)


@pytest.mark.more
@pytest.mark.parametrize("draw", [sample_antithetic, sample_stratified])
def test_short_floats_transformations_and_empty_shapes(key, draw):
    draw = functools.partial(draw, shape=(6, 2), dtype=jnp.bfloat16)
    keys = random.split(key, 3)
    rows = jax.jit(jax.vmap(draw, (0, None, 0)))(keys, 3.0, jnp.array([1.0, 0.5, -1.0]))
    x = draw(keys[1], 3.0, 0.5)
    assert x.dtype == jnp.bfloat16
    assert ((x >= -np.pi) & (x < np.pi)).all()
    np.testing.assert_allclose(*np.asarray([rows[1], x], np.float32), rtol=2.0**-7)
    assert np.isnan(rows[2]).all()
    assert draw(key, 0.0, 1.0, shape=(0, 2)).shape == (0, 2)


@pytest.mark.parametrize("draw", [sample_antithetic, sample_stratified])
def test_invalid_shapes(key, draw):
    with pytest.raises(ValueError, match=r"shape=\(\) has no first axis"):
        draw(key, 0.0, 1.0, ())
    with pytest.raises(ValueError, match=r"loc has shape \(4,\), .* shape\[1:\]=\(\)"):
        draw(key, jnp.zeros(4), 1.0, (4,))
    with pytest.raises(ValueError, match=r"concentration has shape \(3,\), .* shape\[1:\]=\(2,\)"):
        draw(key, 0.0, jnp.ones(3), (4, 2))
    first, message = {
        sample_antithetic: (3, r"sample_antithetic: shape=\(3,\) has length 3 .* even"),
        sample_stratified: (2**32 + 1, r"sample_stratified: shape=\(4294967297,\) .* more than 2\^32"),
    }[draw]
    with pytest.raises(ValueError, match=message):
        draw(key, 0.0, 1.0, first)


def test_invalid_arcs(key):
    message = r"sample_truncated: low=.* and high=.* are not the ends of an arc in float32"
    for low, high in [(1.0, 1.0), (2.0, 1.0), (0.0, 6.3), (1.0, 1.0 + 1e-9), (0.0, np.nan), (-np.inf, 0.0)]:
        with pytest.raises(ValueError, match=message):
            sample_truncated(key, 0.0, 1.0, low, high)
        with pytest.raises(ValueError, match=r"at index \(1,\)"):
            sample_truncated(key, 0.0, 1.0, np.array([0.0, low]), np.array([1.0, high]))
