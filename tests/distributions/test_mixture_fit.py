"""Compare `Mixture.fit` on the circle and the torus with expectation maximisation in NumPy and SciPy."""

import functools
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from jax_von_mises import (
    CosineBivariateVonMises,
    Kent,
    Mixture,
    ProjectedNormal,
    SineBivariateVonMises,
    Torus,
    VonMises,
    VonMisesFisher,
    WrappedCauchy,
)
from jax_von_mises.engine import em
from jax_von_mises.mixture.distribution import free_parameters

more, slow = pytest.mark.more, pytest.mark.slow
# Many of these fits are of few samples or stop at a limit; a test of the warnings comes below.
pytestmark = pytest.mark.filterwarnings("ignore:Mixture.fit. the(re are fewer| concentration of)")
ANGLES = Mixture(probs=[0.3, 0.7], components=VonMises([-1.0, 1.5], [8.0, 3.0]))
TORI = Mixture(probs=[0.4, 0.6], components=Torus(VonMises([[-1.0, 2.0], [1.5, -0.5]], [[3.0, 8.0], [6.0, 2.0]])))
SINES = Mixture(
    probs=[0.4, 0.6], components=SineBivariateVonMises([-1.0, 1.5], [2.0, -0.5], [8.0, 6.0], [9.0, 7.0], [6.0, -4.0])
)
COSINES = Mixture(
    probs=[0.4, 0.6], components=CosineBivariateVonMises([-1.0, 1.5], [2.0, -0.5], [5.0, 6.0], [6.0, 7.0], [-4.0, 3.0])
)
HOUSEHOLDS = np.loadtxt(
    Path(__file__).parents[2] / "docs/examples/household.csv", np.float32, delimiter=",", skiprows=1, usecols=(0, 1, 2)
)
KINDS = {"angles": ANGLES, "tori": TORI, "sines": SINES, "cosines": COSINES}


@jax.jit
def mean_log_prob(distribution, x):
    return distribution.log_prob(x).mean()


kinds = pytest.mark.parametrize(
    "kind", [VonMises, pytest.param(Torus, marks=more), pytest.param(SineBivariateVonMises, marks=more)]
)


def drawn(kind, size):
    """Return angles, or pairs of them, in two clusters; NumPy compiles nothing."""
    rng = np.random.default_rng(size)
    first = rng.random(size) < 0.3
    if kind is VonMises:
        return np.float32(rng.vonmises(np.where(first, -1.0, 1.5), np.where(first, 8.0, 3.0)))
    locs = np.where(first[:, None], [-1.0, 2.0], [1.5, -0.5])
    return np.float32(rng.vonmises(locs, np.where(first[:, None], [8.0, 9.0], [6.0, 7.0])))


def reference_fit(x, loc, kappa, weights, steps):
    """Fit a mixture on the torus (or on the circle, with one column) by textbook expectation maximisation."""
    for _ in range(steps):
        terms = kappa * np.cos(x[:, None] - loc) - np.log(2 * np.pi * special.i0e(kappa)) - kappa
        joint = np.log(weights) + terms.sum(-1)
        shares = np.exp(joint - special.logsumexp(joint, axis=1, keepdims=True))
        weights = shares.mean(0)
        vectors = np.einsum("nj,nd->jd", shares, np.exp(1j * x)) / shares.sum(0)[:, None]
        loc = np.angle(vectors)
        ratio = np.vectorize(lambda r: optimize.brentq(lambda k: special.i1e(k) / special.i0e(k) - r, 1e-9, 1e6))
        kappa = ratio(np.abs(vectors))
    return loc, kappa, weights


@pytest.mark.parametrize("name", ["angles", pytest.param("tori", marks=more)])
def test_against_reference(name, key):
    """From the same start, 30 steps of the float64 reference give the same mixture."""
    truth = KINDS[name]
    x = np.asarray(truth.sample(key, (800,)))
    tori = name == "tori"
    start_loc = np.array([[0.0, 1.0], [1.0, 0.0]]) if tori else np.array([[-0.5], [0.5]])
    start = VonMises(*(jnp.float32(a if tori else a[:, 0]) for a in (start_loc, np.ones_like(start_loc))))
    start = Mixture(probs=[0.5, 0.5], components=Torus(start) if tori else start)
    fitted = Mixture.fit(x, start, steps=30, tolerance=-1.0)
    columns = x.astype(float) if tori else x.astype(float)[:, None]
    loc, kappa, weights = reference_fit(columns, start_loc, np.ones_like(start_loc), np.array([0.5, 0.5]), 30)
    parts = fitted.components.components if tori else fitted.components
    np.testing.assert_allclose(np.reshape(parts.loc, loc.shape), loc, atol=2e-4)
    np.testing.assert_allclose(np.reshape(parts.concentration, loc.shape), kappa, rtol=1e-3)
    np.testing.assert_allclose(np.exp(fitted.log_weights()), weights, atol=1e-4)


