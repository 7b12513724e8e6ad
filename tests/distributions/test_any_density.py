"""Compare `CircularDistribution` and `SineSkewed` with `VonMises` and closed forms; test their words and errors."""

import functools
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy import special
from scipy import stats

from jax_von_mises import CircularDistribution, SineSkewed, VonMises
from jax_von_mises.any_density import draw as any_density
from jax_von_mises.any_density import panels
from jax_von_mises.engine import counter

slow = pytest.mark.slow
# Largest error of an angle near the median of a uniform distribution from rounding of its tail probability.
LARGEST_SHIFT = {name: np.pi * rounding for name, rounding in panels.ROUNDING.items()}


def von_mises(x, loc, kappa):
    return kappa * jnp.cos(x - loc)


def uniform(x):
    return 0 * x


def wrapped_cauchy(x, rho):
    return jnp.log((1 - rho**2) / (2 * jnp.pi * (1 + rho**2 - 2 * rho * jnp.cos(x))))


def test_layout():
    """Angle i comes from word i. The lowest bit is 1 for the lower half; the other bits are the tail probability."""
    words = counter.words(jax.random.key(2026), (1000,), 1)
    t, from_end = map(np.asarray, any_density.tail_and_end(*words))
    word = np.asarray(words[0])
    assert (from_end == (word % 2 == 0)).all()
    np.testing.assert_allclose(t, ((word >> 1) + 0.5) * 2.0**-32, rtol=1e-7)
    named = np.where(from_end, 1 - t.astype(float), t)
    assert hashlib.sha256(np.floor(named * 2**16).astype("<u2").tobytes()).hexdigest()[:16] == "e12797dfc299eedb"


@pytest.mark.more
def test_samples_have_that_layout():
    key = jax.random.key(2026)
    t, from_end = map(np.asarray, any_density.tail_and_end(*counter.words(key, (1000,), 1)))
    x = CircularDistribution(uniform).sample(key, (1000,))
    np.testing.assert_allclose(
        x, np.pi * np.where(from_end, 1 - 2 * t, 2 * t - 1), rtol=1e-6, atol=LARGEST_SHIFT["float32"]
    )


