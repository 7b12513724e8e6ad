"""Compare densities, probabilities, quantiles and moments with the reference and mpmath, in float32 and float64."""

import functools
import inspect

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from scipy import stats

import jax_von_mises as jvm
from jax_von_mises.von_mises import functions as von_mises
from tests import reference
from tests.marks import more, slow

DTYPES = ("float32", "float64")
EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
CONCENTRATIONS = (0.0, 1e-8, 0.01, 0.3, 1.0, 3.0, 4.99, 5.01, 9.0, 17.0, 30.0, 100.0, 1e4, 1e8, 1e15, 1e20, 1e30)
# The accuracy that the docstrings guarantee.
LOG_PROB = {"float32": 4e-7, "float64": 1e-14}
PROB = {"float32": 4e-6, "float64": 1e-12}
TAIL = {"float32": 4e-6, "float64": 1e-12}
LARGER_TAIL = {"float32": 2 * EPS["float32"], "float64": 4 * EPS["float64"]}
QUANTILE = {"float32": 2e-6, "float64": 1e-12}
DEEP_QUANTILE = {"float32": 4e-6, "float64": 1e-12}
DEEP = {"float32": 2.0**-33, "float64": 2.0**-65}

# The functions, and the numbers of their arguments by position.
FUNCTIONS = {
    name: sum(x.kind is not x.KEYWORD_ONLY for x in inspect.signature(getattr(jvm, name)).parameters.values())
    for name in jvm.__all__
    if getattr(getattr(jvm, name), "__module__", None) == von_mises.__name__
}


@pytest.fixture(params=DTYPES)
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def angles(k, dtype):
    """Return angles from the mode to pi, rounded to `dtype`; many are close to either end."""
    x = np.r_[0, np.geomspace(1e-6, 60, 300) / np.sqrt(1 + k), np.linspace(0, np.pi, 50), np.pi - np.geomspace(1e-7, 1)]
    x = np.unique(x[(x <= np.pi) & (x >= 0)].astype(dtype))
    return x[x.astype(np.float64) <= np.pi]  # the float32 nearest to pi is larger than pi


LANES = 509  # odd, so that the last lanes, which are always used, do not fill a vector


def call(name, *arguments):
    """Return values in float64, from arrays of LANES elements, so that tests share a program per function and dtype."""
    arguments = np.broadcast_arrays(*arguments)
    count = arguments[0].size
    assert count <= LANES
    filled = [np.resize(each.ravel()[::-1], LANES)[::-1] for each in arguments]
    return np.asarray(getattr(jvm, name)(*filled), np.float64)[-count:]


def compute(name, x, k, dtype):
    """Return values at the angles or probabilities `x`, for location 0."""
    kind = np.dtype(dtype).type
    return call(name, np.asarray(x, dtype), kind(0), kind(k))


@pytest.mark.parametrize("k", CONCENTRATIONS)
def test_density(k, dtype):
    x = angles(k, dtype)
    k = float(np.dtype(dtype).type(k))
    exact = reference.log_pdf(x.astype(float), k)
    for sign in (1, -1):
        error = np.abs(compute("log_prob", sign * x, k, dtype) - exact) / np.maximum(1, np.abs(exact))
        assert error.max() <= LOG_PROB[dtype], f"{error.max():.2e} at x={x[error.argmax()]}"
        density = compute("prob", sign * x, k, dtype)
        normal = exact > np.log(np.finfo(dtype).tiny)
        error = np.abs(density[normal] / np.exp(exact[normal]) - 1)
        assert error.max() <= PROB[dtype], f"{error.max():.2e} at x={x[normal][error.argmax()]}"
        assert (density[~normal] <= 1.01 * np.finfo(dtype).tiny).all()