@pytest.mark.parametrize("name", [pytest.param("angles", marks=more), pytest.param("sines", marks=slow)])
def test_likelihood_never_falls(name, key):
    """No step lowers the likelihood, except by the rounding of its sum."""
    truth = KINDS[name]
    x = truth.sample(key, (600,))
    fitted, values = Mixture.fit(x, type(truth.components), number=3, starts=1, steps=1), []
    for _ in range(40):
        fitted = Mixture.fit(x, fitted, steps=1, tolerance=-1.0)
        values.append(float(mean_log_prob(fitted, x)))
    assert np.diff(values).min() > -2e-6, values
    assert values[-1] > float(mean_log_prob(truth, x))


@kinds
def test_other_sizes_and_numbers_compile_nothing(kind, compiled):
    """Up to the next power of two of samples and of components, one program serves all."""
    x = drawn(kind, 1000)
    jax.clear_caches()
    Mixture.fit(x, kind, number=3, starts=2, steps=5)
    if kind is SineBivariateVonMises:
        kind.fit(x)
    assert compiled
    compiled.clear()
    Mixture.fit(x[:900], kind, number=4, starts=1, steps=3, largest_concentration=100.0)
    if kind is SineBivariateVonMises:
        kind.fit(x[:77], weights=np.ones(77))
    assert compiled == []


@kinds
def test_no_samples(kind):
    fitted = Mixture.fit(np.zeros((0,) if kind is VonMises else (0, 2)), kind, number=2)
    assert np.isnan(fitted.logits).all()
    assert np.isnan(jax.tree.leaves(fitted.components)).all()


@pytest.mark.parametrize(
    "fit",
    [
        SineBivariateVonMises.fit,
        lambda x: Mixture.fit(x, Torus, number=2),
        lambda x: Mixture.fit(x, TORI),
        lambda x: Mixture.fit(np.zeros((5, 2)), jax.tree.map(lambda leaf: leaf + x[0, 0], TORI)),
        lambda x: Mixture.fit(np.zeros((5, 2)), Torus, number=2, key=jax.random.key(x[0, 0].astype(int))),
        lambda x: Mixture.fit(np.zeros((5, 2)), Torus, number=2, tolerance=x[0, 0]),
        lambda x: SineBivariateVonMises.fit(np.zeros((5, 2))),
        lambda x: Mixture.fit(np.zeros((5, 2)), Torus, number=2),
    ],
    ids=["pairs", "seeds", "start", "traced start", "traced key", "traced tolerance", "constant pairs", "constants"],
)
def test_a_fit_inside_jit_is_refused(fit):
    with pytest.raises(TypeError, match=r"fit: this fit is a loop on the host.*name the others with `axis`"):
        jax.jit(fit)(np.zeros((5, 2), np.float32))


@pytest.mark.parametrize("finished", [0, 29])
def test_ctrl_c_keeps_the_best(monkeypatch, finished):
    x, steps = drawn(VonMises, 300), []
    right = em.Data.step

    def step(data, at):
        if len(steps) == finished:
            raise KeyboardInterrupt
        steps.append(at)
        return right(data, at)

    monkeypatch.setattr(em.Data, "step", step)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        Mixture.fit(x, VonMises, number=2)
    best = interrupted.value.best
    if not finished:
        assert best is None
        return
    assert best.logits.shape == (2,)
    assert mean_log_prob(best, x) > mean_log_prob(ANGLES, x) - 0.1


@more
def test_starts_use_some_of_many_samples(monkeypatch):
    """More than 2^14 samples are all used only by the steps after the starts."""
    sizes, right = [], em.Data.step

    def step(data, at):
        sizes.append(data.x.shape[-1])
        return right(data, at)

    monkeypatch.setattr(em.Data, "step", step)
    Mixture.fit(drawn(VonMises, 20_000), VonMises, number=2, starts=2, steps=1)
    assert sizes[:-2] == [2**14] * (len(sizes) - 2)
    assert sizes[-2:] == [2**15] * 2
    assert [em.places_of(d, 20) for d in (1, 32, 64, 384)] == [2**14, 2**14, 2**13, 2**12]


