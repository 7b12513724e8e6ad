"""Test natural parameters: values, derivatives also at 0, draws, and the operations that are simple in them."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jax_von_mises as jvm
from jax_von_mises import Mixture, VonMises, VonMisesFisher
from tests import reference, sphere_reference
from tests.marks import more, slow

LENGTHS = [0.0, 1e-30, 1e-10, 1e-3, 0.5, 7.0, 1e3, 1e6]
DIMENSIONS = [2, 3, 5]


def of_angle(x):
    """Return the unit vector of an angle."""
    return np.stack([np.cos(x), np.sin(x)], -1)


def make(kind, natural):
    """Return the distribution of a `kind` for a natural parameter."""
    return kind.from_natural(natural)


def vector(d, length, dtype):
    """Return a vector of a length in `d` dimensions."""
    unit = np.random.default_rng(d).normal(size=d)
    return (length * unit / np.linalg.norm(unit)).astype(dtype)


def mean_vector(natural):
    """Return the mean vector, in float64."""
    natural = np.asarray(natural, float)
    length = np.linalg.norm(natural)
    if length < 1e-12:
        return natural / len(natural)
    return float(sphere_reference.moments(len(natural), length)[0]) * natural / length


def mean_slope(natural):
    """Return the derivative of `mean_vector`, in float64."""
    natural = np.asarray(natural, float)
    length = np.linalg.norm(natural)
    if length < 1e-12:
        return np.eye(len(natural)) / len(natural)
    a, slope, _ = map(float, sphere_reference.moments(len(natural), length))
    along = np.outer(natural, natural) / length**2
    return slope * along + a / length * (np.eye(len(natural)) - along)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    """Return a dtype, in 64-bit mode if necessary."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.mark.parametrize(
    ("d", "dtype"), [(3, "float64"), *slow((2, "float32"), (2, "float64"), (5, "float32"))], indirect=["dtype"]
)
def test_derivatives(d, dtype):
    """First derivatives are those of the exponential family, however small the parameter is."""
    etas = np.stack([vector(d, length, dtype) for length in LENGTHS])
    eps = float(jnp.finfo(dtype).eps)
    means = np.stack([mean_vector(eta) for eta in etas])
    each = lambda function: np.asarray(jax.jit(jax.vmap(function))(etas))  # noqa: E731
    close = vector(d, 1.0, dtype) + np.random.default_rng(1).normal(size=(len(LENGTHS), d)) / np.sqrt(1 + len(LENGTHS))
    x = np.concatenate([close, -close], 1).reshape(len(LENGTHS), 2, d)
    x = (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(dtype)
    expected = np.asarray(x, float) - means[:, None]
    for i in range(2):
        found = jax.jit(jax.vmap(jax.grad(lambda eta, x: VonMisesFisher.from_natural(eta).log_prob(x))))(etas, x[:, i])
        np.testing.assert_allclose(found, expected[:, i], atol=8 * eps, rtol=40 * eps)
        if d == 2:
            angles = np.arctan2(x[:, i, 1].astype(float), x[:, i, 0]).astype(dtype)
            found = jax.jit(jax.vmap(jax.grad(lambda eta, x: VonMises.from_natural(eta).log_prob(x))))(etas, angles)
            np.testing.assert_allclose(found, of_angle(angles.astype(float)) - means, atol=8 * eps, rtol=40 * eps)
    slopes = [sphere_reference.moments(d, np.linalg.norm(eta.astype(float)))[1] for eta in etas]
    expected = np.float64(slopes)[:, None] * etas.astype(float)
    for kind in (VonMisesFisher, VonMises)[: 1 + (d == 2)]:
        found = each(jax.grad(lambda eta, kind=kind: kind.from_natural(eta).kl_to_uniform()))
        np.testing.assert_allclose(found, expected, atol=1e-17, rtol={"float32": 4e-6, "float64": 2e-12}[dtype])
        # The derivative of an entropy is a difference of two numbers of up to 1.
        found = each(jax.grad(lambda eta, kind=kind: kind.from_natural(eta).entropy()))
        np.testing.assert_allclose(found, -expected, atol=8 * eps, rtol={"float32": 4e-6, "float64": 2e-12}[dtype])
    found = each(jax.jacobian(lambda eta: VonMisesFisher.from_natural(eta).mean()))
    for eta, slope in zip(etas, found, strict=True):
        expected = mean_slope(eta)
        np.testing.assert_allclose(slope, expected, atol={"float32": 4e-6, "float64": 1e-13}[dtype] * expected.max())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [VonMises, VonMisesFisher])