@pytest.mark.parametrize("k", CONCENTRATIONS)
def test_probabilities(k, dtype):
    """The smaller tail and its logarithm keep their relative accuracy, the logarithm even beyond underflow.

    The absolute error of the larger tail is at most 2 ulp of 1, and 4 in float64.
    """
    x = angles(k, dtype)
    k = float(np.dtype(dtype).type(k))
    log_tail = reference.log_sf(x.astype(float), k)
    tail = np.exp(log_tail)
    normal = tail > 2 * np.finfo(dtype).tiny
    for lower, upper, sign in (("cdf", "sf", -1), ("sf", "cdf", 1)):
        small, large = compute(lower, sign * x, k, dtype), compute(upper, sign * x, k, dtype)
        error = np.abs(small[normal] / tail[normal] - 1)
        assert error.max() <= TAIL[dtype], f"{error.max():.2e} at x={x[normal][error.argmax()]}"
        assert (small[~normal] <= 4 * np.finfo(dtype).tiny).all()
        assert np.abs(large - (0.5 + reference.central(x.astype(float), k))).max() <= LARGER_TAIL[dtype]
    for function, sign in (("log_cdf", -1), ("log_sf", 1))[: 2 if dtype == "float32" else 1]:
        log_probability = compute(function, sign * x, k, dtype)
        # Next to pi the tail goes to 0 with the distance from pi, and its logarithm to -inf.
        here = (log_tail > -1e30) & (np.pi - x > 1e-7)
        error = np.abs(log_probability - log_tail)[here] / np.maximum(1, np.abs(log_tail[here]))
        assert error.max() <= TAIL[dtype], f"{error.max():.2e} at x={x[here][error.argmax()]}"


# Include concentrations where only some, or none, of the deepest tails are near pi, in float32 and in float64.
@pytest.mark.parametrize("k", [*CONCENTRATIONS, 1e-30, 1e-6, 12.0, 25.0, 44.0, 60.0, 150.0, 354.0, 700.0, 1e6, 1e12])
def test_quantiles(k, dtype):
    """Both tails are accurate down to the smallest normal float."""
    tiny = float(np.finfo(dtype).tiny)
    q = np.r_[np.geomspace(tiny, DEEP[dtype], 300), np.geomspace(DEEP[dtype], 0.5, 200)].astype(dtype)
    q = np.clip(q, tiny, 0.5)
    k = float(np.dtype(dtype).type(k))
    exact = reference.quantile(q.astype(float), k)
    ulp = np.spacing(np.maximum(exact, tiny).astype(dtype)).astype(float)
    rate = reference.pdf(exact, k) / q
    bound = np.where(q < DEEP[dtype], DEEP_QUANTILE[dtype], QUANTILE[dtype])
    # `isf` differs only in a sign, so one dtype is enough.
    for function, sign in (("icdf", -1), ("isf", 1))[: 2 if dtype == "float32" else 1]:
        error = np.abs(sign * compute(function, q, k, dtype) - exact)
        allowed = np.maximum(bound / rate, 4 * ulp)
        worst = np.argmax(error / allowed)
        assert error[worst] <= allowed[worst], f"off by {error[worst] / ulp[worst]:.1f} ulp at q={q[worst]:.3g}"


@pytest.mark.parametrize("k", [43.0, 350.0])
def test_deep_quantiles_in_mpmath(k, dtype):
    """Quantiles of deep tails, down to the smallest normal float, agree with mpmath."""
    kind = np.dtype(dtype).type
    q = np.maximum(np.geomspace(float(np.finfo(dtype).tiny), DEEP[dtype], 2).astype(dtype), np.finfo(dtype).tiny)
    k = float(kind(k))
    for t, x in zip(q.astype(float), -compute("icdf", q, k, dtype), strict=True):
        with mp.workdps(40):
            exact = reference.mp_quantile(mp.mpf(t), k, float(reference.quantile(t, k)))
            error, rate = abs(mp.mpf(x) - exact), reference.mp_pdf(exact, k) / t
            ulp = float(np.spacing(kind(float(exact))))
            assert error * rate <= DEEP_QUANTILE[dtype] or error <= 4 * ulp, (t, float(error / ulp))


def with_deep_tails(dtype):
    """Return probabilities, the same ones with a deep tail in every seventh place, and concentrations."""
    rng = np.random.default_rng(5)
    q, k = rng.uniform(size=LANES).astype(dtype), (10.0 ** rng.uniform(-2, 5, LANES)).astype(dtype)
    mixed = q.copy()
    mixed[::7] = np.resize(np.array([0.0, 1.0, 1e-20, 1e-37, 2.0**-33, 1e-12, 1e-30], dtype), len(mixed[::7]))
    return q, mixed, k


