"""Compare tables of any density on the circle with float64 quadrature: tails, gaps, and the reported errors."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from jax_von_mises.any_density import panels, quantiles
from tests.any_density_reference import (
    EXAMPLES,
    IMAGES,
    Example,
    Reference,
    exact_tail,
    mixture,
    of_mixture,
    wrapped_cauchy,
)
from tests.marks import more, slow

# Mixtures share one program.
QUICK = ("two modes",)
MORE = ("von Mises 5", "spike on a flat background", "von Mises 1e4", "von Mises 1e7", "wrapped normal 0.02", "uniform")
NAMES = [*QUICK, *more(*MORE), *slow(*(name for name in EXAMPLES if name not in (*QUICK, *MORE)))]
CANCELLING = ("wrapped Cauchy 0.9999", "wrapped normal 0.02", "cardioid 0.5")
FLOAT32 = np.dtype(np.float32)


def looked_up(table, t, from_end):
    """Return the angles with the tails `t` towards -pi or, if `from_end`, towards pi."""
    return table.cells.angle_of(lambda t, from_end: (t, from_end), t, from_end)


@functools.cache
def program(log_density, dtype=FLOAT32, wide=True, count=256):
    """Return a program for draws, direct quantiles, tails and error estimates of the examples with one log density."""

    def run(t, from_end, x, points, *parameters):
        table = quantiles.tabulate(log_density, count, dtype, wide, points, parameters)
        divided = table.panels
        low, high = (panels.mass_up_to(divided, x, jnp.full(x.shape, end)) / divided.total for end in (False, True))
        direct, _ = panels.quantile(divided, t * divided.total, from_end)
        hard = jnp.sum(table.cells.hard >= 0)
        return looked_up(table, t, from_end), direct, low, high, table.panels.log_normalizer, table.error, hard

    return jax.jit(run)


def words(dtype, deepest):
    """Return tail probabilities of all sizes, a mask that is true for upper tails, and angles."""
    rng = np.random.default_rng(7)
    t = np.concatenate([0.5 * 2.0 ** -rng.uniform(0, deepest - 1, 4_000), rng.uniform(0, 0.5, 4_000)])
    return t.astype(dtype), rng.random(t.size) < 0.5, np.sort(rng.uniform(-3.1, 3.1, 1_000)).astype(dtype)


def compare(example, dtype=FLOAT32, wide=True, count=256, points=None, deepest=33):
    """Return the estimated error, the true error, the error of the log normaliser, and the number of hard cells."""
    reference, (t, from_end, x) = Reference(example), words(dtype, deepest)
    parameters = [np.asarray(p, dtype) for p in example.parameters]
    run = program(example.log_density, dtype, wide, count)
    *angles, low, high, log_normalizer, error, hard = map(np.asarray, run(t, from_end, x, points, *parameters))
    worst = 0.0
    for drawn in angles:
        lower, upper = reference.tails(drawn)
        allowed = 4 * reference.density(drawn.astype(float)) * np.spacing(np.abs(drawn)).astype(float)
        off = np.abs(np.where(from_end, upper, lower) - t) - allowed
        worst = max(worst, np.max(np.maximum(off, 0) / t))
        assert np.all(np.abs(drawn) <= np.pi + 1e-6)
    lower, upper = reference.tails(x)
    small, actual = np.minimum(lower, upper), np.where(lower < upper, low, high)
    allowed = 4 * reference.density(x.astype(float)) * np.spacing(np.abs(x)).astype(float)
    named = small > 2.0**-deepest
    worst = max(
        worst, np.max((np.maximum(np.abs(actual - small) - allowed, 0) / np.maximum(small, 1e-300))[named], initial=0)
    )
    return float(error), worst, abs(float(log_normalizer) - reference.log_normalizer), int(hard)


@pytest.mark.more
@pytest.mark.parametrize("x", [-3.0, -1.6, 0.3, 2.5])
def test_reference(x):
    """mpmath confirms the reference of the other tests."""
    rho = float(np.float32(0.9999))
    for example, log_density in (
        (EXAMPLES["wrapped Cauchy 0.9999"], lambda x: -mp.log(1 + mp.mpf(rho) ** 2 - 2 * rho * mp.cos(x))),
        (EXAMPLES["exp(8 cos 2x)"], lambda x: 8 * mp.cos(2 * x)),
    ):
        points = [0.0, *(s * 10.0**-j for j in range(8) for s in (-1, 1))]
        tail = Reference(example).tails(np.array([x]))[0][0]
        assert tail == pytest.approx(exact_tail(x, log_density, points), rel=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_error_is_at_least_the_true_one(name):
    """The estimate is between the true error and the larger of `bound` and 50 times the true error.

    It allows for jumps between nodes, so it is this much too large where a narrow smooth mode is resolved.
    """
    example = EXAMPLES[name]
    error, worst, off, hard = compare(example)
    assert worst <= error <= max(50 * worst, example.bound)
    assert worst < example.bound
    assert off < 2e-6
    # Draws from densities with one mode avoid the cost of gaps.
    one_mode = ("von Mises", "uniform", "wrapped", "cardioid", "Kato-Jones", "sine-skewed")
    assert (hard == 0) == name.startswith(one_mode)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in EXAMPLES if n not in CANCELLING])
def test_log_densities_in_float32(name):
    """Rounding of the log density is part of the estimate, except for formulas that cancel internally."""
    error, worst, _, _ = compare(EXAMPLES[name], wide=False)
    assert worst <= error < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in EXAMPLES if n not in CANCELLING])
def test_float64(name):
    with jax.enable_x64(True):
        error, worst, off, _ = compare(EXAMPLES[name], np.dtype(np.float64), wide=False, deepest=45)
    assert worst <= max(error, 1e-10)
    assert worst < (2e-8 if "spike" in name else 1e-9)
    assert off < (1e-8 if "spike" in name else 1e-12)


@pytest.mark.slow
def test_hints():
    """Narrow modes between the first edges are found if `points` lists them."""
    example = of_mixture((0.5, 1e9, 0.31), (0.5, 1e9, 2.004))
    error, worst, _, _ = compare(example, points=np.array([0.31, 2.004], np.float32))
    assert worst <= error < 1e-4


@pytest.mark.slow
def test_jumps_are_reported():
    """A density with a jump is integrated, and its larger error is part of the estimate."""
    example = Example(lambda x, level, m=jnp: m.where(m.abs(x) < 1, level, 0 * x), (np.log(3.0),), (-1.0, 1.0))
    error, worst, _, _ = compare(example)
    assert worst <= error < 0.1


def blocks(x, edges, levels):
    """Return the log density of a histogram on the circle, with `levels[0]` from the last edge to the first."""
    return levels[jnp.mod(jnp.sum(x >= edges), 6)]


HISTOGRAMS = {
    "sector": ([-2.2, -1.9, 0.3, 0.4, 2.5, 2.7], [-np.inf, 0, 0, -np.inf, -np.inf, -np.inf]),
    "sector across pi": ([-2.1, -1.8, 0.8, 1.8, 2.7, 3.0], [0, -np.inf, -np.inf, -np.inf, 0, 0]),
    "sectors of unequal mass": ([-2.1981, -1.9067, 0.3244, 0.4323, 2.5043, 2.653], [-6.6, -0.9, *[-np.inf] * 4]),
    "empty bins": ([-2.5, -0.9, 0.05, 0.26, 0.61, 2.3], [-np.inf, -np.inf, -5.4, -np.inf, -1.5, -5.0]),
    "narrow sector": ([1.0, 1.06, 1.5, 2.0, 2.5, 3.0], [-np.inf, 0, -np.inf, -np.inf, -np.inf, -np.inf]),
    "tiny but not 0": ([-1.7, -1.24, 0.78, 1.7, 2.3, 2.5], [-8.0, -1.4, -1.6, -80.0, -80.0, -80.0]),
}


@pytest.mark.parametrize(("dtype", "count"), slow(("float32", 64), ("float32", 256), ("float64", 64)))
def test_jumps_to_zero_keep_the_mass(dtype, count):
    """Tails and quantiles of histograms with empty bins are those of their closed form, wherever the jumps are."""
    q = np.linspace(0.005, 0.995, 100)
    t, from_end = np.minimum(q, 1 - q), q > 0.5
    with jax.enable_x64(dtype == "float64"):
        run = program(blocks, np.dtype(dtype), dtype == "float32", count)
        for name, (edges, levels) in HISTOGRAMS.items():
            edges, levels = np.asarray(edges, dtype), np.asarray(levels, dtype)
            ends = np.concatenate([[-np.pi], edges, [np.pi]]).astype(float)
            mass = np.exp(np.append(levels, levels[0]).astype(float)) * np.diff(ends)
            exact = np.concatenate([[0], np.cumsum(mass / mass.sum())])
            *angles, low, high, log_normalizer, _, _ = run(t.astype(dtype), from_end, edges, None, edges, levels)
            np.testing.assert_allclose(low, exact[1:-1], atol=3e-3, err_msg=name)
            np.testing.assert_allclose(high, 1 - exact[1:-1], atol=3e-3, err_msg=name)
            np.testing.assert_allclose(log_normalizer, np.log(mass.sum()), atol=3e-3, err_msg=name)
            for x in angles:
                np.testing.assert_allclose(np.interp(x, ends, exact), q, atol=3e-3, err_msg=name)


def random_density(rng):
    """Return one to four von Mises modes, in a third of the cases with a jump, and points near the modes or zeros."""
    smooth, count = rng.random() < 0.7, int(rng.integers(1, 5))
    centres = rng.uniform(-np.pi, np.pi, count)
    concentrations = 10 ** rng.uniform(-1, 3.7 if rng.random() < 0.8 else 6, count)
    weights = 10 ** rng.uniform(-4 if rng.random() < 0.5 else -1, 0, count)
    step, size = (0.0, 0.0) if smooth else (rng.uniform(-8, 8), rng.uniform(0.01, 0.9))
    modes = [np.float32(np.append(x, [x[-1]] * (4 - count))) for x in (weights, concentrations, centres)]
    parameters = tuple(np.asarray(x, float) for x in (*modes, np.float32(step), np.float32(size)))
    half = 2 * np.arcsin(parameters[4])
    jumps = [] if smooth else [parameters[2][0] + sign * half + turn for sign in (-1, 1) for turn in IMAGES[2:5]]
    points = [centre + turn for centre in parameters[2] for turn in IMAGES[2:5]]
    example = Example(with_jump, parameters, (*points, *jumps))
    return example, np.float32(parameters[2] if rng.random() < 0.6 else np.zeros(4))


def with_jump(x, weights, concentrations, centres, step, size, m=jnp):
    """Return the log density of a mixture, raised by `step` on an arc about the first centre."""
    level = mixture(x, weights, concentrations, centres, m)
    return m.where(m.abs(m.sin(0.5 * (x - centres[0]))) < size, level + step, level)


@jax.jit
def nodes_of_panels(parameters, points):
    return panels.adapt(with_jump, 256, FLOAT32, True, points, parameters).angles


def is_missed(example, points):
    """Return whether the nodes around a mode are more than two of its standard deviations apart."""
    parameters = tuple(np.float32(x) for x in example.parameters)
    nodes = np.sort(np.asarray(nodes_of_panels(parameters, points), float).reshape(-1))
    nodes = np.concatenate([nodes - 2 * np.pi, nodes, nodes + 2 * np.pi])
    at = np.searchsorted(nodes, example.parameters[2])
    gaps = np.max([nodes[at + j + 1] - nodes[at + j] for j in (-2, -1, 0)], 0)
    return np.max(gaps * np.sqrt(example.parameters[1])) > 2


@pytest.mark.parametrize(("seed", "number"), [*slow((0, 10)), *slow(*((seed, 250) for seed in range(1, 9)))])
def test_error_of_random_densities(seed, number):
    """The estimate is an upper bound of the true error for densities without a missed mode."""
    rng, missed = np.random.default_rng(20261125 + seed), 0
    for i in range(number):
        example, points = random_density(rng)
        if is_missed(example, points):
            missed += 1
            continue
        error, worst, _, _ = compare(example, points=points)
        assert worst <= error, f"density {i} of seed {seed}: {worst:.2e} > {error:.2e}: {example.parameters}"
    assert missed <= 1 + number // 50


def test_invalid_densities_give_nan():
    """NaN parameters, a zero density and an infinite density give NaN."""
    weights, kappa, centres = (np.asarray(p, np.float32) for p in EXAMPLES["three modes"].parameters)
    for parameters in (
        (weights * np.nan, kappa, centres),
        (weights * 0, kappa, centres),
        (weights, -np.inf * kappa, centres),
    ):
        for result in program(mixture, FLOAT32, True, 256)(*words(FLOAT32, 33), None, *parameters)[:-1]:
            assert np.isnan(result).all()


@pytest.mark.more
def test_ends_that_differ_give_nan():
    table = jax.jit(lambda: quantiles.tabulate(lambda x: 0.1 * x, 256, FLOAT32))()
    assert np.isnan(table.panels.log_normalizer)


@pytest.mark.parametrize(("rho", "wide"), slow((0.9, True), (0.5, False)))
def test_derivative_of_angles(rho, wide):
    """Derivatives agree with those of the wrapped Cauchy quantile, tan(x/2) = (1 - rho)/(1 + rho) tan(pi (F - 1/2))."""
    rng = np.random.default_rng(1)
    t = (0.5 * 2.0 ** -rng.uniform(0, 20, 2000)).astype(np.float32)
    from_end = rng.random(t.size) < 0.5

    def angles(rho):
        parameters = () if not wide else (rho,)
        density = wrapped_cauchy if wide else lambda x: wrapped_cauchy(x, rho)
        return looked_up(quantiles.tabulate(density, 256, FLOAT32, wide, None, parameters), t, from_end)

    rho = np.float32(rho)
    x, slope = map(np.asarray, jax.jit(lambda r: jax.jvp(angles, (r,), (jnp.ones_like(r),)))(rho))
    exact = -2 * np.sin(x.astype(float)) / (1 - float(rho) ** 2)
    # The formula cancels in float32.
    assert np.abs(slope - exact).max() < (3e-6 if wide else 1e-3) * np.abs(exact).max()
    backwards = jax.jit(jax.grad(lambda r: jnp.sum(angles(r) ** 2)))(rho)
    assert float(backwards) == pytest.approx((2 * x.astype(float) * slope).sum(), rel=1e-4)


@pytest.mark.slow
def test_many_sets_of_parameters():
    """`jax.vmap` makes a table for each set of parameters, with or without gaps."""
    t, from_end = np.array([0.01, 0.3, 0.49], np.float32), np.array([True, False, True])
    kappa = np.array([1.0, 30.0, 300.0], np.float32)

    def angles(kappa):
        density = lambda x: jnp.logaddexp(kappa * jnp.cos(x - 1), kappa * jnp.cos(x + 1.5))  # noqa: E731
        return looked_up(quantiles.tabulate(density, 256, FLOAT32), t, from_end)

    one_by_one = [jax.jit(angles)(k) for k in kappa]
    np.testing.assert_allclose(jax.jit(jax.vmap(angles))(kappa), np.stack(one_by_one), rtol=2e-6, atol=1e-6)