def test_progress_counts_all_steps(capsys):
    pytest.importorskip("tqdm")
    x = drawn(VonMises, 100)
    Mixture.fit(x, VonMises, number=2, starts=1, steps=7, tolerance=-1.0, progress=True)
    assert f"Mixture.fit: {em.TRIAL_STEPS + 1 + 7 + 1} steps" in capsys.readouterr().err
    with pytest.raises(TypeError, match="progress='no' must be True or False"):
        Mixture.fit(x, VonMises, number=2, progress="no")


def test_a_fit_without_tqdm_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="progress=True needs tqdm: pip install tqdm"):
        Mixture.fit(np.zeros(5), VonMises, number=2, progress=True)


@slow
@pytest.mark.parametrize("name", ["sines", "cosines"])
def test_a_float64_fit_continues_from_its_result(name, key):
    """From a mixture moved by 1e-5, a fit in float64 finds the same likelihood, far below the rounding of float32."""
    with jax.enable_x64(True):
        truth = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), KINDS[name])
        x = truth.sample(key, (500,))
        found = Mixture.fit(x, truth, tolerance=1e-13)
        moved = jax.tree.map(lambda leaf: leaf * (1 + 1e-5), found)
        again = Mixture.fit(x, moved, tolerance=1e-13)
        assert abs(mean_log_prob(again, x) - mean_log_prob(found, x)) < 1e-11


@pytest.mark.parametrize("name", [pytest.param("tori", marks=more), pytest.param("sines", marks=slow)])
def test_fit_finds_the_truth(name, key):
    """On other samples the likelihoods of the fit and the truth agree, up to the cost of the free parameters."""
    truth = KINDS[name]
    x, others = truth.sample(key, (2000,)), truth.sample(jax.random.fold_in(key, 1), (4000,))
    fitted = Mixture.fit(x, type(truth.components), number=2, starts=4)
    gain = float(mean_log_prob(fitted, x) - mean_log_prob(truth, x))
    assert 0 <= gain < 15 / 2000
    assert float(mean_log_prob(truth, others) - mean_log_prob(fitted, others)) < 15 / 2000
    weights = np.sort(np.exp(fitted.log_weights()))
    np.testing.assert_allclose(weights, np.sort(np.exp(truth.log_weights())), atol=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("concentrations", "correlations", "locs"),
    [
        pytest.param([20, 20], [18, -18], [0, 0], id="crossed"),
        pytest.param([5, 5], [15, -9], [0, 1], id="two modes each"),
    ],
)
def test_components_that_are_not_clusters(key, concentrations, correlations, locs):
    """From its own starts, the fit reaches the likelihood of the fit that starts from the truth."""
    truth = Mixture(
        probs=[0.5, 0.5],
        components=SineBivariateVonMises(*map(jnp.float32, (locs, locs, concentrations, concentrations, correlations))),
    )
    x = truth.sample(key, (3000,))
    best, found = Mixture.fit(x, truth), Mixture.fit(x, SineBivariateVonMises, number=2)
    assert 3000 * float(mean_log_prob(best, x) - mean_log_prob(found, x)) < 3


@more
def test_weights_and_batches():
    """Weights count repetitions. Each data set of a batch is fitted separately, so one without weights alone is NaN."""
    x = drawn(VonMises, 300)
    counts = np.arange(300) % 3
    start = Mixture(probs=[0.5, 0.5], components=VonMises([-0.5, 0.5], [1.0, 1.0]))
    weighted = Mixture.fit(x, start, weights=counts.astype(np.float32))
    repeated = Mixture.fit(np.repeat(x, counts), start)
    for actual, expected in zip(jax.tree.leaves(weighted), jax.tree.leaves(repeated), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-2, atol=2e-3)
    sets = np.stack([x, x, -x], 1)
    several = Mixture.fit(sets, start, np.ones((300, 3)) * [1, 0, 1], axis=0)
    assert several.batch_shape == (3,)
    assert np.isnan(several.logits).any(1).tolist() == [False, True, False]
    alone = Mixture.fit(x, start)
    np.testing.assert_allclose(several.components.loc[0], alone.components.loc, atol=1e-3)
    np.testing.assert_allclose(
        mean_log_prob(jax.tree.map(lambda leaf: leaf[2], several), -x), mean_log_prob(alone, x), atol=1e-4
    )


