"""Compare maximum likelihood with its definition, SciPy, and the spread predicted by the Fisher information."""

import functools
import warnings

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import optimize, special, stats

import jax_von_mises as jvm
from jax_von_mises import VonMises, fit, log_prob, standard_errors
from jax_von_mises.engine.samples import WeightedSets
from tests import reference
from tests.marks import more, slow

EPS = {"float32": 2.0**-23, "float64": 2.0**-52}


def draw(loc, k, shape, dtype="float32", seed=0):
    """Return angles from NumPy's sampler, which needs no compilation."""
    return np.random.default_rng(seed).vonmises(loc, k, shape).astype(dtype)


def exact_fit(x, w=None):
    """Return the fitted direction and concentration in mpmath, taking the angles as exact."""
    with mp.workdps(50):
        w = [mp.mpf(1)] * len(x) if w is None else [mp.mpf(float(v)) for v in w]
        x = [mp.mpf(float(v)) for v in x]
        c = sum(a * mp.cos(b) for a, b in zip(w, x, strict=True)) / sum(w)
        s = sum(a * mp.sin(b) for a, b in zip(w, x, strict=True)) / sum(w)
        return float(mp.atan2(s, c)), float(exact_concentration(mp.sqrt(c * c + s * s)))


def exact_concentration(r):
    """Return the concentration at which the mean cosine is r."""
    near = 1 / (2 * (1 - r)) if r > 0.9 else 2 * r
    return mp.findroot(lambda k: mp.besseli(1, k) / mp.besseli(0, k) - r, near) if near < 1e4 else inverse(1 - r)


def inverse(c):
    """Return k with 1 - A(k) = c, from the series up to 1 / k^4; its relative error is below 1e-12 for k >= 1e4."""
    k = 1 / (2 * c)
    for _ in range(6):
        k = (1 / mp.mpf(2) + 1 / (8 * k) + 1 / (8 * k * k) + 25 / (128 * k**3)) / c
    return k


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("k", [0.05, 3.0, 7.0, 40.0, 1e6, 1e10])
def test_exact(k, dtype):
    """Fits agree with mpmath, up to the rounding of sums, for angles about 0 and next to the cut."""
    with jax.enable_x64(dtype == "float64"):
        for i, loc in enumerate((0.0, 3.1)):
            x = draw(loc, k, 300, dtype, seed=i)
            direction, concentration = exact_fit(x)
            fitted = fit(x)
            assert fitted.concentration.dtype == dtype
            # Allow for the rounding of a sum of 300 terms, and for an ulp of the mean length in the concentration.
            a, c = float(reference.ratio(concentration)), float(reference.ratio_complement(concentration))
            condition = min(a, c) / (concentration * float(reference.ratio_slope(concentration)))
            assert float(fitted.concentration) == pytest.approx(concentration, rel=60 * EPS[dtype] * (1 + condition))
            spread = 1 / np.sqrt(concentration * a)
            step = 60 * EPS[dtype] * max(spread, 0.1) + 4 * EPS[dtype]
            assert abs(np.angle(np.exp(1j * (float(fitted.loc) - direction)))) <= step


def test_an_outlier_among_the_first():
    """The first angles determine the origin, but an outlier among them costs no digits."""
    x = np.r_[3.0, 1e-3 * np.random.default_rng(0).normal(size=999)].astype(np.float32)
    direction, concentration = exact_fit(x)
    fitted = fit(x)
    assert float(fitted.concentration) == pytest.approx(concentration, rel=2e-5)
    assert float(fitted.loc) == pytest.approx(direction, abs=1e-7)


def test_many_angles():
    """The rounding error does not grow with the number of angles."""
    x = draw(1.0, 2.0, 1_000_001)
    exact = np.asarray(x, np.float64)
    c, s = np.cos(exact).mean(), np.sin(exact).mean()
    fitted = fit(x)
    assert float(fitted.loc) == pytest.approx(np.arctan2(s, c), abs=1e-6)
    assert float(reference.ratio(float(fitted.concentration))) == pytest.approx(np.hypot(s, c), rel=2e-6)