def test_differences(kind):
    """Derivatives at 0 agree with differences, for functions of two distributions and of mixtures, too."""
    with jax.enable_x64(True):
        other = make(kind, np.array([0.3, -2.0]))
        value = 0.7 if kind is VonMises else np.array([0.6, 0.8])

        def mixed(eta):
            components = make(kind, jnp.stack([eta, jnp.array([1.0, 2.0])]))
            return Mixture(probs=[0.4, 0.6], components=components).log_prob(value)

        functions = [
            lambda eta: make(kind, eta).kl_divergence(other),
            lambda eta: other.kl_divergence(make(kind, eta)),
            lambda eta: make(kind, eta).multiply(other).entropy(),
            lambda eta: make(kind, eta).log_prob(value) ** 2,
        ]
        if kind is VonMises:
            functions += [mixed, lambda eta: make(kind, eta).sf(value) + make(kind, eta).cdf(value)]
        step = 1e-5
        for function in map(jax.jit, functions):
            found = jax.grad(function)(jnp.zeros(2))
            differences = [(function(step * unit) - function(-step * unit)) / (2 * step) for unit in np.eye(2)]
            np.testing.assert_allclose(found, differences, atol=1e-9)


@pytest.mark.more
def test_densities_of_long_vectors():
    """Densities and tails have the bounds of the functions: the direction is not rounded to an angle first."""
    rng = np.random.default_rng(0)
    length = np.repeat([1e-30, 0.1, 1e2, 1e4, 1e6, 1e9], 60)
    angle = rng.uniform(-np.pi, np.pi, length.size)
    eta = (length[:, None] * of_angle(angle)).astype(np.float32)
    near = rng.normal(size=length.size).clip(-2, 2) * rng.choice([0.01, 1, 4], length.size) / np.sqrt(9 + length)
    x = (angle + near + 2 * np.pi * rng.integers(-3, 3, length.size)).astype(np.float32)
    x[::7] = rng.uniform(-np.pi, np.pi, x[::7].size)
    k, exact = np.hypot(*eta.T.astype(float)), np.arctan2(*eta.T.astype(float)[::-1])
    away = reference.deviation(x.astype(float), exact)
    distribution = VonMises.from_natural(eta)
    expected = reference.log_pdf(away, k)
    assert np.max(np.abs(distribution.log_prob(x) - expected) / np.maximum(1, np.abs(expected))) < 4e-7
    tail = reference.sf(np.abs(away), k)
    for function, below in ((distribution.cdf, away < 0), (distribution.sf, away > 0)):
        seen = (tail > 1e-6) & below & (np.abs(x - exact) < 3) & (length > 0.01)
        np.testing.assert_allclose(function(x)[seen], tail[seen], rtol=4e-6)
    found = VonMisesFisher.from_natural(eta).log_prob(of_angle(x.astype(float)).astype(np.float32))
    y = of_angle(x.astype(float)).astype(np.float32).astype(float)
    away = np.arctan2(eta[:, 0] * y[:, 1] - eta[:, 1] * y[:, 0], np.sum(eta * y, 1))
    expected = reference.log_pdf(away, k)
    assert np.max(np.abs(found - expected) / np.maximum(1, np.abs(expected))) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("d", [*slow(2), 3])
def test_second_derivatives(d):
    """The Hessian is minus the covariance, at 0 and elsewhere; mixed derivatives are those of the product."""
    x = np.eye(d, dtype=np.float32)[0] * 0.6 + np.eye(d, dtype=np.float32)[1] * 0.8
    log_prob = lambda eta, x: VonMisesFisher.from_natural(eta).log_prob(x)  # noqa: E731
    hessian = jax.jit(jax.vmap(jax.hessian(log_prob), (0, None)))
    etas = np.stack([vector(d, length, "float32") for length in (0.0, 1e-19, 1e-15, 1e-8, 1e-4, 0.1, 5.0, 1e3)])
    for eta, found in zip(etas, hessian(etas, x), strict=True):
        expected = -mean_slope(eta)
        np.testing.assert_allclose(found, expected, atol=4e-6 * np.abs(expected).max())
    mixed = jax.jit(jax.jacfwd(jax.grad(log_prob), 1))
    for eta in etas[[0, 6]]:
        np.testing.assert_allclose(mixed(eta, x), np.eye(d) - np.outer(x, x), atol=2e-6)
    if d == 2:
        of_angles = lambda eta, x: VonMises.from_natural(eta).log_prob(x)  # noqa: E731
        for eta, found in zip(etas, jax.jit(jax.vmap(jax.hessian(of_angles), (0, None)))(etas, 0.7), strict=True):
            expected = -mean_slope(eta)
            np.testing.assert_allclose(found, expected, atol=4e-6 * np.abs(expected).max())
        by_angle = jax.jit(jax.grad(jax.grad(of_angles, 1), 0))
        for eta in etas[[0, 6]]:
            np.testing.assert_allclose(by_angle(eta, 0.7), [-np.sin(0.7), np.cos(0.7)], atol=2e-6)