def test_scale_of_weights():
    """Only the proportions of weights matter, even if the sum of the weights overflows."""
    x, weights = drawn(VonMises, 1000), np.where(np.arange(1000) % 2, np.float32(1), np.float32(0.5))
    start = Mixture(probs=[0.5, 0.5], components=VonMises([-0.5, 0.5], [1.0, 1.0]))
    found = Mixture.fit(x, start, weights)
    assert np.isfinite(found.components.concentration).all()
    for size in (1e-30, 1e37, 3e38):
        scaled = Mixture.fit(x, start, np.float32(size) * weights)
        for actual, expected in zip(jax.tree.leaves(scaled), jax.tree.leaves(found), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)
    assert np.isnan(Mixture.fit(x, start, np.inf * weights).logits).all()


@pytest.mark.parametrize("kind", [VonMises, VonMisesFisher, pytest.param(SineBivariateVonMises, marks=more)])
def test_scale_of_weights_of_one_distribution(kind):
    """Only the proportions of weights matter to the fit of one distribution."""
    x = drawn(kind, 200)
    x = np.stack([np.cos(x[:, 0]), np.sin(x[:, 0])], 1) if kind is VonMisesFisher else x
    weights = np.where(np.arange(200) % 2, np.float32(1), np.float32(0.5))
    found, scaled = kind.fit(x, weights), kind.fit(x, np.float32(3e38) * weights)
    for actual, expected in zip(jax.tree.leaves(scaled), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@kinds
def test_samples_that_cannot_be_used(kind):
    """Those of weight 0 are ignored, and others named, by mixtures and by the fit of pairs."""
    x = drawn(kind, 100)
    fits = {"Mixture": lambda *a: Mixture.fit(*a[:1], kind, *a[1:], number=1, starts=1, steps=2)}
    if kind is SineBivariateVonMises:
        fits[kind.__name__] = kind.fit
    w = np.ones(100, np.float32)
    w[[3, 7]] = 0
    for name, fit in fits.items():
        want = fit(x[w > 0])
        for bad in (np.nan, np.inf, 1e20):
            holes = x.copy()
            holes[3], holes[7, ...] = bad, bad
            for actual, expected in zip(jax.tree.leaves(fit(holes, w)), jax.tree.leaves(want), strict=True):
                np.testing.assert_allclose(actual, expected, rtol=2e-3)
            with pytest.raises(ValueError, match=rf"{name}.fit: 2 of 100 samples .* indices 3, 7; .* the weight 0"):
                fit(holes)


@pytest.mark.parametrize(
    "name",
    [
        "angles",
        pytest.param("tori", marks=pytest.mark.slow),
        pytest.param("sines", marks=pytest.mark.slow),
        pytest.param("cosines", marks=slow),
    ],
)
def test_largest_concentration(name, key):
    """No component exceeds it, from random starts and from a mixture above it, and the fit improves that mixture."""
    x = np.asarray(KINDS[name].sample(key, (200,)))
    start = Mixture(probs=[0.9, 0.1], components=jax.tree.map(lambda leaf: leaf + 0.3, KINDS[name].components))
    fits = [
        Mixture.fit(x, largest_concentration=1.5, steps=50, tolerance=1e-5, **given)
        for given in ({"components": type(start.components), "number": 2, "starts": 2}, {"components": start})
    ]
    for found in fits:
        for leaf in jax.tree.leaves(found.components)[-3 if name in ("sines", "cosines") else -1 :]:
            assert np.max(np.abs(leaf)) <= 1.5
    values = [float(mean_log_prob(found, x)) for found in fits]
    assert values[1] == pytest.approx(values[0], abs=2e-3)


def test_a_start_above_the_limit_is_fitted():
    x = np.r_[np.full(300, -1.0), np.full(700, 1.0)] + np.linspace(-1e-3, 1e-3, 1000)
    start = Mixture(probs=[0.5, 0.5], components=VonMises([-1.0, 1.0], [1e6, 1e6]))
    found = Mixture.fit(x, start, largest_concentration=100.0)
    np.testing.assert_allclose(found.components.concentration, 100.0)
    np.testing.assert_allclose(found.probs, [0.3, 0.7], atol=1e-5)


def test_a_weight_that_underflows():
    """A component far from all samples moves to the nearest ones, although its weight underflows at first."""
    x = np.float32(np.r_[np.linspace(-0.1, 0.1, 50), np.linspace(0.9, 1.1, 50)])
    start = Mixture(probs=[0.5, 0.5], components=VonMises([0.0, 3.0], [5.0, 1e4]))
    found = Mixture.fit(x, start, steps=1, tolerance=-1.0)
    assert float(found.components.loc[1]) == pytest.approx(1.1, abs=0.01)
    assert -1e5 < float(found.logits[1]) < -100
    assert np.isfinite(Mixture.fit(x, start).logits).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -1, 0, "1", True, None, 10**400, np.ones(2), 1j])