def test_against_scipy():
    x = draw(0.5, 3.0, (8, 400), "float64")
    fitted = fit(x.astype(np.float32), axis=1)
    for i in range(len(x)):
        k, loc, _ = stats.vonmises.fit(x[i], fscale=1)
        assert float(fitted.loc[i]) == pytest.approx(loc, abs=2e-6)
        assert float(fitted.concentration[i]) == pytest.approx(k, rel=2e-5)


def test_axes():
    x = draw(0.3, 2.0, (4, 5, 60))
    for axis in (None, -1, (0, 2), ()):
        axes = range(3) if axis is None else np.atleast_1d(np.array(axis, int)) % 3
        kept = tuple(size for i, size in enumerate(x.shape) if i not in list(axes))
        assert {each.shape for each in jax.eval_shape(lambda axis=axis: fit(x, axis=axis))} == {kept}
    together = fit(x, axis=(0, 2))
    mapped = jax.jit(jax.vmap(fit, 1))(x)
    for one, other in zip(together, mapped, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_extremes():
    x, w, loc, concentration = zip(
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], 1.0, np.inf),
        ([-2.5, 0.0, 0.0], [1.0, 0.0, 0.0], -2.5, np.inf),
        ([3.0, 1.0, 1.0], [0.0, 1.0, 1.0], 1.0, np.inf),
        ([1.0, np.nan, 1.0], [1.0, 1.0, 1.0], np.nan, np.nan),
        ([1.0, np.inf, 1.0], [1.0, 1.0, 1.0], np.nan, np.nan),
        ([1.0, 2.0, 2.0], [-1.0, 2.0, 2.0], np.nan, np.nan),
        ([1.0, 2.0, 2.0], [0.0, 0.0, 0.0], np.nan, np.nan),
        # The sum of the first weights overflows, and the others are near the smallest normal float.
        ([0.0, 1.0, 1.0], [3e38, 3e38, 0.0], 0.5, 4.4086),
        ([0.0, 1.0, 1.0], [1e-37, 1e-37, 0.0], 0.5, 4.4086),
        strict=True,
    )
    fitted = fit(np.float32(x), np.float32(w), axis=1)
    known = np.isfinite(concentration)
    np.testing.assert_allclose(np.asarray(fitted.loc)[known], np.array(loc)[known], rtol=1e-4)
    np.testing.assert_allclose(np.asarray(fitted.concentration)[known], np.array(concentration)[known], rtol=1e-4)
    np.testing.assert_array_equal(np.asarray(fitted.loc)[~known], np.array(loc)[~known])
    np.testing.assert_array_equal(np.asarray(fitted.concentration)[~known], np.array(concentration)[~known])

    assert fit([-2.5]) == (-2.5, np.inf)
    assert fit(np.full(1000, 3.0)) == (3.0, np.inf)
    even = fit(np.linspace(-np.pi, np.pi, 8, endpoint=False))
    assert even.concentration < 1e-6
    assert -np.pi <= even.loc < np.pi
    assert np.isnan(fit([])).all()
    assert fit(np.zeros((3, 0)), axis=1).loc.shape == (3,)
    angles = np.resize([0.1, 0.2, 0.4], 1000)
    turns = fit(angles + 2 * np.pi * np.resize([0, 3, -2], 1000))
    assert float(turns.loc) == pytest.approx(float(fit(angles).loc), abs=1e-5)
    assert jax.eval_shape(lambda: fit(jnp.array([0.1, 0.5], jnp.bfloat16))).loc.dtype == jnp.bfloat16


def mixed(x, w=None):
    """Return a number that depends on both estimates."""
    fitted = fit(x, w)
    return fitted.loc + 0.7 * fitted.concentration


@jax.jit
@jax.vmap
def mixed_with_weights(x, w):
    return mixed(x, w)


@jax.jit
def slopes_with_weights(x, w):
    return jax.grad(mixed, (0, 1))(x, w)