@pytest.mark.parametrize(
    ("kind", "batch", "dtype"),
    [
        *more((VonMisesFisher, (3,), "float32")),
        *slow((VonMises, (), "float32"), (VonMises, (2, 3), "float64"), (VonMisesFisher, (), "float64")),
    ],
    indirect=["dtype"],
)
def test_draws_are_those_of_the_other_parameters(kind, batch, key, dtype):
    eta = np.random.default_rng(0).normal(size=(*batch, 2)).astype(dtype)
    if batch:
        eta[..., 0, :] = 0
    natural = make(kind, eta)
    if kind is VonMises:
        other = VonMises(natural.loc, natural.concentration)
    else:
        other = VonMisesFisher(natural.mean_direction, natural.concentration)
    for arguments in ({}, {"start": 7}):
        x = natural.sample(key, (2**14,), **arguments)
        np.testing.assert_array_equal(x, other.sample(key, (2**14,), **arguments))
        assert x.dtype == dtype
    assert natural.batch_shape == batch
    np.testing.assert_allclose(natural.concentration, np.linalg.norm(eta, axis=-1), rtol=1e-6, atol=1e-18)
    # The parameters of the other distribution are rounded.
    bound = 2 * {"float32": 4e-7 if kind is VonMises else 1e-6, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(natural.log_prob(x[:3]), other.log_prob(x[:3]), rtol=bound, atol=bound)
    if batch:
        mixture = Mixture(logits=np.zeros(3, dtype), components=natural) if kind is VonMises else None
        if mixture is not None:
            same = Mixture(logits=np.zeros(3, dtype), components=other)
            np.testing.assert_array_equal(mixture.sample(key, (100,)), same.sample(key, (100,)))
            np.testing.assert_allclose(mixture.log_prob(0.5), same.log_prob(0.5), rtol=bound, atol=bound)


@pytest.mark.parametrize("d", [*more(3), *slow(2, 5)])
def test_derivatives_of_draws(d, key):
    """The mean of the derivatives of draws is the derivative of their mean; that of each draw is tangent and finite."""
    number = 2**15

    def draw(eta):
        return VonMisesFisher.from_natural(eta).sample(key, (number,))

    with jax.enable_x64(True):
        program = jax.jit(lambda eta: (draw(eta), jax.jacfwd(draw)(eta), jax.grad(lambda e: draw(e)[:, 0].sum())(eta)))
        circle = jax.jit(jax.jacfwd(lambda eta: VonMises.from_natural(eta).sample(key, (number,))))
        for length in (0.0, 1e-20, 1e-3, 0.8, 5.0, 200.0):
            eta = vector(d, length, "float64")
            x, slopes, backwards = map(np.asarray, program(eta))
            assert np.abs(np.einsum("ni,nij->nj", x, slopes)).max() < 1e-9
            error = np.std(slopes, 0) * 5 / np.sqrt(number) + 1e-12
            assert np.all(np.abs(np.mean(slopes, 0) - mean_slope(eta)) < error)
            # The derivative of the mean of x_0 x_1 sees how the draws turn; the score function estimates it, too.
            product = slopes[:, 0] * x[:, 1, None] + x[:, 0, None] * slopes[:, 1]
            score = np.prod(x[:, :2], -1)[:, None] * (x - mean_vector(eta))
            error = (np.std(product, 0) + np.std(score, 0)) * 5 / np.sqrt(number) + 1e-12
            assert np.all(np.abs(np.mean(product, 0) - np.mean(score, 0)) < error)
            np.testing.assert_allclose(backwards, np.sum(slopes[:, 0], 0), rtol=1e-9, atol=1e-9)
            if d == 2:
                tangents = np.stack([-x[:, 1], x[:, 0]], -1)
                np.testing.assert_allclose(np.asarray(circle(eta))[:, None] * tangents[..., None], slopes, atol=1e-8)


@pytest.mark.parametrize("length", [1e-4, 0.7, 9.0, 300.0])
def test_the_velocity_keeps_the_distribution(length):
    """It solves the equation of continuity (p b)' = p, in which w is the cosine."""
    from jax_von_mises.von_mises import natural

    with jax.enable_x64(True):
        w = np.linspace(-1, 1, 2001)
        log_p = lambda w: length * (w - 1)  # noqa: E731
        flux = lambda w: jnp.exp(log_p(w)) * natural.turning(jnp.float64(length), 1 + w)  # noqa: E731
        np.testing.assert_allclose(jax.vmap(jax.grad(flux))(w), np.exp(log_p(w)), rtol=1e-9, atol=1e-300)
        assert float(natural.turning(jnp.float64(length), jnp.float64(0))) == 0


def test_products():
    """The density of a product is the product of the densities, up to a constant."""
    x = np.linspace(-3, 3, 7).astype(np.float32)
    first, second = VonMises(0.5, np.float32([[0.0], [2.0]])), VonMises.from_natural(np.float32([[1, 2], [0, 0]]))
    rest = first.multiply(second).log_prob(x[:, None, None]) - (
        first.log_prob(x[:, None, None]) + second.log_prob(x[:, None, None])
    )
    assert rest.shape == (7, 2, 2)
    np.testing.assert_allclose(rest, np.broadcast_to(rest[:1], rest.shape), atol=1e-5)
    product = VonMisesFisher([0, 0, 2], 3.0).multiply(VonMisesFisher([0, 5, 0], 4.0))
    np.testing.assert_allclose(product.natural, [0, 4, 3], atol=1e-6)
    opposite = VonMisesFisher([0, 0, 2], 3.0).multiply(VonMisesFisher([0, 0, -1], 3.0))
    np.testing.assert_allclose(opposite.log_prob(np.eye(3)), np.full(3, -np.log(4 * np.pi)), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", *more("float64")], indirect=True)
@pytest.mark.parametrize("k", [0.0, *more(1e-6), 0.3, *more(4.0, 1e4), 1e8, np.inf])
def test_convolutions(k, dtype):
    """The mean resultant lengths multiply, and the angles add."""
    error = {"float32": 1e-6, "float64": 1e-13}[dtype]
    k = np.asarray(k, dtype)
    for other in np.asarray([0.0, 1e-3, 2.0, 1e5], dtype):
        circle = VonMises(np.asarray(3, dtype), k).convolve(VonMises(0.5, other))
        for d in (2, 3, 8):
            mean = np.eye(d, dtype=dtype)[1]
            found = VonMisesFisher(mean, k).convolve(VonMisesFisher(-mean, other))
            np.testing.assert_array_equal(found.mean_direction, mean)
            for result in [found] + [circle] * (d == 2):
                if np.isinf(k):
                    np.testing.assert_allclose(result.concentration, other, rtol=error)
                else:
                    with mp.workdps(50):
                        lengths = [sphere_reference.moments(d, each)[0] for each in (k, other)]
                        length, reached = lengths[0] * lengths[1], sphere_reference.moments(d, result.concentration)[0]
                        assert abs(reached - length) <= error * length
                        assert abs(reached - length) <= error * (1 - length)
        assert abs(float(circle.loc) - (3.5 - 2 * np.pi)) < 1e-6


@pytest.mark.parametrize("k", [0.0, 1e-15, 1e-4, 0.5, 30.0, 1e5])
def test_divergence_from_uniform(k, dtype):
    error = {"float32": 2e-6, "float64": 1e-13}[dtype]
    k = np.asarray(k, dtype)
    for d in (2, 3, 10):
        with mp.workdps(50):
            a, _, norm = sphere_reference.moments(d, k)
            _, _, uniform = sphere_reference.moments(d, 0.0)
            exact = mp.mpf(float(k)) * (a - 1) - norm + uniform
        found = float(VonMisesFisher(np.eye(d, dtype=dtype)[0], k).kl_to_uniform())
        assert abs(found - float(exact)) <= error * float(exact) + 1e-37
        if d == 2:
            assert abs(float(VonMises(0.0, k).kl_to_uniform()) - float(exact)) <= error * float(exact) + 1e-37
            a = reference.ratio(float(k))
            np.testing.assert_allclose(VonMises(0.3, k).natural, float(k) * of_angle(0.3), rtol=error, atol=1e-30)
    assert VonMises(0.0, np.inf).kl_to_uniform() == np.inf


@pytest.mark.slow
@pytest.mark.parametrize("d", [*slow(2), 3, *slow(5)])
def test_a_zero_direction(d, key):
    """With the concentration 0, the zero vector gives the uniform distribution; with any other one, NaN."""
    zero, first = np.zeros(d, np.float32), np.eye(d, dtype=np.float32)[0]
    for shape, k in (((8,), 0.0), (None, np.zeros(8, np.float32))):
        x = jvm.sample_von_mises_fisher(key, zero, k, shape)
        np.testing.assert_array_equal(x, jvm.sample_von_mises_fisher(key, first, k, shape))
    k = np.float32([0.0, 1.0])
    x = jvm.sample_von_mises_fisher(key, np.stack([zero, zero, first])[:, None], k)
    assert np.isnan(x).all(-1).tolist() == [[False, True], [False, True], [False, False]]
    for distribution in (VonMisesFisher(zero, k), VonMisesFisher(np.stack([zero, first]), 0.0)):
        bad = [False, distribution.concentration is k]
        assert np.isnan(distribution.log_prob(first)).tolist() == bad
        assert np.isnan(distribution.kl_divergence(VonMisesFisher(first, 2.0))).tolist() == bad
        assert np.isnan(distribution.mean()).all(-1).tolist() == bad
        assert np.isnan(distribution.natural).all(-1).tolist() == bad
    np.testing.assert_array_equal(VonMisesFisher(zero, 0.0).log_prob(first), VonMisesFisher(first, 0.0).log_prob(first))
    subnormal = np.float32(1e-41) * np.arange(d, dtype=np.float32)
    assert np.isfinite(jvm.sample_von_mises_fisher(key, subnormal, 2.0, (5,))).all()


def test_refusals():
    for make_one, message in {
        lambda: VonMises.from_natural(np.ones(3)): r"VonMises.from_natural: natural has shape \(3,\).* must be 2",
        lambda: VonMisesFisher.from_natural(
            np.ones((3, 1))
        ): r"VonMisesFisher.from_natural: natural has shape \(3, 1\)",
        lambda: VonMises.from_natural([np.nan, 1.0], validate_args=True): r"from_natural: natural is nan .*finite",
        lambda: VonMisesFisher([0, 1], 1.0).convolve(VonMisesFisher([0, 0, 1], 1.0)): r"mean_direction .* must be 2",
        lambda: VonMisesFisher([0, 1], 1.0).multiply(VonMisesFisher([0, 0, 1], 1.0)): r"mean_direction .* must be 2",
    }.items():
        with pytest.raises((ValueError, TypeError), match=message):
            make_one()
    for method in ("multiply", "convolve"):
        with pytest.raises(TypeError, match=rf"VonMises.{method}: other=.* must be a VonMises\."):
            getattr(VonMises(0.0, 1.0), method)(VonMisesFisher([0, 1], 1.0))


@pytest.mark.slow
def test_second_derivatives_of_densities_and_probabilities():
    """Those of densities are right at 0; those of probabilities, which have no digit there, raise."""

    def prob(natural):
        return VonMises.from_natural(natural).prob(0.5)

    # The density is 1 + eta . x + ((eta . x)^2 - |eta|^2 / 2) / 2 + ..., over 2 pi.
    x = np.array([np.cos(0.5), np.sin(0.5)])
    exact = (np.outer(x, x) - np.eye(2) / 2) / (2 * np.pi)
    for natural in (np.zeros(2, np.float32), np.float32([1e-6, 0])):
        np.testing.assert_allclose(jax.hessian(prob)(natural), exact, atol=1e-6)
    for name in ("cdf", "log_sf"):
        with pytest.raises(NotImplementedError, match="only `log_prob` and `prob` have second derivatives"):
            jax.hessian(lambda natural, name=name: getattr(VonMises.from_natural(natural), name)(0.5))(natural)


@pytest.mark.more
def test_probabilities_from_another_start_of_long_vectors():
    """They come from the natural parameter, not from the rounded `loc`."""
    one = VonMises.from_natural(np.float32([1e8 * np.cos(1.0), 1e8 * np.sin(1.0)]))
    np.testing.assert_allclose(one.cdf(1.0, start=1 - np.pi), one.cdf(1.0), atol=1e-6)
    np.testing.assert_allclose(one.sf(1.0, start=1 - np.pi), one.sf(1.0), atol=1e-6)