def test_deep_tails_change_no_other_quantile(dtype):
    """Deep tails in an array change no bit of the other quantiles."""
    q, mixed, k = with_deep_tails(dtype)
    rest = np.arange(LANES) % 7 != 0
    actual, expected = (call("icdf", each, q.dtype.type(0), k)[rest] for each in (mixed, q))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.more
def test_deep_tails_and_nan_under_vmap():
    """Under `jax.vmap`, deep tails have the bits and derivatives of one call with arrays; NaN stays in its lane."""
    _, q, k = with_deep_tails("float32")
    loc = np.zeros(LANES, np.float32)
    np.testing.assert_array_equal(jax.jit(jax.vmap(jvm.icdf))(q, loc, k), jvm.icdf(q, loc, k))
    q[1] = loc[2] = k[3] = np.nan
    together = np.stack(jax.grad(lambda *at: jnp.sum(jvm.icdf(*at)), (0, 1, 2))(q, loc, k), -1)
    alone = derivatives("icdf", np.stack([q, loc, k], -1))
    np.testing.assert_allclose(together, alone, rtol=16 * EPS["float32"])
    assert np.isnan(together[[1, 2, 3], [0, 1, 2]]).all()
    assert not np.isnan(together[4:]).any()


@pytest.mark.more
def test_deep_tails_on_a_mesh():
    """Quantiles in the body of `jax.shard_map` are the same as outside if only some devices have deep tails."""
    q = np.full(64, 0.3, np.float32)
    q[5] = 1e-20
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
    quantiles = jax.shard_map(
        lambda q: jvm.icdf(q, 0.0, 4.0), mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d")
    )
    np.testing.assert_array_equal(jax.jit(quantiles)(q), jvm.icdf(q, 0.0, 4.0))


def test_quantile_ends(dtype):
    q = np.array([0.0, 0.5, 1.0, -0.1, 1.1, np.nan])
    for k in (0.0, 2.0, 1e5):
        np.testing.assert_allclose(compute("icdf", q, k, dtype), [-np.pi, 0, np.pi, *[np.nan] * 3], atol=1e-6)
        if dtype == "float32":
            np.testing.assert_allclose(compute("isf", q, k, dtype), [np.pi, 0, -np.pi, *[np.nan] * 3], atol=1e-6)


FAR = [(0.7, 1e7), (100.0, 100.0), (3.1415925, 1e6), (-1e4, 1e4), (1e4, 1e6)]


def test_far_from_zero(dtype):
    """No digit of x - loc is lost at angles near `loc`, even across pi, or if `loc` is many turns from 0."""
    loc, k = np.repeat(np.array(FAR, dtype), 100, axis=0).T
    x = loc.astype(float) + np.random.default_rng(0).normal(size=k.size) / np.sqrt(k.astype(float))
    x = (np.remainder(x + np.pi, 2 * np.pi) - np.pi).astype(dtype)
    exact, wide = reference.deviation(x, loc), k.astype(float)
    # The reduction by full turns has this error.
    slack = {"float32": 1e-11, "float64": 1e-18}[dtype] * np.abs(loc.astype(float))

    expected = reference.log_pdf(exact, wide)
    allowed = LOG_PROB[dtype] * np.maximum(1, np.abs(expected)) + wide * np.abs(np.sin(exact)) * slack
    assert (np.abs(call("log_prob", x, loc, k) - expected) <= allowed).all()
    tail = reference.sf(np.abs(exact), wide)
    expected = np.where(exact < 0, tail, 1 - tail)
    actual = call("cdf", x, loc, k)
    actual = actual - np.rint(actual - expected)  # remove full turns, which cost digits
    turns = np.abs(x.astype(float) - loc.astype(float)) / 6
    allowed = (3 + turns) * EPS[dtype] + reference.pdf(exact, wide) * slack
    assert (np.abs(actual - expected) <= allowed).all()