@pytest.mark.parametrize("k", [4.0, *more(0.3, 200.0)])
def test_gradient(k):
    """Gradients with respect to the angles and the weights agree with central differences."""
    with jax.enable_x64(True):
        x, w = draw(2.0, k, 7, "float64"), np.linspace(0.5, 2.0, 7)
        steps, still = 1e-6 * np.eye(7), np.zeros((7, 7))
        for slope, in_x, in_w in zip(slopes_with_weights(x, w), (steps, still), (still, steps), strict=True):
            up, down = (mixed_with_weights(x + sign * in_x, w + sign * in_w) for sign in (1, -1))
            np.testing.assert_allclose(slope, (up - down) / 2e-6, rtol=1e-5, atol=1e-7 * (1 + k))


def test_gradient_without_a_direction():
    """Where the angles balance exactly, the estimates do not move: the derivative is 0, not NaN."""
    x = np.float32([0, 0, np.pi, -np.pi])
    assert jax.tree.leaves(jvm.fit(x)) == [0, 0]
    for slopes in jax.jacobian(jvm.fit)(x):
        np.testing.assert_array_equal(slopes, 0)


@pytest.mark.slow
def test_gradient_without_weights():
    """Rotating all angles rotates only the direction; second derivatives are finite."""
    with jax.enable_x64(True):
        x = draw(2.0, 4.0, 7, "float64")
        assert np.sum(jax.grad(lambda x: fit(x).loc)(x)) == pytest.approx(1.0)
        assert np.sum(jax.grad(lambda x: fit(x).concentration)(x)) == pytest.approx(0.0, abs=1e-8)
        assert np.isfinite(jax.hessian(mixed)(x)).all()


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("k", [0.5, 7.0, 1e6, 1e10])
def test_known_direction(k, dtype):
    """With a known direction, the concentration agrees with mpmath, taking the angles and the direction as exact."""
    with jax.enable_x64(dtype == "float64"):
        for loc in np.array([0.1, 3.1], dtype):
            x = draw(loc, k, 300, dtype)
            with mp.workdps(50):
                concentration = exact_concentration(mp.fsum(mp.cos(mp.mpf(float(a)) - float(loc)) for a in x) / 300)
            fitted = fit(x, loc=loc)
            assert fitted.loc == loc
            assert fitted.concentration.dtype == dtype
            assert float(fitted.concentration) == pytest.approx(float(concentration), rel=100 * EPS[dtype])


@pytest.mark.more
def test_known_direction_at_the_ends():
    """A given direction is returned unchanged, and the concentration is 0 if most angles point away from it."""
    x = draw(0.3, 2.0, (3, 1, 40))
    fitted = fit(x, axis=-1, loc=[[0.3], [7.0], [3.3]])
    assert fitted.loc.tolist() == np.float32([[0.3], [7.0], [3.3]]).tolist()
    assert (np.asarray(fitted.concentration) > 0).tolist() == [[True], [True], [False]]
    turned = fit(x, axis=-1, loc=0.3 + 4 * np.pi)
    assert turned.loc.shape == (3, 1)
    assert turned.concentration[0] == pytest.approx(float(fitted.concentration[0, 0]), 1e-5)
    corrected = functools.partial(fit, bias_correction=True)
    assert corrected(np.full(5, 1.5), loc=1.5) == (1.5, np.inf)
    assert corrected(x[2], loc=3.3).concentration == 0
    for bad in (corrected([], loc=1.0), corrected([1.0], loc=np.nan), *(fit([1.0], [w], loc=1.0) for w in (0.0, -1.0))):
        assert np.isnan(bad.concentration)


@pytest.mark.parametrize("correction", slow(True, False))
def test_gradient_with_a_known_direction(correction):
    """Gradients with respect to angles, weights and the direction agree with central differences."""

    @jax.jit
    @jax.vmap
    def value(x, w, loc):
        return fit(x, w, loc=loc, bias_correction=correction).concentration

    with jax.enable_x64(True):
        given = np.r_[draw(2.0, 4.0, 7, "float64"), np.linspace(0.5, 2.0, 7), 2.2]
        split = lambda a: (a[..., :7], a[..., 7:14], a[..., 14])  # noqa: E731
        slope = jax.grad(lambda a: value(*(each[None] for each in split(a)))[0])(given)
        steps = 1e-6 * np.eye(15)
        difference = (value(*split(given + steps)) - value(*split(given - steps))) / 2e-6
        np.testing.assert_allclose(slope, difference, rtol=1e-5, atol=1e-7)