@pytest.mark.parametrize("name", ["largest_concentration", "tolerance"])
def test_numbers_of_a_fit_are_checked(name, value):
    if name == "tolerance" and type(value) is int and value <= 0:
        Mixture.fit(np.ones(3), VonMises, number=1, starts=1, steps=1, **{name: value})
        return
    with pytest.raises((TypeError, ValueError), match=rf"(?s)Mixture.fit: {name}=.* must be (finite|a real number)"):
        Mixture.fit(np.ones(3), VonMises, number=1, **{name: value})


@more
@pytest.mark.parametrize("kind", [VonMises, VonMisesFisher, "pairs"])
def test_weights_along_an_axis(kind):
    """One-dimensional weights belong to the axis of the samples, in every fit."""
    x, w = drawn(VonMises, 100).reshape(50, 2), np.linspace(0, 2, 50)
    quick = {"number": 1, "starts": 1, "steps": 2}
    x = x if kind is VonMises else np.stack([np.cos(x), np.sin(x)], -1)
    fits = [SineBivariateVonMises.fit]
    if kind != "pairs":
        fits = [kind.fit, lambda x, w, axis: Mixture.fit(x, kind, w, axis=axis, **quick)]
    for fit in fits:
        short, full = fit(x, w, axis=0), fit(x, w.reshape(50, 1), axis=0)
        assert short.batch_shape == (2,)
        for actual, expected in zip(jax.tree.leaves(short), jax.tree.leaves(full), strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_empty_component():
    """A component without weight keeps its parameters; the others are fitted."""
    x = np.array([0.5, 0.6, 0.7], np.float32)
    start = Mixture(logits=[0.0, -np.inf], components=VonMises([0.0, 2.0], [1.0, 3.0]))
    found = Mixture.fit(x, start)
    assert (float(found.components.loc[1]), float(found.components.concentration[1])) == (2.0, 3.0)
    assert float(found.components.loc[0]) == pytest.approx(0.6, abs=1e-5)


@more
def test_collapse_is_bounded():
    """A component that collapses onto identical samples stops at the largest concentration; the fit is finite."""
    x = np.concatenate([np.full(20, np.float32(1.0)), drawn(VonMises, 200)])
    fitted = Mixture.fit(x, VonMises, number=4, largest_concentration=500.0)
    assert np.isfinite(fitted.components.concentration).all()
    assert float(fitted.components.concentration.max()) <= 500


NAN = np.nan
PAIR = [NAN, 1.0], [NAN, 0.0], [NAN, 2.0], [NAN, 2.0], [NAN, -1.0]
HELD = {
    "background": Mixture(probs=[NAN] * 3, components=VonMises([NAN, NAN, 0.0], [NAN, NAN, 0.0])),
    "loc": Mixture(probs=[NAN, 0.25, NAN], components=VonMises([NAN, -1.0, NAN], [NAN, NAN, 4.0])),
    "direction": Mixture(
        probs=[NAN] * 3,
        components=VonMisesFisher([[NAN] * 3, [2.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [NAN, NAN, 0.0]),
    ),
    "torus": Mixture(probs=[0.5, 0.5], components=Torus(VonMises([[NAN, 1.0], [NAN, NAN]], [[NAN, 3.0], [NAN, 0.0]]))),
    "pairs": Mixture(probs=[NAN] * 2, components=SineBivariateVonMises(*PAIR)),
}


@pytest.mark.parametrize(
    "name",
    [
        "background",
        *(pytest.param(name, marks=more) for name in ("loc", "direction", "torus")),
        pytest.param("pairs", marks=slow),
    ],
)
def test_held_parameters(name, key):
    """Every step keeps what is held and does not lower the likelihood; random starts find no less."""
    fixed = HELD[name]
    kind, number = type(fixed.components), fixed.logits.shape[0]
    x = drawn(VonMises, 400) if kind is VonMises else drawn(Torus, 400)
    x = np.stack([np.cos(x[:, 0]), np.sin(x[:, 0]), np.sin(x[:, 1])], 1) if kind is VonMisesFisher else x
    found = Mixture.fit(x, kind, number=number, fixed=fixed)
    at, values = Mixture.fit(x, kind, number=number, fixed=fixed, starts=1, steps=1), []
    for _ in range(20):
        at = Mixture.fit(x, at, fixed=fixed, steps=1, tolerance=-1.0)
        values.append(float(mean_log_prob(at, x)))
    assert np.diff(values).min() > -2e-6, values
    assert float(mean_log_prob(found, x)) > values[-1] - 2e-3
    for fit in (found, at):
        np.testing.assert_allclose(fit.probs.sum(), 1, rtol=1e-6)
        for actual, held in zip(
            [fit.probs, *jax.tree.leaves(fit.components)],
            [np.exp(fixed.logits), *jax.tree.leaves(fixed.components)],
            strict=True,
        ):
            known = ~np.isnan(held)
            scale = np.linalg.norm(held, axis=-1, keepdims=True) if name == "direction" and np.ndim(held) == 2 else 1
            np.testing.assert_allclose(np.asarray(actual)[known], (np.asarray(held) / scale)[known], rtol=1e-6)


def test_a_held_location_has_the_best_concentration():
    x = drawn(VonMises, 300)
    fixed = Mixture(probs=[1.0], components=VonMises([0.5], [NAN]))
    found = Mixture.fit(x, VonMises, number=1, fixed=fixed)
    expected = VonMises.fit(x, loc=0.5)
    np.testing.assert_allclose(found.components.concentration[0], expected.concentration, rtol=1e-5)


def test_warnings():
    """A fit warns once of a component at the limit and of few samples, and not of a concentration that is held."""
    x = np.float32([0.0, 0.0, 0.0, 1.0, 1.2, 1.5, 1.6, 2.0])
    with pytest.warns(
        UserWarning, match="concentration of component . stopped at largest_concentration=1000.*"
    ) as shown:
        Mixture.fit(x, VonMises, number=2, largest_concentration=1000)
    assert len(shown) == 1
    assert shown[0].filename == __file__
    with pytest.warns(UserWarning, match=r"fewer distinct samples \(2\) than components \(3\)") as shown:
        Mixture.fit(x[:4], VonMises, number=3, weights=np.ones(4))
    assert len(shown) == 2
    turned, scaled = 0.1 + np.pi * np.arange(0, 6, 2), np.outer([0.1, 1, 3, 1 / 3], [1.0, 2.0, 3.0])
    for same, kind in ((turned, VonMises), (scaled, VonMisesFisher)):
        with pytest.warns(UserWarning, match=r"fewer distinct samples \(1\) than components \(2\)"):
            Mixture.fit(same, kind, number=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fixed = Mixture(probs=[NAN, NAN], components=VonMises([0.0, NAN], [1000.0, NAN]))
        Mixture.fit(x, VonMises, number=2, fixed=fixed, largest_concentration=1000)


@more
def test_tied_clusters_on_a_background():
    fixed = Mixture(probs=[NAN] * 3, components=VonMises([NAN, NAN, 0.0], [NAN, NAN, 0.0]))
    k = Mixture.fit(drawn(VonMises, 400), VonMises, number=3, fixed=fixed, tied=True).components.concentration
    assert k[0] == k[1] > 1
    assert k[2] == 0


def test_criteria():
    """`log_likelihood` ignores weights of 0 and sums along an axis; the criteria count the parameters of each class."""
    x = drawn(VonMises, 300)
    value = float(np.sum(ANGLES.log_prob(x), dtype=float))
    np.testing.assert_allclose(ANGLES.log_likelihood(x), value, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(Mixture.bic)(ANGLES, x), 5 * np.log(300) - 2 * value, rtol=1e-6)
    np.testing.assert_allclose(ANGLES.aic(x, parameters=4), 8 - 2 * value, rtol=1e-6)
    holes, w = np.r_[x, np.float32(NAN)], np.r_[np.ones(300), 0]
    np.testing.assert_allclose(ANGLES.bic(holes, w), ANGLES.bic(x), rtol=1e-6)
    assert np.isnan(ANGLES.log_likelihood(x, np.full(300, -1.0)))
    several = Mixture(logits=jnp.zeros((3, 2)), components=VonMises(jnp.zeros((3, 2)), 1.0))
    assert several.aic(x[:, None], axis=0).shape == (3,)
    mean = np.eye(3, dtype=np.float32)[:2]
    counts = [(TORI, 9), (SINES, 11), (Mixture(probs=[1, 1], components=VonMisesFisher(mean, 2.0)), 7)]
    counts += [(Mixture(probs=[1, 1], components=Kent(mean, mean[::-1], 2.0, 0.5)), 11)]
    for mixture, number in counts:
        assert free_parameters("bic", mixture, None) == number
    wide = Mixture(probs=[1, 1], components=ProjectedNormal(mean))
    with pytest.raises(TypeError, match=r"give `parameters`.* ProjectedNormal is not known"):
        wide.bic(mean)
    with pytest.raises(ValueError, match="its last axis must have the length 3"):
        wide.log_likelihood(mean[:, :2])


def test_standard_errors_of_a_torus_ignore_weight_0(key):
    x = np.asarray(TORI.sample(key, (300,)))
    more_angles, weights = np.append(x, np.float32([[1e30, 0.0]]), 0), np.append(np.ones(300, np.float32), 0)
    found, wanted = TORI.standard_errors(more_angles, weights), TORI.standard_errors(x)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4), found, wanted)


def test_standard_errors_of_one_component():
    """They are those of the component, and count weights; two equal components have none."""
    x, one = drawn(VonMises, 300), VonMises([1.0], [2.0])
    fitted = Mixture.fit(x, Mixture(probs=[1.0], components=one), tolerance=1e-9)
    alone = fitted.components.standard_errors(600)
    errors = fitted.standard_errors(x, np.full(300, 2.0))
    assert errors.probs.tolist() == [0]
    np.testing.assert_allclose(errors.components.loc, alone.loc, rtol=1e-3)
    np.testing.assert_allclose(errors.components.concentration, alone.concentration, rtol=1e-3)
    assert np.isnan(jax.tree.leaves(Mixture(probs=[1, 1], components=VonMises([0, 0], 1.0)).standard_errors(x))).all()
    with pytest.raises(TypeError, match=r"batch_shape=\(3,\) must be"):
        Mixture(logits=jnp.zeros((3, 1)), components=one).standard_errors(x)
    with pytest.raises(TypeError, match=r"of WrappedCauchy are not supported\. Components may be .*fit bootstrap"):
        Mixture(probs=[1.0], components=WrappedCauchy([0.0], 0.5)).standard_errors(x)


@more
@pytest.mark.parametrize("name", ["angles", "directions", pytest.param("tori", marks=slow)])
def test_standard_errors_of_many_fits(name, key):
    """The standard deviations of 100 fits agree with the standard errors, and those of directions as angles."""
    means = np.float32([[0.0, 0.6, 0.8], [1.0, 0.0, 0.0]])
    directions = Mixture(probs=[0.3, 0.7], components=VonMisesFisher(means, np.float32([8.0, 20.0])))
    truth = directions if name == "directions" else KINDS[name]
    x = truth.sample(key, (100, 1000))
    fits = Mixture.fit(x, truth, axis=1)
    leaves, wanted = jax.tree.leaves(fits.components), list(map(np.asarray, jax.tree.leaves(truth.components)))
    spread = [np.std(fits.probs, 0), *(np.std(leaf, 0) for leaf in leaves)]
    if name == "directions":
        spread[1] = np.sqrt(np.mean(np.sum(np.square(np.asarray(leaves[0]) - wanted[0]), -1), 0) / 2)
    errors = truth.standard_errors(x.reshape(-1, *truth.event_shape))
    for actual, expected in zip(jax.tree.leaves(errors), spread, strict=True):
        np.testing.assert_allclose(10 * actual, expected, rtol=0.3)


def test_predict():
    found = ANGLES.predict(np.float32([-1.0, 1.5, NAN]))
    assert found.dtype == np.int32
    assert found.tolist() == [0, 1, -1]
    assert TORI.predict(np.zeros((4, 2), np.float32)).shape == (4,)


X = np.zeros((5, 2), np.float32)


def held(probs, concentration=NAN):
    """Return a mixture that holds weights."""
    return Mixture(probs=probs, components=VonMises(np.zeros(len(probs)), concentration))


REFUSED = [
    (
        lambda: Mixture.fit(X, 3, number=2),
        TypeError,
        r"components=3 must be one .* Torus, VonMises or VonM",
    ),
    (lambda: Mixture.fit(X, WrappedCauchy, number=2), TypeError, r"components=<class .* must be one of the classes"),
    (
        lambda: Mixture.fit(X, Mixture(probs=[1.0], components=WrappedCauchy([0.0], 0.5))),
        TypeError,
        r"(?s)components=Mixture.* must be one of the classes .*, or a Mixture of one of these to start from",
    ),
    (lambda: Mixture.fit(X, SineBivariateVonMises, number=2, tied=True), ValueError, r"tied=True is not supported"),
    (lambda: Mixture.fit(VonMises, X, number=2), TypeError, r"samples=<class .*The samples come first"),
    (lambda: Mixture.fit(X, X, number=2), TypeError, r"(?s)components=array.* must be one of the classes"),
    (lambda: Mixture.fit(X, VonMises), TypeError, "give `number`"),
    (lambda: Mixture.fit(X, VonMises, 2), TypeError, r"2 was taken for `weights`.*fit\(samples, VonMises, number=2\)"),
    (lambda: SineBivariateVonMises.fit(X[:, 0], X[:, 1]), ValueError, r"fit: samples has shape \(5,\).* jnp.stack"),
    (lambda: SineBivariateVonMises.fit(np.zeros(3)), ValueError, r"fit: samples has shape \(3,\)"),
    (lambda: SineBivariateVonMises.fit(X, np.ones(3)), ValueError, "Give one weight for each pair"),
    (lambda: Mixture.fit(np.ma.masked_array(X, X > 1), Torus, number=1), TypeError, r"masked array.*compressed\(\).*w"),
    (lambda: Mixture.fit([0.1, None], VonMises, number=1), TypeError, "got None among them. Drop missing.*weight 0"),
    (lambda: Mixture.fit(X, VonMises, number=0), ValueError, "number=0 must be at least 1"),
    (lambda: Mixture.fit(np.zeros((5, 3)), SineBivariateVonMises, number=2), ValueError, "phi and psi"),
    (lambda: Mixture.fit(np.zeros((5, 3)), TORI), ValueError, r"shape \(5, 3\), but the components .* have 2 angles"),
    (lambda: Mixture.fit(X, Torus, np.ones(3), number=2), ValueError, "Give one weight for each sample"),
    (
        lambda: Mixture.fit(X, Torus, number=2, fixed=ANGLES),
        TypeError,
        "(?s)fixed=Mixture.* must be a Mixture of Torus.* NaN where to estimate",
    ),
    (lambda: Mixture.fit(X, VonMises, number=3, fixed=ANGLES), ValueError, "fixed has 2 components .* the fit has 3"),
    (lambda: Mixture.fit(X, VonMises, number=3, fixed=held([0.5, 0.6, NAN])), ValueError, "sum to 1.1. Held weights"),
    (lambda: Mixture.fit(X, VonMises, number=2, fixed=held([0.5, 0.6])), ValueError, "sum to 1.1. Held weights"),
    (lambda: Mixture.fit(X, VonMises, number=1, fixed=held([NAN], -1.0)), ValueError, "negative concentration"),
    (lambda: Mixture.fit(X, VonMises, number=1, fixed=held([NAN], np.inf)), ValueError, "fixed holds an infinite"),
    (
        lambda: Mixture.fit(
            np.eye(3),
            VonMisesFisher,
            number=1,
            fixed=Mixture(probs=[NAN], components=VonMisesFisher([[1, NAN, 0]], 1.0)),
        ),
        ValueError,
        "a part of a mean direction",
    ),
    (
        lambda: Mixture.fit(
            X,
            SineBivariateVonMises,
            number=1,
            fixed=Mixture(probs=[NAN], components=SineBivariateVonMises([0.0], *[NAN] * 4)),
        ),
        ValueError,
        "fixed holds some parameters of a pair",
    ),
    (lambda: Mixture.fit(X, Torus, axis=1, number=2), ValueError, "out of range"),
]


def test_refusals():
    for fit, error, message in REFUSED:
        with pytest.raises(error, match=message):
            fit()


def test_few_samples_reach_the_best_known_optimum():
    """Most keys find the largest known likelihood of four components for 40 directions, of which one has a sample."""
    found = []
    for key in range(12):
        found.append(Mixture.fit(HOUSEHOLDS, VonMisesFisher, number=4, key=jax.random.key(key)))
    values = np.array([float(mean_log_prob(each, HOUSEHOLDS)) for each in found])
    assert np.mean(40 * values > 31.60) >= 0.5, 40 * values
    assert np.all(40 * values > 29.9)