def test_full_turns_away():
    """Full turns add what the stated error of the remaining angle does to the logarithm."""
    rng = np.random.default_rng(1)
    k, turns = (each.ravel() for each in np.meshgrid(np.float32([1e2, 1e4, 1e6, 1e9, 1e12]), [1, 100, 4000]))
    k, turns = np.repeat(k, 33), np.repeat(turns, 33)
    loc = rng.uniform(-3, 3, k.size).astype(np.float32)
    x = (loc + 2 * rng.normal(size=k.size) / np.sqrt(k) + 2 * np.pi * turns).astype(np.float32)
    away = reference.deviation(x, loc)
    expected = reference.log_pdf(away, k.astype(float))
    moved = 6e-8 * np.abs(away) + 1e-13 * turns
    effect = k * moved * (np.abs(np.sin(away)) + moved)
    error = np.abs(call("log_prob", x, loc, k) - expected)
    assert np.max(error / (LOG_PROB["float32"] * np.maximum(1, np.abs(expected)) + effect)) < 1


def test_far_concentrations():
    """Results are accurate at concentrations so large that their squares overflow."""
    k, x = (each.astype(np.float32).ravel() for each in np.meshgrid([1.1e18, 1e30, 3e38], [-2.0, -3.1]))
    exact = -2 * k.astype(float) * np.sin(x.astype(float) / 2) ** 2
    log_cdf = call("log_cdf", x, np.float32(0), k)
    np.testing.assert_allclose(log_cdf, np.where(exact > -3.4e38, exact, -np.inf), rtol=1e-6)
    at_pi = np.float32(np.pi)
    assert call("log_cdf", -at_pi, np.float32(0), np.float32(1)) == -np.inf
    assert call("log_sf", at_pi, np.float32(0), np.float32(1)) == -np.inf
    with jax.enable_x64(True):
        k = np.array([1e50, 1e60, 1e200, 1e300])
        np.testing.assert_allclose(call("cdf", -1.1 / np.sqrt(k), 0.0, k), stats.norm.cdf(-1.1), rtol=1e-12)
    p, q = np.float32(1e30), np.float32(np.array([1.6, 3.9, 4.1, 8.0]) * 1e30)
    ratio, zero = q.astype(float) / float(p), np.float32(0)
    np.testing.assert_allclose(call("kl_divergence", zero, p, zero, q), 0.5 * (ratio - 1 - np.log(ratio)), rtol=5e-6)
    last = call("kl_divergence", zero, np.float32(4), zero, np.float32(3e38))
    assert last == pytest.approx(4.0943e37, rel=1e-4)


def test_whole_turns_count(dtype):
    """Beyond a turn the cdf continues to grow without jumps."""
    kind = np.dtype(dtype).type
    x = np.linspace(-9, 9, LANES).astype(dtype)
    for loc in (kind(0), kind(1)):
        c, s, turn = (
            call(name, at, loc, kind(1.5)) for name, at in (("cdf", x), ("sf", x), ("cdf", x + kind(2 * np.pi)))
        )
        assert (np.diff(c) > 0).all()
        assert np.diff(c).max() < 0.02
        np.testing.assert_allclose(c + s, 1, atol=4 * EPS[dtype])
        np.testing.assert_allclose(turn, c + 1, atol=16 * EPS[dtype])
    if dtype == "float64":
        np.testing.assert_allclose(c, stats.vonmises.cdf(x, 1.5, loc=1.0), rtol=1e-9, atol=1e-12)


def test_point_mass():
    """At infinite concentration all mass is at loc, which belongs to the lower side."""
    dtype = "float32"
    x = np.array([-0.1, 0.0, 0.1], dtype)
    expected = {
        "log_prob": [-np.inf, np.inf, -np.inf],
        "prob": [0, np.inf, 0],
        "cdf": [0, 1, 1],
        "sf": [1, 0, 0],
        "log_cdf": [-np.inf, 0, 0],
        "log_sf": [0, -np.inf, -np.inf],
    }
    for name, values in expected.items():
        actual = compute(name, x, np.inf, dtype)
        np.testing.assert_array_equal(actual, values, err_msg=name)
    np.testing.assert_array_equal(compute("icdf", np.array([0.1, 0.5, 0.9]), np.inf, dtype), 0)
    infinite = jnp.array(jnp.inf, dtype)
    assert jvm.entropy(infinite) == -np.inf
    assert jvm.variance(infinite) == 0
    assert jvm.stddev(infinite) == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_invalid_values_give_nan(name):
    """Each invalid value gives NaN in its own lane, and no other lane is NaN.

    This also holds where the other arguments alone would determine the result: at infinite concentration, and for
    probabilities 0 and 1.
    """
    places = {1: (2,), 2: (1, 2), 3: (0, 1, 2), 4: (1, 2, 0, 3)}[FUNCTIONS[name]]
    concentrations = {1: (0,), 2: (1,), 3: (2,), 4: (1, 3)}[FUNCTIONS[name]]
    rows, invalid = [], []
    for values in ((0.3, 0.4, 2.0, 1.0), (0.3, 0.4, np.inf, 1.0), (0.0, 0.4, 2.0, 1.0), (1.0, 0.4, 2.0, 1.0)):
        good = [values[place] for place in places]
        for i in range(len(good)):
            for value in (np.nan, -1.0 if i in concentrations else np.inf):
                rows += [good, [*good[:i], value, *good[i + 1 :]]]
                invalid += [False, True]
    is_nan = np.isnan(call(name, *np.array(rows, np.float32).T))
    assert is_nan.tolist() == invalid, [row for row, x, y in zip(rows, is_nan, invalid, strict=True) if x != y]