def corrected(k, n, known):
    """Return an estimate less its bias to first order, from the derivatives of I1 / I0."""
    a = special.ive(1, k) / special.ive(0, k)
    first = 1 - a / k - a * a
    second = a / k**2 - first / k - 2 * a * first
    return max(k - ((0 if known else 1 / (k * first)) - second / first**2) / (2 * n), 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("known", "dtype"), [(False, "float32"), *slow((True, "float32"), (False, "float64"), (True, "float64"))]
)
def test_bias_correction(known, dtype):
    """The correction agrees with SciPy; n is the sum of the weights, or `size`."""
    w = np.random.default_rng(0).uniform(0, 1, 9).astype(dtype)
    loc = 0.3 if known else None
    concentrations = (0.2, 1.0, 6.0, 200.0)
    x = np.stack([draw(0.3, k, 9, dtype, seed=4) for k in concentrations])
    with jax.enable_x64(dtype == "float64"):
        for weights, n, size in ((None, 9, None), (3 * np.ones(9, dtype), 27, None), (w, w.sum(), None), (w, 7, 7)):
            plain, less = (
                np.asarray(fit(x, weights, axis=1, loc=loc, **options).concentration, float)
                for options in ({}, {"bias_correction": True, "size": size})
            )
            mean = np.average(np.exp(1j * np.float64(x)), 1, weights)
            lengths = (mean * np.exp(-0.3j)).real if known else abs(mean)
            for estimate, better, r in zip(plain, less, lengths, strict=True):
                # SciPy's root has an error of about 1e-11.
                root = optimize.brentq(lambda k: special.ive(1, k) / special.ive(0, k) - r, 1e-9, 1e4)  # noqa: B023
                assert estimate == pytest.approx(root, rel=1e-4)
                assert better == pytest.approx(corrected(estimate, n, known), rel=1e-4, abs=1e-5)
    assert fit(np.zeros(5), bias_correction=True).concentration == np.inf
    assert np.isnan(fit([], bias_correction=True)).all()


@pytest.mark.more
def test_weights_are_counts():
    """Grouped data have the estimates of the long data, also corrected, and shares have them with `size`."""
    x, counts = draw(0.3, 3.0, (2, 6)), np.array([3, 8, 6, 2, 0, 1])
    for known, correction in ((None, True), (0.3, False)):
        long = fit(np.repeat(x, counts, 1), axis=1, loc=known, bias_correction=correction)
        grouped = fit(x, counts, axis=1, loc=known, bias_correction=correction)
        np.testing.assert_allclose(grouped.concentration, long.concentration, rtol=1e-5)
        size = {"size": np.array([20, 20])} if correction else {}
        shares = fit(x, counts / 20, axis=1, loc=known, bias_correction=correction, **size)
        np.testing.assert_allclose(shares.concentration, long.concentration, rtol=1e-5)
    for size in (0.0, -3.0, np.nan):
        assert np.isnan(fit(x, bias_correction=True, size=size).concentration)
    with pytest.raises(ValueError, match=r"fit: size=5 has no effect without bias_correction=True"):
        fit(x, size=5)
    with pytest.raises(ValueError, match=r"fit: size of shape \(3,\) does not broadcast .* estimate, \(2,\)"):
        fit(x, axis=1, bias_correction=True, size=np.ones(3))


@pytest.mark.more
@pytest.mark.parametrize("missing", [np.nan, np.inf, 1e20])
def test_values_of_weight_zero_are_ignored(missing):
    """Estimates and derivatives are those without the values, by the padded program and under a transformation."""
    x = draw(0.2, 4.0, 60)
    keep = np.arange(60) % 7 > 0
    holes, w = np.where(keep, x, np.float32(missing)), np.float32(keep)
    want = fit(x[keep])
    for found in (fit(holes, w), jax.jit(fit)(holes, w), fit(np.stack([holes, x], 1), w, axis=0)):
        for estimate, expected in zip(found, want, strict=True):
            np.testing.assert_allclose(np.ravel(estimate)[0], expected, rtol=1e-5)
    by_x, by_w = slopes_with_weights(holes, w)
    assert np.isfinite(by_x).all()
    assert np.isfinite(by_w).all()
    assert (np.asarray(by_x)[~keep] == 0).all()
    np.testing.assert_allclose(by_x[keep], slopes_with_weights(x, w)[0][keep], rtol=1e-4, atol=1e-6)


