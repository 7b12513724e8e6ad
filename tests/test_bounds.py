"""Check that results have the error bounds that their docstrings state, against mpmath, where rounding is worst."""

import functools

import jax
import mpmath as mp
import numpy as np
import pytest

import jax_von_mises as jvm
from tests import reference
from tests.marks import more

DTYPES = ("float32", "float64")
# The bounds of log_prob, and of a probability or density
OF_LOG = {"float32": 4e-7, "float64": 1e-14}
RELATIVE = {"float32": 4e-6, "float64": 1e-12}
COUNT = 240  # one shape, so that each function compiles once for a dtype


def exact_away(x, loc):
    """Return x - loc less full turns in mpmath, and the number of turns."""
    difference = mp.mpf(float(x)) - mp.mpf(float(loc))
    turns = mp.nint(difference / (2 * mp.pi))
    return difference - 2 * mp.pi * turns, int(turns)


def log_density(away, k):
    return -2 * mp.mpf(float(k)) * mp.sin(away / 2) ** 2 - mp.log(reference.mp_norm(float(k)))


def about_loc(dtype):
    """Return angles, locations and concentrations up to 1e30 whose differences are no floats, and exact differences.

    The turns between both are 0, 1, 5 and 4000.
    """
    rng = np.random.default_rng(3)
    k = (10.0 ** rng.uniform(-2, 30, COUNT)).astype(dtype)
    away = np.minimum(3.1, rng.uniform(0, 20, COUNT) / np.sqrt(1 + k.astype(float))) * rng.choice([-1, 1], COUNT)
    loc = (away * rng.uniform(-1, 1, COUNT) * 10.0 ** rng.choice([0, 0, -1, -2], COUNT)).astype(dtype)
    turns = np.repeat([0, 0, 0, 1, 5, 4000], COUNT // 6)
    x = ((loc + away.astype(dtype)) + 2 * np.pi * turns).astype(dtype)
    return x, loc, k, [exact_away(a, b) for a, b in zip(x, loc, strict=True)]


def next_to_ends(dtype):
    """Return angles next to loc - pi at small concentrations, and their exact distances from it."""
    rng = np.random.default_rng(4)
    k = np.resize([0, 1e-30, 1e-8, 1e-3, 0.1, 0.5, 1, 5], COUNT).astype(dtype)
    loc = np.where(np.arange(COUNT) % 5 == 0, 0, rng.uniform(-3, 3, COUNT)).astype(dtype)
    above = 10.0 ** rng.uniform({"float32": -7, "float64": -15.6}[dtype], -0.5, COUNT)
    x = (loc - np.pi + above).astype(dtype)
    rest = [mp.pi + mp.mpf(float(a)) - mp.mpf(float(b)) for a, b in zip(x, loc, strict=True)]
    keep = [r > 0 for r in rest]
    return x, loc, k, rest, np.array(keep)


@pytest.mark.parametrize("dtype", DTYPES)
def test_densities_about_any_location(dtype):
    """The rounding of x - loc has no effect, at any concentration and with full turns in between."""
    with mp.workdps(50), jax.enable_x64(dtype == "float64"):
        x, loc, k, exact = about_loc(dtype)
        expected = np.array([float(log_density(away, each)) for (away, _), each in zip(exact, k, strict=True)])
        found = np.asarray(jvm.log_prob(x, loc, k), float)
        assert np.max(np.abs(found - expected) / np.maximum(1, np.abs(expected))) < OF_LOG[dtype]
        seen = np.abs(expected) < 85
        found = np.asarray(jvm.prob(x, loc, k), float)[seen]
        np.testing.assert_allclose(found, np.exp(expected[seen]), rtol=RELATIVE[dtype])


@pytest.mark.parametrize("dtype", ["float32", *more("float64")])
def test_probabilities_about_any_location(dtype):
    with mp.workdps(50), jax.enable_x64(dtype == "float64"):
        x, loc, k, exact = about_loc(dtype)
        away = np.array([float(each) for each, _ in exact])
        tail, log_tail = (f(np.abs(away), k.astype(float)) for f in (reference.sf, reference.log_sf))
        below, no_turn = away < 0, np.array([turns == 0 for _, turns in exact])
        for functions, expected, seen in (
            ((jvm.cdf, jvm.sf), tail, no_turn & (log_tail > -85)),
            ((jvm.log_cdf, jvm.log_sf), log_tail, no_turn & (log_tail > -1e30)),
        ):
            found = np.where(below, *(np.asarray(function(x, loc, k), float) for function in functions))
            np.testing.assert_allclose(found[seen], expected[seen], rtol=RELATIVE[dtype])
        turns = np.array([turns for _, turns in exact])
        ulp = {"float32": 2, "float64": 4}[dtype] * np.finfo(dtype).eps * np.maximum(1, np.abs(turns))
        found = np.asarray(jvm.cdf(x, loc, k), float)
        assert np.all(np.abs(found - turns - np.where(below, tail, 1 - tail)) <= ulp)


@pytest.mark.parametrize("dtype", ["float32", *more("float64")])
def test_probabilities_next_to_the_ends(dtype):
    """Next to loc - pi and loc + pi, a tail is proportional to a small distance that x - loc does not resolve."""
    with mp.workdps(30), jax.enable_x64(dtype == "float64"):
        x, loc, k, rest, keep = next_to_ends(dtype)

        def tail(r, k):
            return mp.quad(lambda u: mp.exp(2 * k * mp.sin(u / 2) ** 2), [0, r]) * mp.exp(-2 * k) / reference.mp_norm(k)

        expected = np.array([float(tail(max(r, 0), mp.mpf(float(c)))) for r, c in zip(rest, k, strict=True)])[keep]
        np.testing.assert_allclose(np.asarray(jvm.cdf(x, loc, k), float)[keep], expected, rtol=RELATIVE[dtype])
        np.testing.assert_allclose(np.asarray(jvm.sf(-x, -loc, k), float)[keep], expected, rtol=RELATIVE[dtype])

        rho = np.resize([0, 0.1, 0.3, 0.45], COUNT).astype(dtype)
        for make, formula in (
            (jvm.WrappedCauchy, lambda r, p: mp.atan((1 - p) / (1 + p) * mp.tan(r / 2)) / mp.pi),
            (jvm.Cardioid, lambda r, p: (r - 2 * p * mp.sin(r)) / (2 * mp.pi)),
        ):
            expected = np.array([float(formula(r, mp.mpf(float(p)))) for r, p in zip(rest, rho, strict=True)])[keep]
            found = np.asarray(make(loc, rho).cdf(x), float)[keep]
            np.testing.assert_allclose(found, expected, rtol={"float32": 3e-6, "float64": 1e-14}[dtype])


@pytest.mark.parametrize("dtype", ["float32", *more("float64")])
def test_natural_parameters(dtype):
    """In float64, the direction is rounded to an angle, with the effect that the docstring states."""
    rng = np.random.default_rng(5)
    with mp.workdps(50), jax.enable_x64(dtype == "float64"):
        length, angle = 10.0 ** rng.uniform(-2, 25, COUNT), rng.uniform(-3, 3, COUNT)
        eta = (length[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)).astype(dtype)
        away = rng.uniform(0, 9, COUNT) * rng.choice([-1, 1], COUNT) / np.sqrt(9 + length)
        x = (angle + away).astype(dtype)
        vectors = [[mp.mpf(float(component)) for component in vector] for vector in eta]
        k = [mp.hypot(*vector) for vector in vectors]
        exact = [exact_away(a, 0)[0] - mp.atan2(*v[::-1]) for a, v in zip(x, vectors, strict=True)]
        exact = [a - 2 * mp.pi * mp.nint(a / (2 * mp.pi)) for a in exact]
        norms = [mp.log(reference.mp_norm(each)) for each in k]
        expected = np.array([float(-2 * c * mp.sin(a / 2) ** 2 - n) for a, c, n in zip(exact, k, norms, strict=True)])
        rounded = np.array([float(4e-16 * c * abs(mp.sin(a))) for a, c in zip(exact, k, strict=True)])
        rounded = rounded if dtype == "float64" else 0 * rounded
        made = jvm.VonMises.from_natural(eta)
        error = np.abs(np.asarray(made.log_prob(x), float) - expected)
        assert np.all(error <= OF_LOG[dtype] * np.maximum(1, np.abs(expected)) + rounded)
        seen = (expected > -85) & (rounded < 1e-3)
        error = np.abs(np.asarray(made.prob(x), float)[seen] / np.exp(expected[seen]) - 1)
        assert np.all(error <= RELATIVE[dtype] + 1.01 * rounded[seen])


@functools.cache
def cosine_tail(w, k, d):
    """Return P(cosine < w) in d dimensions."""
    n, k, end = mp.mpf(d - 1), mp.mpf(k), (1 + mp.mpf(w)) / 2
    terms = ((2 * k) ** j / mp.factorial(j) * mp.betainc(n / 2 + j, n / 2, 0, end) for j in range(50))
    return float(mp.fsum(terms) / (mp.beta(n / 2, n / 2) * mp.hyp1f1(n / 2, n, 2 * k)))


@pytest.mark.parametrize(("d", "dtype"), [(4, "float32"), (2, "float64"), *more((10, "float32"), (4, "float64"))])
def test_cosine_cdf(d, dtype):
    w = np.array([1e-13, 1e-6, 1e-3, 0.05, 0.4, 0.9]).astype(dtype) - np.ones((), dtype)
    w = w[w > -1]
    with mp.workdps(30), jax.enable_x64(dtype == "float64"):
        found = jvm.VonMisesFisher(np.eye(d)[0].astype(dtype), np.array([[0.0], [1.0], [5.0]], dtype)).cosine_cdf(w)
        expected = [[cosine_tail(float(x), k, d) for x in w] for k in (0.0, 1.0, 5.0)]
    np.testing.assert_allclose(np.asarray(found, float), expected, rtol=RELATIVE[dtype])