def test_invalid_values_have_no_derivative():
    """Reverse mode also gives NaN, although the derivative of a selected NaN would be 0."""
    slope = jax.jit(jax.grad(lambda *at: jnp.sum(jvm.log_prob(*at)), (0, 1, 2)))
    good = [np.full(4, value, np.float32) for value in (0.3, 0.4, 2.0)]
    good[0][1] = good[1][2] = good[2][3] = np.nan
    for place, slopes in enumerate(map(np.asarray, slope(*good))):
        assert np.isnan(slopes[[0, 1 + place]]).tolist() == [False, True], place


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments(name):
    """Results have the broadcast shape and the common dtype."""
    function, count = getattr(jvm, name), FUNCTIONS[name]
    arguments = [np.full(shape, 0.5, jnp.bfloat16) for shape in ((4, 1), (3,), (2, 1, 1), ())[:count]]
    value = jax.eval_shape(lambda: function(*arguments))
    assert value.shape == np.broadcast_shapes(*(each.shape for each in arguments))
    assert value.dtype == jnp.bfloat16
    if count > 1:
        with pytest.raises(ValueError, match=rf"{name}: .*do not broadcast"):
            function(*[np.zeros(2), np.zeros(3), np.zeros(3), np.zeros(3)][:count])


def test_transformations():
    """Only one function is tested, since all share the code for broadcasting, jit, vmap and rounding to bfloat16."""
    rng = np.random.default_rng(0)
    arguments = [rng.uniform(0.1, 0.9, shape).astype(np.float32) for shape in ((4, 1), (3,), (2, 1, 1))]
    value = jvm.log_prob(*arguments)
    np.testing.assert_allclose(jax.jit(jvm.log_prob)(*arguments), value, rtol=1e-6)
    mapped = jax.vmap(jvm.log_prob)(*jnp.broadcast_arrays(*arguments))
    np.testing.assert_allclose(mapped, value, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(value.ravel(), call("log_prob", *arguments), rtol=1e-6, atol=1e-7)
    half = [jnp.asarray(a, jnp.bfloat16) for a in arguments]
    single = jvm.log_prob(*(jnp.asarray(a, jnp.float32) for a in half))
    np.testing.assert_array_equal(jvm.log_prob(*half), single.astype(jnp.bfloat16))


# ------------------------------------------------------------------------------------------------ moments


GRID = np.r_[0.0, np.geomspace(1e-4, 1e12, 60)]


def test_moments(dtype):
    k = GRID.astype(dtype)
    exact = k.astype(float)
    few = 8 * EPS[dtype] + (3e-14 if dtype == "float64" else 0)
    c = reference.ratio_complement(exact)
    np.testing.assert_allclose(call("variance", k), c, rtol=few)
    with np.errstate(divide="ignore"):
        spread = np.sqrt(-2 * np.where(c < 0.5, np.log1p(-c), np.log(reference.ratio(exact))))
    np.testing.assert_allclose(call("stddev", k), spread, rtol=few)
    entropy = np.log(reference.norm(exact)) + exact * c
    np.testing.assert_allclose(call("entropy", k), entropy, rtol=few, atol=few)
    for name in ("mean", "mode"):
        direction = call(name, np.array([0.5, 4.0, -4.0], dtype), np.array(2, dtype))
        np.testing.assert_allclose(direction, [0.5, 4 - 2 * np.pi, 2 * np.pi - 4], rtol=4 * EPS[dtype])


def exact_divergence(m, p, n, q):
    with mp.workdps(60):
        p, q = mp.mpf(p), mp.mpf(q)
        a = mp.besseli(1, p) / mp.besseli(0, p)
        norms = reference.mp_log_i0(q) - reference.mp_log_i0(p)
        return float(norms + p * a - q * a * mp.cos(mp.mpf(m) - mp.mpf(n)))


def test_divergence(dtype):
    """The divergence has full relative accuracy even if the two distributions hardly differ."""
    kind = np.dtype(dtype).type
    cases = np.array(
        [
            (shift, p, 0.0, q)
            for p in (0.0, 1e-3, 0.7, 6.0, 300.0, 1e6)
            for q in (0.0, 0.5, p, p * (1 + 1e-4), p * 1.7 + 1e-4, 1e5)
            for shift in (0.0, 1e-4, 1.0)
        ],
        kind,
    )
    divergence = call("kl_divergence", *cases.T)
    exact = np.array([exact_divergence(*map(float, case)) for case in cases])
    np.testing.assert_allclose(divergence, exact, rtol=40 * EPS[dtype], atol=1e-40)
    same = (cases[:, 0] == 0) & (cases[:, 1] == cases[:, 3])
    assert same.any()
    assert (divergence[same] == 0).all()


# -------------------------------------------------------------------------------------------- derivatives


def mp_cdf(x, k):
    """Return P(X < x) in mpmath, analytic in both arguments, also at k < 0."""
    width = 1 / mp.sqrt(abs(k) + 1)
    points = {s * j * width for j in (0, 0.3, 1, 2, 4, 8, 16) for s in (-1, 1)}
    points = [-mp.pi, *sorted(p for p in points if -mp.pi < p < x), x]
    integral = mp.quad(lambda u: mp.exp(-2 * k * mp.sin(u / 2) ** 2), points, method="gauss-legendre")
    return integral / (2 * mp.pi * mp.exp(-k) * mp.besseli(0, k))


def mp_log_prob(x, k):
    return -2 * k * mp.sin(x / 2) ** 2 - mp.log(2 * mp.pi * mp.exp(-k) * mp.besseli(0, k))


def differences(function, x, k):
    """Return first and second derivatives in mpmath: (f_x, f_k), (f_xx, f_xk, f_kk)."""
    with mp.workdps(40):
        x, k = mp.mpf(x), mp.mpf(k)
        h, g = mp.mpf("1e-8") / mp.sqrt(1 + k), mp.mpf("1e-8") * (1 + k)
        f = {(i, j): function(x + i * h, k + j * g) for i in (-1, 0, 1) for j in (-1, 0, 1)}
        first = (f[1, 0] - f[-1, 0]) / (2 * h), (f[0, 1] - f[0, -1]) / (2 * g)
        second = (
            (f[1, 0] - 2 * f[0, 0] + f[-1, 0]) / h**2,
            (f[1, 1] - f[1, -1] - f[-1, 1] + f[-1, -1]) / (4 * h * g),
            (f[0, 1] - 2 * f[0, 0] + f[0, -1]) / g**2,
        )
        return [float(v) for v in first], [float(v) for v in second]


POINTS = 64


@functools.cache
def derivatives_program(name, twice):
    """Return a program for gradients and, with `twice`, Hessians with respect to all arguments, at many points."""
    function, count = getattr(jvm, name), FUNCTIONS[name]

    def gradient(at):
        slope = jax.grad(lambda at: function(*(at[i] for i in range(count))))(at)
        return slope, slope

    def both(at):
        hessian, slope = jax.jacfwd(gradient, has_aux=True)(at)
        return slope, hessian

    return jax.jit(jax.vmap(both if twice else gradient))


def derivatives(name, at, twice=False):
    """Return gradients at the rows of `at` and, with `twice`, Hessians, by one program of POINTS rows for all tests."""
    program, parts = derivatives_program(name, twice), []
    for first in range(0, len(at), POINTS):
        rows = at[first : first + POINTS]
        values = program(np.resize(rows, (POINTS, rows.shape[1])))
        parts.append([np.asarray(value, float)[: len(rows)] for value in values])
    slopes, hessians = (np.concatenate(column) for column in zip(*parts, strict=True))
    return (slopes, hessians) if twice else slopes


@functools.cache
def exact_derivatives(name):
    """Return rows of x and k, rounded to float32, and `differences`: at the mode, next to it, and far out or at pi."""
    rows = []
    for k in (0.0, 1e-3, 0.5, 6.0, 1e3):
        for z in (0.0, 0.7, 9.0):
            x, k = float(np.float32(min(z / np.sqrt(1 + k), 3.1415925))), float(np.float32(k))
            rows.append((x, k, *differences({"log_prob": mp_log_prob, "cdf": mp_cdf}[name], x, k)))
    return rows


@pytest.mark.parametrize(
    ("name", "of"), [("log_prob", "float32"), *more(("log_prob", "float64"), ("cdf", "float32"), ("cdf", "float64"))]
)
def test_derivatives(name, of):
    """Derivatives agree with mpmath in units of the distribution's scales, and d / d loc is -d / d x."""
    exact = exact_derivatives(name)
    at = np.array([(x, 0, k) for x, k, *_ in exact], of)
    with jax.enable_x64(of == "float64"):
        derivatives_at_points = derivatives(name, at, twice=True)
    for first, second, (x, k, (fx, fk), (fxx, fxk, fkk)) in zip(*derivatives_at_points, exact, strict=True):
        step, bend = 1 / np.sqrt(1 + k), 1 + k
        few = 32 * EPS[of] * max(1.0, np.abs(reference.log_pdf(x, k)) if name == "log_prob" else 1.0)
        np.testing.assert_allclose(first * [step, step, bend], [fx * step, -fx * step, fk * bend], atol=few)
        units = np.outer([step, step, bend], [step, step, bend])
        matrix = np.array([[fxx, -fxx, fxk], [-fxx, fxx, -fxk], [fxk, -fxk, fkk]])
        np.testing.assert_allclose(second * units, matrix * units, atol=8 * few)


@pytest.mark.parametrize(
    ("name", "twice"),
    [
        ("sf", False),
        *slow(*((name, False) for name in ("log_cdf", "prob", "icdf", "log_sf", "isf"))),
        *slow(("log_cdf", True), ("icdf", True)),
    ],
)
def test_other_derivatives(name, twice):
    """Derivatives of the other functions agree with central differences in float64, of values and of gradients."""
    with jax.enable_x64(True):
        firsts = (0.02, 0.4, 0.5, 0.9) if name in ("icdf", "isf") else (-2.0, -0.3, 0.0, 1.2)
        at = np.array([(first, 0.1, k) for first in firsts for k in (0.3, 4.0, 60.0)])
        # Step forward and back from each point, in each argument.
        sizes = 1e-5 * np.maximum(1, np.abs(at))
        steps = [sign * np.where(np.arange(3) == i, sizes, 0) for i in range(3) for sign in (1, -1)]
        around = np.concatenate([at + step for step in steps])
        if twice:
            _, actual = derivatives(name, at, twice=True)
            values = derivatives(name, around).reshape(3, 2, len(at), 3)
        else:
            actual = derivatives(name, at)[..., None]
            values = call(name, *around.T).reshape(3, 2, len(at), 1)
        for i in range(3):
            difference = (values[i, 0] - values[i, 1]) / (2 * sizes[:, i, None])
            rtol, atol = (2e-6, 1e-7) if twice else (1e-6, 1e-8)
            np.testing.assert_allclose(actual[:, i], difference, rtol=rtol, atol=atol)


@pytest.mark.more
@pytest.mark.parametrize(("name", "sign"), [("log_cdf", -1), ("log_sf", 1)])
def test_slope_in_kappa_of_steep_tails(name, sign):
    """The derivative of a steep log tail with respect to k agrees with that of the log density, even next to pi."""
    angles = [np.pi, np.nextafter(np.float32(np.pi), np.float32(0)), 3.14, 3.1, 2.0, 1.0, 1e-4]
    at = np.array([(sign * x, 0, k) for x in angles for k in (1e18, 1e19, 1e24, 1e30, 1e36)], np.float32)
    expected = -2 * np.sin(at[:, 0].astype(float) / 2) ** 2
    np.testing.assert_allclose(derivatives(name, at)[:, 2], expected, rtol=2e-5)


def test_ends_of_the_deviation():
    """The slope of the standard deviation sqrt(-2 log A) is -inf at 0 and 0 at infinity, and never NaN."""
    slope = derivatives("stddev", np.float32([[0.0], [1e-30], [2.0], [3e38], [np.inf]]))[:, 0]
    assert slope[0] == -np.inf
    assert np.isfinite(slope[1:4]).all()
    assert slope[4] == 0
    below, above = call("stddev", np.float32([2 - 1e-2, 2 + 1e-2]))
    assert slope[2] == pytest.approx((above - below) / 2e-2, rel=2e-3)


@pytest.mark.more
def test_second_derivatives_of_deep_quantiles():
    """Second derivatives of deep quantiles do not overflow, although 1 / p^2 does so long before 1 / p."""
    t, k = float(np.float32(1e-30)), float(np.float32(45.1))
    _, second = derivatives("icdf", np.array([(t, 0, k)], np.float32), twice=True)
    assert not np.isnan(second).any()
    # d x / d t = 1 / p; compare its difference quotient with respect to the concentration.
    below, above = (1 / reference.pdf(reference.quantile(t, each), each) for each in (k * (1 - 1e-5), k * (1 + 1e-5)))
    assert second[0, 0, 2] == pytest.approx(float(above - below) / (2e-5 * k), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "twice"),
    [
        *(("log_prob", True), ("stddev", False)),
        *more(("cdf", True), ("icdf", False), ("log_cdf", False), ("entropy", True), ("variance", True)),
        *more(("kl_divergence", True)),
    ],
)
def test_no_derivative_is_nan(name, twice):
    """First and second derivatives are not NaN where formulas divide by zero but the distribution is regular."""
    firsts = (0.0, 1e-38, 0.5, 1.0) if name == "icdf" else (0.0, np.pi, -np.pi, 1e-30, 3.0, -2.0)
    concentrations = (1e-6, 1.0, 1e10) if name == "stddev" else (0.0, 1e-38, 1e-20, 1.0, 1e10, 1e17, 1e20, 1e30)
    points = [(first, k) for first in firsts for k in concentrations]
    at = {
        1: [(k,) for _, k in points],
        3: [(first, 0.0, k) for first, k in points],
        4: [(first, k, 0.0, 0.7) for first, k in points],
    }[FUNCTIONS[name]]
    at = np.array(at, np.float32)
    first, second = derivatives(name, at, twice=True) if twice else (derivatives(name, at), None)
    invalid = np.isnan(first).any(-1)
    assert not invalid.any(), at[invalid]
    if twice:
        invalid = np.isnan(second).any((-1, -2))
        assert not invalid.any(), at[invalid]