def test_other_numbers_of_angles_compile_nothing(compiled):
    """One program serves all numbers of angles up to a power of two, in all shapes, with and without weights."""
    x = draw(0.3, 2.0, 250)
    fit(x)
    some = jnp.asarray(x[:200])
    compiled.clear()
    for found in (fit(some), fit(x[:150], np.ones(150)), fit(x[:200].reshape(2, 100)), fit([1, 2] * 70)):
        assert np.isfinite(found.concentration)
    assert compiled == []
    np.testing.assert_allclose(fit(x[:150])[1], jax.jit(fit)(x[:150])[1], rtol=1e-6)


@pytest.mark.more
@pytest.mark.parametrize(("k", "known"), [(1.0, False), (4.0, True), (50.0, False)])
def test_the_bias_falls(k, known):
    """In 20,000 sets of ten angles, the bias falls to less than a tenth, up to four standard errors."""
    x, loc = draw(0.0, k, (20_000, 10)), 0.0 if known else None
    plain, less = (np.float64(fit(x, axis=1, loc=loc, bias_correction=c).concentration) for c in (False, True))
    assert plain.mean() - k > 0.08 * k
    assert abs(less.mean() - k) < 0.1 * (plain.mean() - k) + 4 * less.std() / np.sqrt(20_000)
    assert np.mean(np.square(less - k)) < np.mean(np.square(plain - k))


