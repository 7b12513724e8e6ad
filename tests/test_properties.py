"""Properties that hold for all numbers, tested with Hypothesis on difficult numbers.

The quick profile is the default; ``pytest tests/test_properties.py -m "" --hypothesis-profile=thorough`` searches
longer, with other numbers each time.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import random

import jax_von_mises as jvm
from jax_von_mises.numerics import circle
from jax_von_mises.von_mises import transform
from jax_von_mises.von_mises.truncated import good_arc
from tests import extremes, reference
from tests.marks import more

# The tests of the individual functions also cover float64.
DTYPES = ("float32", *more("float64"))
EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
# The accuracy that the docstrings guarantee.
LOG_PROB = {"float32": 4e-7, "float64": 1e-14}
LARGER_TAIL = {"float32": 2 * EPS["float32"], "float64": 4 * EPS["float64"]}
RELATIVE = {"float32": 4e-6, "float64": 1e-12}
QUANTILE = {"float32": 2e-6, "float64": 1e-12}
DEEP = {"float32": 2.0**-33, "float64": 2.0**-65}
ULPS = 4
# Error of the reduction by many whole turns, relative to the unreduced angle.
REDUCTION = {"float32": 1e-11, "float64": 1e-18}


def wide(*arrays):
    """Return the arguments as float64."""
    return tuple(np.asarray(a, np.float64) for a in arrays)


def invalid(loc, k):
    """Return whether the parameters are invalid."""
    return ~np.isfinite(loc) | ~(k >= 0)


def reducible(x, dtype):
    """Return whether an angle is small enough for the formulas that subtract whole turns."""
    with np.errstate(invalid="ignore"):
        return np.abs(x) <= circle.LARGEST_LOC[dtype]


def slack_of(x, loc, dtype):
    """Return the allowed error of the reduction by whole turns."""
    with np.errstate(invalid="ignore"):
        away = np.abs(x - loc)
    few_turns = away < 2**12 * 2 * np.pi
    return np.where(
        away < 3, 0, np.where(few_turns, REDUCTION[dtype] * away, 2 * np.spacing(away.astype(dtype)).astype(float))
    )


# ------------------------------------------------------------------------------------------- densities, probabilities

AT_ANGLES = ("log_prob", "prob", "cdf", "sf", "log_cdf", "log_sf")
SLOPES = ("log_prob", "cdf")


def all_at_angles(x, loc, k):
    return {name: getattr(jvm, name)(x, loc, k) for name in AT_ANGLES}


@jax.jit
def values_and_slopes(x, loc, k):
    """Evaluate all functions at the angles, and the derivatives of `SLOPES` with respect to all arguments."""
    return all_at_angles(x, loc, k), {
        name: jax.grad(lambda *at, name=name: jnp.sum(getattr(jvm, name)(*at)), (0, 1, 2))(x, loc, k) for name in SLOPES
    }


def log_density(d, k):
    return -(2 * np.sin(d / 2) ** 2) * k - np.log(reference.norm(k))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_densities_and_probabilities(dtype, data):
    """Densities and probabilities are accurate for all angles and concentrations, and NaN only for invalid ones."""
    cases = data.draw(extremes.lanes(extremes.near_the_mode(dtype, bad=True), dtype))
    with jax.enable_x64(dtype == "float64"):
        values, slopes = jax.tree.map(np.asarray, values_and_slopes(*cases))
    assert all(value.dtype == dtype for value in jax.tree.leaves((values, slopes)))
    values = dict(zip(values, wide(*values.values()), strict=True))
    with np.errstate(all="ignore"):
        difference = cases[0] - cases[1]  # in the dtype
        x, loc, k = wide(*cases)
        undefined = invalid(loc, k) | ~np.isfinite(x) | ~reducible(difference, dtype)
        turns = np.rint(difference.astype(float) / (2 * np.pi))
    for name, value in values.items():
        missing = undefined
        if name.startswith("log_") and name != "log_prob":
            # On other turns the cdf or sf may be negative, and its logarithm NaN; half a turn away, rounding decides.
            with np.errstate(invalid="ignore"):
                sure = ~(np.abs(np.abs(difference) - np.pi) < 1e-5)
                missing = undefined | (values[name.removeprefix("log_")] < 0)
            assert (np.isnan(value) == missing)[sure].all(), name
        else:
            assert (np.isnan(value) == missing).all(), name

    x, loc, k, turns, difference = (a[~undefined] for a in (x, loc, k, turns, difference.astype(float)))
    values = {name: value[~undefined] for name, value in values.items()}
    d = reference.deviation(x, loc) if len(x) else x
    slack = slack_of(x, loc, dtype)
    point = np.isinf(k)
    inside = np.where(point | (k > 1e200), 1.0, k)
    steep = inside * np.abs(np.sin(d)) * slack
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        exact = log_density(d, inside)
        usual = ~point & (k <= 1e200)
        error = np.abs(values["log_prob"] - exact) - LOG_PROB[dtype] * np.maximum(1, np.abs(exact)) - steep
        assert (error[usual & (exact > -info.max / 2)] <= 0).all(), "log_prob"
        normal = usual & (exact > np.log(info.tiny) + 1e-3) & (steep < 1)
        error = np.abs(values["prob"] / np.exp(exact) - 1) - RELATIVE[dtype] - 2 * steep
        assert (error[normal] <= 0).all(), "prob"
        assert (values["prob"][usual & (exact < np.log(info.tiny)) & (steep < 1)] <= 1.01 * info.tiny).all()
        assert ((values["prob"] >= 0) & (values["log_prob"] <= np.inf)).all()
        assert np.isin(values["prob"][point & (slack == 0)], [0, np.inf]).all()

        tail = reference.sf(np.minimum(np.abs(d), np.pi), inside)
        below = turns + np.where(d < 0, tail, 1 - tail)
        moved = reference.pdf(d, inside) * slack
        # Half a turn away, rounding decides which turn it is, which changes the value by 1.
        allowed = LARGER_TAIL[dtype] * (1 + np.abs(turns)) + moved
        for name, value in (("cdf", below), ("sf", 1 - below)):
            off = np.abs(values[name] - value)
            assert (np.minimum(off, np.abs(off - 1))[usual] <= allowed[usual]).all(), name
            at_half = np.abs(np.abs(d) - np.pi) < 1e-5
            assert (off[usual & ~at_half] <= allowed[usual & ~at_half]).all(), name
        both = values["cdf"] + values["sf"]
        assert (np.abs(both - 1) <= 2 * EPS[dtype] * (1 + np.abs(turns))).all()
        first = usual & (np.abs(difference) < 3.1415)
        log_tail = reference.log_sf(np.minimum(np.abs(d), np.pi), inside)
        hazard = reference.pdf(d, inside) / tail * slack
        for name, sign in (("cdf", 1), ("sf", -1)):
            small = first & (sign * d < 0)
            normal = small & (tail > 2 * info.tiny)
            assert (np.abs(values[name] / tail - 1)[normal] <= (RELATIVE[dtype] + 2 * hazard)[normal]).all(), name
            assert (values[name][small & (tail < info.tiny / 2)] <= 4 * info.tiny).all(), name
            known = small & (log_tail > -info.max / 2)
            error = np.abs(values[f"log_{name}"] - log_tail) / np.maximum(1, np.abs(log_tail)) - RELATIVE[dtype]
            assert (error[known & (slack == 0)] <= 0).all(), f"log_{name}"
    assert_slopes(slopes, undefined, cases, d, k, inside, point)


def assert_slopes(slopes, undefined, cases, d, k, inside, point):
    """Assert that derivatives are NaN only for invalid parameters, and that those of log p have the exact values."""
    dtype = cases[0].dtype.name
    for name in SLOPES:
        for place, slope in enumerate(slopes[name]):
            assert (np.isnan(slope) == undefined)[~np.isinf(cases[2])].all(), (name, place)
    by_x, _, by_k = (np.asarray(s, float)[~undefined] for s in slopes["log_prob"])
    usual = ~point & (k < 1e30) & (slack_of(*wide(*cases[:2]), dtype)[~undefined] == 0)
    with np.errstate(all="ignore"):
        exact = -inside * np.sin(d)
        assert (np.abs(by_x - exact) <= 8 * EPS[dtype] * np.abs(exact) + np.finfo(dtype).tiny)[usual].all()
        exact = reference.ratio_complement(inside) - 2 * np.sin(d / 2) ** 2
        scale = reference.ratio_complement(inside) + 2 * np.sin(d / 2) ** 2
        # Up to k = 30 the reference is itself a difference, with an absolute error.
        assert (np.abs(by_k - exact) <= 16 * EPS[dtype] * scale + 4 * EPS["float64"])[usual].all()


# ------------------------------------------------------------------------------------------------------- quantiles


@jax.jit
def quantiles(q, loc, k):
    return jvm.icdf(q, loc, k), jvm.isf(q, loc, k), jvm.icdf(q, jnp.zeros_like(loc), k)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_quantiles(dtype, data):
    case = st.tuples(extremes.probabilities(dtype, bad=True), extremes.parameters(dtype, bad=True)).map(
        lambda c: (c[0], *c[1])
    )
    q, loc, k = data.draw(extremes.lanes(case, dtype))
    with jax.enable_x64(dtype == "float64"):
        results = [np.asarray(x) for x in quantiles(q, loc, k)]
    assert all(x.dtype == dtype for x in results)
    lower, upper, centred = wide(*results)
    q, loc, k = wide(q, loc, k)
    undefined = invalid(loc, k) | ~((q >= 0) & (q <= 1))
    assert (np.isnan(lower) == undefined).all()
    assert (np.isnan(upper) == undefined).all()
    q, loc, k, lower, upper, centred = (a[~undefined] for a in (q, loc, k, lower, upper, centred))
    step = EPS[dtype] * (2 + np.abs(loc))
    for x in (lower, upper):
        assert (np.abs(x - loc) <= np.pi + 2 * step).all()
    # The sum with `loc` is rounded once.
    assert (np.abs(lower - (loc + centred)) <= step).all()
    assert (np.abs(upper - (loc - centred)) <= step).all()
    assert ((centred <= 0) == (q <= 0.5))[k < 1e30].all()
    t = np.minimum(q, 1 - q)
    tiny = float(np.finfo(dtype).tiny)
    known = (t >= max(2 * tiny, 1e-40)) & (k < 1e200)
    assert_quantile(np.abs(centred[known]), t[known], k[known], dtype)
    assert (np.abs(centred)[t == 0] >= 3.14159)[k[t == 0] < np.inf].all()


def assert_quantile(x, t, k, dtype):
    """Check the guaranteed accuracy of `icdf` and of the sampler against the reference."""
    if not len(x):
        return
    exact = reference.quantile(t, k)
    with np.errstate(all="ignore"):
        rate = reference.pdf(exact, k) / t
    deep = t < DEEP[dtype]
    ulp = np.spacing(np.where(deep, np.pi, np.maximum(exact, np.finfo(dtype).tiny)).astype(dtype)).astype(float)
    error = np.abs(x - exact)
    allowed = np.maximum(np.where(deep, RELATIVE[dtype], QUANTILE[dtype]) / rate, ULPS * ulp)
    allowed = np.where(np.isinf(k), 0, allowed)
    worst = np.argmax(error - allowed)
    assert error[worst] <= allowed[worst], f"t={t[worst]!r} k={k[worst]!r}: off by {error[worst] / ulp[worst]:.1f} ulp"


WORDS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 2, 3, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1, 2**30, 2**30 - 1, 2**24, 2**8]),
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 31)).map(lambda pair: pair[0] >> pair[1]),
)


@functools.partial(jax.jit, static_argnames="method")
def angles_of_words(words, loc, k, method):
    return transform.angles(words, loc, k, method)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_words_to_angles(dtype, data):
    """The sampler is accurate even for words that occur once in four billion draws."""
    case = st.tuples(WORDS, WORDS, extremes.parameters(dtype, bad=True))
    cases = data.draw(st.lists(case, min_size=1, max_size=extremes.LANES))
    first, second = (np.resize(np.array([c[i] for c in cases], np.uint32), extremes.LANES) for i in (0, 1))
    loc, k = (np.resize(np.array([c[2][i] for c in cases], dtype), extremes.LANES) for i in (0, 1))
    words = (first,) if dtype == "float32" else (first, second)
    with jax.enable_x64(dtype == "float64"):
        x, centred = (np.asarray(angles_of_words(words, at, k, "direct")) for at in (loc, np.zeros_like(loc)))
        one = np.asarray(angles_of_words(words, loc[:1][0], k[:1][0], "table"))
    assert x.dtype == one.dtype == dtype
    loc, k, x, centred, one = wide(loc, k, x, centred, one)
    undefined = invalid(loc, k) | ~reducible(loc, dtype)
    assert (np.isnan(x) == undefined).all()
    assert (np.isnan(one) == undefined[0]).all()
    for angles in (x[~undefined], one[~np.isnan(one)]):
        assert ((angles >= -np.pi) & (angles < np.pi)).all()
    m = [first.astype(object) >> 1, second.astype(object)]
    t = np.array(
        [
            (a + 0.5) * 2.0**-32 if dtype == "float32" else a * 2.0**-32 + (b + 0.5) * 2.0**-64
            for a, b in zip(*m, strict=True)
        ],
        float,
    )
    good = ~(np.isnan(k) | (k < 0)) & (k < 1e200)
    assert_quantile(np.abs(centred[good]), t[good], k[good], dtype)
    # Next to pi, rounding may lead to the other end of the circle.
    assert (np.signbit(centred) == (first & 1 == 1))[good & (centred != 0) & (np.abs(centred) < 3.14159)].all()
    # Adding `loc` is a rotation, up to the rounding of sums next to pi.
    error = np.zeros(1)
    if not undefined.all():
        error = np.abs(reference.deviation(x[~undefined], loc[~undefined]) - centred[~undefined])
    error = np.minimum(error, np.abs(error - 2 * np.pi))
    assert (error <= 6 * EPS[dtype] + slack_of(loc[~undefined], 0, dtype)).all()
    if not undefined[0] and k[0] < 1e200:
        turned = reference.deviation(one, np.full_like(one, loc[0]))
        if loc[0] == 0:
            assert_quantile(np.abs(turned), t, np.full_like(t, k[0]), dtype)


# ------------------------------------------------------------------------------------------------------- streams

# Positions anywhere in a stream, and around overflows of the counter's lower 32 bits with one, two or four words per
# count.
OVERFLOWS = [2**32, 3 * 2**32, 2**33, 2**34, 2**63, 2**64 - extremes.LANES]
PLACES = st.one_of(
    st.tuples(st.sampled_from(OVERFLOWS), st.integers(1 - extremes.LANES // 2, 0)).map(sum),
    st.integers(0, 2**64 - extremes.LANES),
)


@pytest.mark.parametrize(
    ("impl", "dtype"),
    [("threefry2x32", "float32"), *more(("philox4x32", "float64"), ("rbg", "float32"))],
)
@given(data=st.data())
def test_blocks_are_slices(impl, dtype, data):
    """Overlapping blocks agree bit for bit, wherever they start and for every key implementation."""
    count = extremes.LANES
    size = counter_words(impl)
    words = data.draw(
        st.lists(st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 2**32 - 1])), min_size=size, max_size=size)
    )
    key = random.wrap_key_data(np.array(words, np.uint32), impl=impl)
    start, shift = data.draw(PLACES), data.draw(st.integers(0, count - 1))
    halfway = min(start + count // 2, 2**64 - count)
    shift = min(shift, 2**64 - count - start)
    draw = functools.partial(jvm.sample_block, key, 0.3, 2.5, shape=(count,), dtype=dtype, method="direct")
    with jax.enable_x64(dtype == "float64"):
        one, other = np.asarray(draw(start)), np.asarray(draw(start + shift))
        half = np.asarray(draw(halfway))
    assert np.array_equal(one[shift:], other[: count - shift])
    assert np.array_equal(one[halfway - start :], half[: count - (halfway - start)])


def counter_words(impl):
    return random.key_data(random.key(0, impl=impl)).shape[-1]


NAMES = st.lists(st.one_of(st.text(max_size=4), st.integers(0, 2**64 - 1), st.integers(0, 3)), min_size=1, max_size=3)


@given(NAMES, NAMES)
def test_derived_keys(path, other):
    """Paths concatenate, and distinct paths give distinct keys."""

    def derive(key, *path):
        return jvm.derive_key(key, *path)

    def data(key):
        return tuple(np.asarray(random.key_data(key)).tolist())

    key = random.key(7)
    assert data(derive(derive(key, *path), *other)) == data(derive(key, *path, *other))
    assert (data(derive(key, *path)) == data(derive(key, *other))) == (path == other)


# ------------------------------------------------------------------------------------------------------- schemes

SEEDS = st.integers(0, 2**32 - 1)


@functools.partial(jax.jit, static_argnames="shape")
def truncated(key, loc, k, low, high, shape):
    return jvm.sample_truncated(key, loc, k, low, high, shape)


@st.composite
def arc(draw):
    loc, k = draw(extremes.parameters("float32", bad=True))
    low = draw(st.one_of(extremes.angles("float32"), st.just(loc), st.just(-loc), extremes.floats("float32")))
    common = st.sampled_from([np.pi, 2 * np.pi, 6.28, 1.0])
    width = draw(st.one_of(extremes.size("float32", -8.0, 0.79), common, extremes.angles("float32")))
    return loc, k, low, low + width


@pytest.mark.more
@given(SEEDS, st.data())
def test_arcs(seed, data):
    """Angles lie inside the arc and in [-pi, pi), and are NaN only for invalid parameters or arcs."""
    loc, k, low, high = data.draw(extremes.lanes(arc(), "float32", 24))
    x = np.asarray(truncated(random.key(seed), loc, k, low, high, (4, 24)))
    assert x.dtype == np.float32
    with np.errstate(all="ignore"):
        undefined = invalid(loc, k) | ~good_arc(low, high, np)
        ends = [reducible(a, "float32") for a in (loc, low, high, low - loc, high - loc)]
    assert np.isnan(x)[:, undefined].all()
    usual = ~undefined & np.logical_and.reduce(ends)
    x, low, high = wide(x, low, high)
    low, high = low[usual], high[usual]
    assert ((x >= -np.pi) & (x < np.pi))[:, usual].all()
    beyond = exact_from(x[:, usual], low)
    width = np.minimum(high - low, 2 * np.pi)
    slack = 2e-6 + np.spacing(np.abs(low).astype(np.float32)) + np.spacing(np.abs(high).astype(np.float32))
    assert ((beyond <= width + slack) | (beyond >= 2 * np.pi - slack)).all()


def exact_from(x, low):
    """Return x - low in [0, 2 pi)."""
    if not x.size:
        return x
    d = reference.deviation(x, np.broadcast_to(low, x.shape))
    return np.where(d < 0, d + 2 * np.pi, d)


# ------------------------------------------------------------------------------------------------------- moments


@jax.jit
def information(loc, k, other_loc, other_k):
    alone = jvm.entropy(k), jvm.variance(k), jvm.stddev(k), jvm.mean(loc, k), jvm.mode(loc, k)
    return (
        *alone,
        jvm.kl_divergence(loc, k, other_loc, other_k),
        jvm.kl_divergence(loc, k, loc, k),
        jvm.standard_errors(k, 9),
    )


@given(st.data())
def test_moments(data):
    two = st.tuples(*[extremes.parameters("float32", bad=True)] * 2).map(lambda pair: pair[0] + pair[1])
    loc, k, other_loc, other_k = cases = data.draw(extremes.lanes(two, "float32"))
    *results, errors = information(*cases)
    entropy, variance, stddev, mean, mode, kl, same, se_loc, se_k = wide(*results, *errors)
    with np.errstate(all="ignore"):
        difference = loc - other_loc
    loc, k, other_loc, other_k = wide(*cases)
    for value in (entropy, variance, stddev, se_loc, se_k):
        assert (np.isnan(value) == ~(k >= 0)).all()
    assert (np.isnan(mean) == (invalid(loc, k) | ~reducible(loc, "float32"))).all()
    undefined = invalid(loc, k) | invalid(other_loc, other_k)
    assert (np.isnan(kl) == (undefined | ~reducible(difference, "float32")))[~undefined].all()
    assert np.isnan(kl)[undefined].all()
    assert (same == 0)[~np.isnan(same)].all()
    assert (kl >= 0)[~np.isnan(kl)].all()
    good = k >= 0
    assert ((variance >= 0) & (variance <= 1) & (stddev >= 0) & (entropy <= 1.8378774) & (se_loc >= 0) & (se_k > 0))[
        good
    ].all()
    turned = np.isfinite(mean)
    assert (mean == mode)[turned].all()
    assert ((mean >= -np.pi) & (mean < np.pi))[turned].all()
    if turned.any():
        off = np.abs(reference.deviation(mean[turned], loc[turned]))
        assert (off <= 3 * EPS["float32"] + slack_of(loc[turned], 0, "float32")).all()


WEIGHTS = st.one_of(st.just(0.0), extremes.size("float32", -37, 37), st.sampled_from([1.0, 2.0]))


@jax.jit
def fits(x, w):
    return jvm.fit(x, w, axis=-1)


@given(st.data())
def test_fit(data):
    """The fit lies in its range, and its spread is the same for other orders, mirrored angles, and scaled weights."""
    sets, size = 12, 8
    x = np.resize(
        np.array(data.draw(st.lists(extremes.angles("float32"), min_size=1, max_size=sets * size)), np.float32),
        (sets, size),
    )
    w = np.resize(np.array(data.draw(st.lists(WEIGHTS, min_size=1, max_size=sets * size)), np.float32), (sets, size))
    order = data.draw(st.permutations(range(size)))
    loc, k = wide(*fits(x, w))
    known = reducible(x - x[:, :1], "float32").all(-1) & reducible(2 * x, "float32").all(-1)
    good = (w.max(-1) > 0) & known
    assert (np.isnan(k) == (w.max(-1) == 0))[known].all()
    assert (np.isnan(loc) == np.isnan(k)).all()
    assert ((k >= 0) & (loc >= -np.pi) & (loc < np.pi))[good].all()
    spread = reference.ratio_complement(np.where(good, k, 1.0))
    for other in (fits(x[:, order], w[:, order]), fits(-x, w)):
        _, turned = wide(*other)
        again = reference.ratio_complement(np.where(good, turned, 1.0))
        assert (np.abs(again - spread) <= 1e-5 * spread + 4e-7)[good].all()
    scaled = fits(x, np.where((w == 0) | ((w > 1e-30) & (w < 1e30)), w * np.float32(0.25), w))
    full = good & ((w == 0) | ((w > 1e-30) & (w < 1e30))).all(-1)
    assert (wide(scaled.concentration)[0] == k)[full].all()


@jax.jit
def mixtures(logits, loc, k, x):
    mixture = jvm.Mixture(logits=logits, components=jvm.VonMises(loc, k))
    return mixture.log_prob(x), mixture.prob(x), mixture.cdf(x), mixture.responsibilities(x), mixture.mean()


@st.composite
def components(draw):
    rows = [
        (draw(LOGITS), draw(extremes.angles("float32")), draw(extremes.concentrations("float32"))) for _ in range(3)
    ]
    x = draw(st.one_of(extremes.angles("float32"), st.just(rows[0][1])))
    return (*(row[i] for i in range(3) for row in rows), x)


LOGITS = st.one_of(st.floats(-200, 200, width=32), st.sampled_from([0.0, -np.inf, -1e30, 1e30]))


@pytest.mark.more
@given(st.data())
def test_mixtures(data):
    """The density is the weighted sum of the components' densities, and never NaN for valid weights and parameters."""
    columns = data.draw(extremes.lanes(components(), "float32", 32))
    logits, loc, k = (np.stack(columns[i : i + 3], -1) for i in (0, 3, 6))
    x = columns[9]
    log_prob, prob, cdf, responsibilities, mean = wide(*mixtures(logits, loc, k, x))
    with np.errstate(all="ignore"):
        valid = (
            (logits > -np.inf).any(-1) & reducible(x[:, None] - loc, "float32").all(-1) & (np.abs(loc) < 1e7).all(-1)
        )
        logs = np.asarray(jvm.log_prob(x[:, None], loc, k), float)
        weights = logits.astype(float) - logits.max(-1, keepdims=True)
        weights -= np.log(np.exp(weights).sum(-1, keepdims=True))
        joint = np.where(weights == -np.inf, -np.inf, weights + logs)
        top = joint.max(-1)
        exact = np.where(np.isinf(top), top, top + np.log(np.exp(joint - top[:, None]).sum(-1)))
    assert not np.isnan(log_prob[valid]).any()
    # Beyond 2^12 turns, the reduction by whole turns is rounded, and programs may round it differently.
    few_turns = (np.abs(x[:, None] - loc) < 2**12 * 2 * np.pi).all(-1)
    finite = valid & few_turns & (np.abs(exact) < 1e37)
    assert (np.abs(log_prob - exact) <= 1e-6 * np.maximum(1, np.abs(exact)))[finite].all()
    assert (log_prob == exact)[valid & np.isinf(exact)].all()
    with np.errstate(all="ignore"):
        sure = finite & (exact > -80) & (exact < 80)
        assert (np.abs(prob / np.exp(exact) - 1) <= 1e-5)[sure].all()
    assert not np.isnan(cdf[valid & np.isfinite(k).all(-1)]).any()
    total = responsibilities.sum(-1)
    assert (np.abs(total - 1) <= 1e-6)[valid & ~(exact == -np.inf)].all()
    assert ((mean >= -np.pi) & (mean < np.pi))[valid & reducible(loc, "float32").all(-1)].all()