def test_the_largest_concentrations():
    """The logarithm of the normaliser is right up to the largest float, where 1 / kappa is not a normal number."""
    with jax.enable_x64(True):
        k = np.array([1e200, 1e250, 4.4e307, 4.5e307, 1e308, np.finfo(float).max])
        half = 0.5 * (np.log(k) - np.log(2 * np.pi))
        np.testing.assert_allclose(jvm.log_prob(0.0, 0.0, k), half, rtol=1e-14)
        np.testing.assert_allclose(jvm.entropy(k), 0.5 - half, rtol=1e-14)
        np.testing.assert_allclose(jvm.kl_divergence(0.0, 1e308, 0.0, 1e300), 0.5 * (np.log(1e8) - 1), rtol=1e-12)


@pytest.mark.more
@pytest.mark.parametrize("place", range(3))
def test_nan_with_a_payload(place, dtype, key):
    """R's NA is such a NaN; arithmetic must not read its payload as a number."""
    bits = {"float32": [0x7FC00001, 0x7FC007A2], "float64": [0x7FF80000000007A2]}[dtype]
    arguments = [np.full(len(bits), 0.5, dtype) for _ in range(3)]
    arguments[place] = np.array(bits, f"uint{8 * np.dtype(dtype).itemsize}").view(dtype)
    for name in ("log_prob", "prob", "cdf", "sf", "log_cdf", "icdf", "isf"):
        assert np.isnan(call(name, *arguments)).all(), name
    if place > 0 and dtype == "float32":
        assert np.isnan(jvm.sample_von_mises(key, *arguments[1:])).all()