def test_errors_of_arguments():
    with pytest.raises(ValueError, match=r"fit: loc of shape \(3,\) does not broadcast .* estimate, \(2,\)"):
        fit(np.zeros((2, 4)), axis=1, loc=np.zeros(3))
    with pytest.raises(ValueError, match=r"fit: weights of shape \(3,\) do not broadcast to samples of shape \(2,\)"):
        fit([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"fit: axis=\(0, -1\) names an axis twice"):
        fit([1.0], axis=(0, -1))


@pytest.mark.more
@pytest.mark.parametrize("k", [0.2, 1.5, 1e5])
def test_standard_errors(k):
    """The spread of 2000 estimates agrees with the standard errors within 6%."""
    size = 1000
    fitted = fit(draw(0.0, k, (2000, size)), axis=1)
    errors = standard_errors(k, size)
    # The relative standard deviation of a standard deviation from 2000 estimates is 1.6%.
    assert np.std(np.asarray(fitted.loc, np.float64)) == pytest.approx(float(errors.loc), rel=0.06)
    assert np.std(np.asarray(fitted.concentration, np.float64)) == pytest.approx(float(errors.concentration), rel=0.06)


def test_standard_errors_are_the_information():
    """Standard errors follow from the mean squares of the first derivatives of log p, computed by quadrature."""
    with jax.enable_x64(True):
        x = np.linspace(-np.pi, np.pi, 400, endpoint=False)
        scores = jax.jit(jax.vmap(jax.grad(lambda a, x: log_prob(x, a[0], a[1])), (None, 0)))
        for k in (0.3, 5.0):
            p = np.exp(k * np.cos(x)) / np.exp(k * np.cos(x)).sum()
            score = np.asarray(scores(np.array([0.0, k]), x))
            information = np.einsum("n,ni,nj->ij", p, score, score)
            errors = standard_errors(k, 7)
            np.testing.assert_allclose(np.diag(information) * 7, 1 / np.square(errors), rtol=1e-9)
            assert abs(information[0, 1]) < 1e-12


def test_standard_errors_at_the_ends():
    assert standard_errors(0.0, 100).loc == np.inf
    assert standard_errors(0.0, 100).concentration == pytest.approx(np.sqrt(2) / 10)
    assert standard_errors(np.inf, 100) == (0.0, np.inf)
    assert standard_errors(1e30, 4).concentration == pytest.approx(1e30 / np.sqrt(2))
    assert np.isnan(standard_errors(-1.0, 100)).all()
    assert np.isnan(standard_errors(1.0, -5)).all()
    assert standard_errors(np.float32(3e38), 100.0).concentration == pytest.approx(4.2426e37, rel=1e-4)


def test_class_method():
    x = np.resize([0.1, 0.2, 0.4], 1000)
    assert VonMises.fit(x) == VonMises(*fit(x))
    assert VonMises.fit(x, loc=0.2, bias_correction=True) == VonMises(*fit(x, loc=0.2, bias_correction=True))


def test_degrees_are_noticed():
    """A warning says how to convert and how to silence it; traced or small angles and unwrapped phases give none."""
    degrees = np.linspace(10.0, 300.0, 50)
    for call in (
        lambda: jvm.fit(degrees),
        lambda: jvm.fit(jnp.asarray(degrees)),
        lambda: jvm.VonMises.fit(degrees),
        lambda: jvm.fit(np.arange(18)),
        lambda: jvm.fit([350, 355, 2, 5, 358, 10, 0, 4]),  # about north
        lambda: jvm.fit(np.float32([359.9, 0.3, 358.2, np.nan])),
        lambda: jvm.fit(np.float32([20, 22, 23.5, 1, 0.5, 19, 21, 23])),  # hours
        lambda: jvm.fit(np.arange(1, 366, 3)),  # days of the year
    ):
        with pytest.warns(UserWarning, match=r"fit: the angles look like degrees .*jnp.deg2rad.*filterwarnings") as w:
            call()
        assert w[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(jvm.fit)(degrees)
        jvm.fit(np.deg2rad(degrees))
        jvm.fit(np.linspace(-12.0, 12.0, 10))
        jvm.fit(np.arange(0, 6.4, 0.1))
        jvm.fit(np.cumsum(np.random.default_rng(0).normal(0.1, 0.3, 200)))
        jvm.fit(draw(0.3, 2.0, 90).round(1) + np.float32(2 * np.pi) * (np.arange(90) % 3))
        jvm.fit(np.zeros(0))
        jvm.VonMisesFisher.fit(30 * np.eye(3))
        warnings.filterwarnings("ignore", ".*look like degrees")
        jvm.fit(degrees)


@pytest.mark.more
@pytest.mark.parametrize("kind", ["VonMises", "Torus", "SineBivariateVonMises"])
def test_degrees_are_noticed_by_other_fits(kind):
    degrees, kind = np.linspace(10.0, 300.0, 50), getattr(jvm, kind)
    samples = degrees if kind is jvm.VonMises else np.stack([degrees, degrees], -1)
    with pytest.warns(UserWarning, match="the angles look like degrees"):
        jvm.Mixture.fit(samples, kind, number=1, starts=1, steps=1)
    if kind is jvm.SineBivariateVonMises:
        with pytest.warns(UserWarning, match="the angles look like degrees"):
            kind.fit(samples)


def test_counts_and_masks_are_weights():
    """A mask selects, and grouped data have the corrected estimate of the long data."""
    x, counts = draw(0.3, 3.0, 6), np.array([3, 8, 6, 2, 0, 1])
    long, grouped = (
        fit(samples, weights, bias_correction=True).concentration
        for samples, weights in ((np.repeat(x, counts), None), (x, counts))
    )
    np.testing.assert_allclose(grouped, long, rtol=1e-5)
    np.testing.assert_allclose(fit(x, counts > 2), fit(x[counts > 2]), rtol=1e-6)
    columns = fit(np.stack([x, x], 1), counts, axis=0, bias_correction=True).concentration
    np.testing.assert_allclose(columns, [grouped, grouped], rtol=1e-6)


def test_many_small_data_sets_are_not_padded():
    """They would become many times as large."""
    sets = WeightedSets.of("fit", "angle", np.zeros((200_000, 3), np.float32), None, 1)
    assert sets.padded() is sets
    assert WeightedSets.of("fit", "angle", np.zeros((3, 200), np.float32), None, 1).padded().samples.shape == (3, 256)