@pytest.mark.slow
def test_layout_in_float64():
    key = jax.random.key(2026)
    with jax.enable_x64(True):
        x = np.asarray(CircularDistribution(uniform).sample(key, (100,)))
    high, low = (np.asarray(words).astype(np.float64) for words in counter.words(key, (100,), 2))
    t = (np.floor(high / 2) * 2.0**32 + low + 0.5) * 2.0**-64
    np.testing.assert_allclose(
        x, np.pi * np.where(high % 2 == 1, 2 * t - 1, 1 - 2 * t), rtol=1e-13, atol=LARGEST_SHIFT["float64"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("kappa", [2.0, 300.0])
def test_von_mises(key, kappa):
    """All methods agree with those of `VonMises`, and draws with its draws."""
    own, other = CircularDistribution(von_mises, 0.0, kappa), VonMises(0.0, kappa)
    # On other turns the rounding of the angle matters for narrow distributions.
    x, q = jnp.linspace(-9, 9, 200) if kappa < 10 else jnp.linspace(-3.1, 3.1, 200), jnp.linspace(0, 1, 101)
    shift = LARGEST_SHIFT["float32"] / (2 * np.pi * float(other.prob(0.0)))
    np.testing.assert_allclose(own.sample(key, 5000), other.sample(key, 5000), rtol=1e-5, atol=shift + 3e-7)
    np.testing.assert_allclose(own.log_prob(x), other.log_prob(x), rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(own.prob(x), other.prob(x), rtol=1e-4, atol=1e-30)
    np.testing.assert_allclose(own.cdf(x), other.cdf(x), rtol=4e-6, atol=3e-7)
    np.testing.assert_allclose(own.sf(x), other.sf(x), rtol=4e-6, atol=3e-7)
    np.testing.assert_allclose(own.icdf(q), other.icdf(q), rtol=2e-6, atol=shift + 4e-7)
    np.testing.assert_allclose(own.entropy(), other.entropy(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(1 - own.mean_resultant_length(), other.variance(), rtol=1e-4, atol=2e-7)
    drawn, log_prob = own.sample_and_log_prob(seed=key, sample_shape=(4,))
    np.testing.assert_allclose(log_prob, own.log_prob(drawn), rtol=1e-6)
    if kappa:
        moved = CircularDistribution(von_mises, 2.0, kappa)
        assert float(moved.mean()) == pytest.approx(2, abs=1e-6)
        # The cdf starts at -pi, whereas that of `VonMises` starts opposite to its direction.
        assert float(moved.cdf(2.0)) == pytest.approx(float(other.cdf(0.0) - other.cdf(-np.pi - 2)), abs=1e-6)


@pytest.mark.slow
def test_draws_warn_of_a_large_error(key):
    """Three narrow pieces between jumps leave few panels elsewhere; a traced draw cannot warn."""

    def pieces(x, width):
        return jnp.where(jnp.min(jnp.abs(x - jnp.float32([-2.0, 0.5, 2.5]))) < width, 0.0, -9.0)

    narrow = CircularDistribution(pieces, np.float32(0.005), nodes=512)
    assert float(narrow.error()) > 0.1
    with pytest.warns(UserWarning, match=r"^CircularDistribution\.sample: .* Increase `nodes`") as seen:
        narrow.sample(key, (3,))
    assert [warning.filename for warning in seen] == [__file__]
    jax.jit(lambda width: CircularDistribution(pieces, width, nodes=512).sample(key, (3,)))(np.float32(0.005))


@pytest.mark.slow
def test_tabulated(key):
    """A tabulated distribution gives the same results and derivatives, and builds no panels in later programs."""

    @functools.partial(jax.jit, static_argnums=0)
    def results(tabulate, k):
        one = CircularDistribution(von_mises, 0.5, k)
        one = one.tabulate() if tabulate else one
        x, q = np.float32([-3.0, 0.5, 9.0]), np.float32([0.0, 0.01, 0.7])
        names = ("entropy", "mean", "mean_resultant_length", "variance", "log_normalizer")
        found = [one.log_prob(x), one.cdf(x), one.sf(x), one.icdf(q), *(getattr(one, name)() for name in names)]
        slope = jax.grad(lambda k: CircularDistribution(von_mises, 0.5, k).tabulate().sample(key, 8).sum())(k)
        return found, slope, one.error()

    (found, slope, error), (same, other, bound) = results(True, 3.0), results(False, 3.0)
    for a, b in zip(found, same, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=4e-7)
    assert float(slope) == pytest.approx(float(other), rel=1e-5)
    assert float(error) == pytest.approx(float(bound), rel=0.5)


@pytest.mark.more
def test_draws_of_a_tabulated_distribution(key):
    one = CircularDistribution(von_mises, 0.0, 3.0)
    table = one.tabulate()
    # The draws of a density that is symmetric about 0 have the words of a von Mises distribution.
    np.testing.assert_allclose(table.sample(key, 8), VonMises(0.0, 3.0).sample(key, 8), rtol=1e-5, atol=2e-6)
    size, whole = (len(str(jax.make_jaxpr(lambda made: made.sample(key, 8))(made))) for made in (table, one))
    assert size < whole / 2
    with pytest.raises(TypeError, match=r"TabulatedDistribution\.cdf: value"):
        table.cdf("a")


@pytest.mark.slow
@pytest.mark.parametrize("wide", [True, False])
def test_log_density_that_closes_over_traced_values(wide):
    """Derivatives with respect to such a value are those with respect to a parameter, forwards and backwards."""

    def by_closure(kappa):
        return CircularDistribution(lambda x: kappa * jnp.cos(x), wide=wide).log_prob(0.3)

    def by_parameter(kappa):
        return CircularDistribution(von_mises, 0.0, kappa, wide=wide).log_prob(0.3)

    exact = float(np.cos(0.3) - special.i1e(2.0) / special.i0e(2.0))
    bound = 1e-6 if jax.__version_info__ >= (0, 10, 2) else 1e-5
    assert float(jax.jit(jax.grad(by_closure))(2.0)) == pytest.approx(exact, abs=bound)
    assert float(jax.grad(by_parameter)(2.0)) == pytest.approx(exact, abs=bound)

    def by_complex(parts):
        c = jax.lax.complex(*parts)
        density = CircularDistribution(lambda x: jnp.real(c * jnp.exp(jax.lax.complex(0 * x, -x))), wide=wide)
        return density.log_prob(0.3)

    assert float(jax.grad(by_complex)(jnp.array([2.0, 0.0]))[0]) == pytest.approx(exact, abs=bound)
    if wide:
        assert float(jax.jvp(by_closure, (2.0,), (1.0,))[1]) == pytest.approx(exact, abs=1e-6)
        each = jax.vmap(jax.grad(by_closure))(jnp.array([2.0, 5.0]))
        assert float(each[0]) == pytest.approx(exact, abs=bound)


@pytest.mark.slow
def test_products_of_matrices():
    """A log density with a product of matrices can be mapped, and differentiated forwards and twice."""

    def log_prob(weights, x=0.3):
        harmonics = jnp.arange(1, 3, dtype=weights.dtype)
        return CircularDistribution(lambda x, w: w @ jnp.cos(harmonics.astype(x.dtype) * x), weights).log_prob(x)

    w = np.array([1.0, 0.5], np.float32)
    each = jax.vmap(jax.vmap(log_prob))(jnp.array([[w, 2 * w]]))
    np.testing.assert_allclose(each, [[log_prob(w), log_prob(2 * w)]], rtol=1e-6)
    x = np.linspace(-np.pi, np.pi, 2000, endpoint=False)
    features = np.stack([np.cos(x), np.cos(2 * x)])
    p = np.exp(w @ features)
    p /= p.sum()
    slope = np.cos([0.3, 0.6]) - features @ p
    curvature = np.outer(features @ p, features @ p) - (features * p) @ features.T
    np.testing.assert_allclose(jax.jacfwd(log_prob)(w), slope, atol=1e-5)
    np.testing.assert_allclose(jax.hessian(log_prob)(w), curvature, atol=1e-5)


def test_closed_over_values_are_leaves():
    """A distribution made inside of a transformation, also with a traced integer, can leave it."""
    made = jax.jit(lambda kappa, n: CircularDistribution(lambda x: kappa * jnp.cos(n * x)))(2.0, 3)
    assert sorted(float(leaf) for leaf in jax.tree.leaves(made)) == [2.0, 3.0]
    same = CircularDistribution(lambda x: 2 * jnp.cos(3 * x))
    assert float(made.log_prob(0.4)) == pytest.approx(float(same.log_prob(0.4)), abs=1e-6)
    assert CircularDistribution(von_mises, 0.0, 2.0).log_density is von_mises


def modes(x, locs, widths, weights):
    return special.logsumexp(jnp.log(weights) - 2 * (jnp.sin(0.5 * (x - locs)) / widths) ** 2)


@slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_documented_errors(dtype):
    """`error` is at most that in the table of the docstring, wherever the modes are."""
    rng = np.random.default_rng(4)
    one = [([x] * 4, [width] * 4, [1.0] * 4) for x in rng.uniform(-np.pi, np.pi, 8) for width in (1.0, 0.1, 1e-3, 3e-4)]
    several = [(rng.uniform(-np.pi, np.pi, 4), rng.uniform(0.05, 0.5, 4), rng.uniform(0.1, 1, 4)) for _ in range(30)]
    spikes = [([x] * 4, [0.01, 1e3, 1e3, 1e3], [1.0, 0.01, 0.01, 0.01]) for x in rng.uniform(-np.pi, np.pi, 8)]
    documented = {"float32": (2e-6, 5e-6, 1e-4), "float64": (1e-11, 2e-9, 1e-5)}[dtype]
    with jax.enable_x64(dtype == "float64"):
        for cases, bound in zip((one, several, spikes), documented, strict=True):
            errors = [CircularDistribution(modes, *(np.asarray(x, dtype) for x in case)).error() for case in cases]
            assert max(map(float, errors)) <= bound


def narrow(x, loc, kappa):
    return -2 * kappa * jnp.sin(0.5 * (x - loc)) ** 2


@pytest.mark.more
@pytest.mark.parametrize("kappa", [1e7, 1e4])
def test_mode_at_pi(kappa):
    """The float nearest pi lies beyond pi, which must not change probabilities near it."""
    loc = np.float32(np.pi)
    own, other = CircularDistribution(narrow, loc, np.float32(kappa)), VonMises(loc, np.float32(kappa))
    assert float(own.log_prob(loc)) == pytest.approx(float(other.log_prob(loc)), abs=1e-6)
    # The mode lies this far beyond pi, so that more than half of the mass is above -pi.
    beyond = (float(loc) - np.pi) * np.sqrt(kappa)
    assert float(own.cdf(0.0)) == pytest.approx(stats.norm.cdf(beyond), rel=2e-6)


@pytest.mark.slow
def test_float64_inside_of_float32():
    """A formula that float32 cannot evaluate is computed in float64, unless it does not compile in float64."""
    assert float(CircularDistribution(wrapped_cauchy, 0.9999).error()) < 1e-6
    assert np.isnan(CircularDistribution(wrapped_cauchy, 0.9999, wide=False).error())
    with_bessel = CircularDistribution(lambda x, k: k * jnp.cos(x) - jnp.log(special.i0e(k)), 3.0)
    assert float(with_bessel.error()) < 3e-6
    gradient = jax.grad(lambda rho: CircularDistribution(wrapped_cauchy, rho).log_prob(0.2))(0.9)
    exact = -2 * 0.9 / (1 - 0.81) - (2 * 0.9 - 2 * np.cos(0.2)) / (1 + 0.81 - 1.8 * np.cos(0.2))
    assert float(gradient) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: CircularDistribution(3), TypeError, "log_density=3 must be a function"),
        (lambda: CircularDistribution(von_mises, "a", 1.0), TypeError, "parameter 0 must be a real number"),
        (lambda: CircularDistribution(von_mises, 1.0), TypeError, "fails for one float32 angle and 1 parameter:"),
        (lambda: CircularDistribution(lambda x: jnp.ones(3) * x), ValueError, r"shape \(3,\)"),
        (lambda: CircularDistribution(lambda x: x > 0), ValueError, "must return one float"),
        (lambda: CircularDistribution(uniform, nodes=1000), ValueError, "nodes=1000 must be a power of two"),
        (lambda: CircularDistribution(uniform, nodes=2.0**11), ValueError, "nodes=2048.0 must be a power of two"),
        (lambda: CircularDistribution(uniform, wide=None), TypeError, "wide=None must be True or False"),
        (lambda: CircularDistribution(uniform, points=0.5), ValueError, r"points has shape \(\)"),
        (lambda: CircularDistribution(uniform, points=np.zeros(99)), ValueError, "Increase `nodes`"),
        (lambda: CircularDistribution(uniform).sample(), TypeError, "give one random key"),
        (lambda: CircularDistribution(uniform).sample(jax.random.key(0), -1), ValueError, "sample_shape"),
        (lambda: CircularDistribution(uniform).cdf("a"), TypeError, "CircularDistribution.cdf: value must be"),
        (lambda: SineSkewed(3.0, 0.5), TypeError, "distribution=3.0 must be a distribution"),
        (lambda: SineSkewed(VonMises(0.0, 1.0), "a"), TypeError, "skewness must be a real number"),
        (lambda: SineSkewed(VonMises(0.0, 1.0), 1.5, validate_args=True), ValueError, r"must be in \[-1, 1\]"),
        (lambda: SineSkewed(VonMises(np.zeros(2), 1.0), np.zeros(3)), ValueError, "skewness of shape"),
    ],
)
def test_refusals(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.slow
def test_values_are_checked_on_request():
    """Invalid values give NaN by default, and an error with `validate_args`."""
    for make, message in (
        (lambda **options: CircularDistribution(lambda x: x, **options), "at -pi and 3.14159 at pi"),
        (lambda **options: CircularDistribution(von_mises, 0.0, np.nan, **options), "NaN or"),
        (lambda **options: CircularDistribution(lambda x: x * 0 - jnp.inf, **options), "-inf at all of them"),
    ):
        with pytest.raises(ValueError, match=message):
            make(validate_args=True)
        distribution = make()
        for result in (distribution.sample(jax.random.key(0), 3), distribution.log_prob(0.5), distribution.cdf(0.5)):
            assert np.isnan(result).all()
    CircularDistribution(von_mises, 0.0, 3.0, validate_args=True)


@pytest.mark.more
def test_sine_skewed_words(key):
    """A word of a derived key decides whether an angle of the base is reflected about the mean direction."""
    base = VonMises(0.5, 2.0)
    x, drawn = np.asarray(base.sample(key, 1000)), np.asarray(SineSkewed(base, 0.9).sample(key, 1000))
    words = np.asarray(counter.words(jax.random.fold_in(key, 1), (1000,), 1)[0]).astype(np.float64)
    kept = 2 * (words + 0.5) * 2.0**-32 < 1 + 0.9 * np.sin(x - 0.5)
    np.testing.assert_array_equal(drawn[kept], x[kept])
    mirrored = np.remainder(1 - x[~kept].astype(float) + np.pi, 2 * np.pi) - np.pi
    np.testing.assert_allclose(drawn[~kept], mirrored, atol=1e-6)
    assert 300 < kept.sum() < 900


@pytest.mark.more
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shortest_arcs_of_densities_that_jump(dtype):
    """They are on one side of a gap, in which the density is almost 0, and inside a piece that is uniform."""
    with jax.enable_x64(dtype == np.float64):
        gap = CircularDistribution(lambda x, k: k * jnp.cos(x) + jnp.where(jnp.abs(x) > 1, 0, -50), dtype(1))
        piece = CircularDistribution(lambda x, k: jnp.where((x > 1) & (x < 2), k, -jnp.inf), dtype(1))
        mass = np.array([0.01, 0.3, 0.5, 0.9], dtype)
        (low, high), of_piece = gap.interval(mass[:3]), piece.interval(mass)
    x = np.linspace(1, 2 * np.pi - 1, 2**20)  # where the density is not 0, counted through pi
    share = np.cumsum(np.exp(np.cos(x)))
    share /= share[-1]
    for one, start, end in zip(mass, low, high, strict=False):
        begin = np.linspace(0, 1 - one, 2000)
        lengths = np.interp(begin + one, share, x) - np.interp(begin, share, x)
        assert float(end - start) == pytest.approx(lengths.min(), abs=2e-4)
    np.testing.assert_allclose(of_piece[1] - of_piece[0], mass, atol=2e-4)
