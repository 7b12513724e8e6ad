"""Fit mixtures by expectation maximisation, from the best of several starts.

The loop runs on the host. Each turn calls one compiled program that goes over the data, and updates the parameters. The
data and the components are padded with weights of 0, so one program serves all sizes up to the next power of two.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special
from jax.typing import ArrayLike

from jax_von_mises.distributions import pairs_fit
from jax_von_mises.distributions.pairs_fit import Array, Kind, kept, turns_removed
from jax_von_mises.functions.samples import HostSets, power_of_two, total
from jax_von_mises.numerics import bessel, xla
from jax_von_mises.numerics.circle import deviation
from jax_von_mises.numerics.density import log_density
from jax_von_mises.numerics.pairs import moments
from jax_von_mises.numerics.sphere import moments as sphere

# Steps from each start before the best one continues.
TRIAL_STEPS = 15
# Range of the components' initial concentrations, which keeps a component from starting at a single point.
FIRST_CONCENTRATIONS = 0.5, 50.0
# Both concentrations, and the largest correlation in magnitude, of random components. With the largest correlations,
# their densities have two modes.
RANDOM_CONCENTRATION, LARGEST_RANDOM_CORRELATION = 4.0, 8.0
# Starts are found and compared on at most this many samples of a data set, and on fewer if they have more numbers than
# the second, but on so many for each component.
MOST_PLACES, MOST_NUMBERS, FOR_EACH = 2**14, 2**19, 128
# A component of a start is placed at one of as many samples as there are components, but at most this number.
MOST_TRIED = 32
# Up to this dimension, 1 - cos of the angle between two directions is computed from their difference, and above it from
# a product of matrices, with a rounding error of 1e-7 in float32.
FEW_COMPONENTS = 16


def posterior(joint: jax.Array) -> jax.Array:
    """Return the probability of each component, from the logarithms of the joint densities along the last axis."""
    # Components with an infinite density share the probability equally.
    infinite = joint == jnp.inf
    joint = jnp.where(jnp.any(infinite, -1, keepdims=True), jnp.where(infinite, 0.0, -jnp.inf), joint)
    return jax.nn.softmax(joint, axis=-1)


def log_of_term(log_weight: jax.Array, log_prob: jax.Array) -> jax.Array:
    """Return the logarithm of a weight times a density; -inf for a weight of 0, even if the density is infinite."""
    log_weight, log_prob = promote_and_broadcast(log_weight, log_prob)
    return log_weight + jnp.where(log_weight == -jnp.inf, 0, log_prob)


def promote_and_broadcast(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Broadcast `arrays` together, in the dtype of the last one, even where JAX's implicit promotion is off."""
    shape = jnp.broadcast_shapes(*(a.shape for a in arrays))
    return tuple(jnp.broadcast_to(a, shape).astype(arrays[-1].dtype) for a in arrays)


class Terms(NamedTuple):
    """Mixtures, one for each data set: logarithms of the weights (sets, j), and `parameters` (sets, j, ...)."""

    log_weights: Array
    parameters: Array

    def where(self, chosen: Array, others: "Terms") -> "Terms":
        """Return these mixtures for the `chosen` data sets, and the `others` elsewhere."""
        return Terms(*map(functools.partial(kept, chosen), self, others))


# What a program over the data returns: the mean log likelihood of each data set, the logarithm of the weight of each
# component, and what the family needs for new parameters.
Explained = tuple[jax.Array, jax.Array, jax.Array]


def responsibilities(
    log_weights: jax.Array, densities: jax.Array, share: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the mean log likelihoods (sets,), logarithms of the components' weights, and shares of samples in them.

    Parameters
    ----------
    log_weights : array
        Shape (sets, j).
    densities : array
        Logarithms of the densities, of shape (sets, j, n).
    share : array
        Weights of the samples, of shape (sets, n).
    """
    joint = log_of_term(log_weights[..., None], densities)
    log_prob = special.logsumexp(joint, axis=1)
    among = joint - jnp.where(log_prob == -jnp.inf, 0, log_prob)[:, None] + jnp.log(share)[:, None]
    # Divide by the largest, since all may underflow.
    top = jnp.max(among, -1, keepdims=True)
    top = jnp.where(top == -jnp.inf, 0, top)
    weights = jnp.exp(among - top)
    weight = total(weights)
    return (
        total(share * jnp.where(share > 0, log_prob, 0)),
        top[..., 0] + jnp.log(weight),
        weights / jnp.where(weight > 0, weight, 1)[..., None],
    )


@functools.partial(jax.jit, static_argnames="tied")
def over_angles(x: jax.Array, share: jax.Array, log_weights: jax.Array, parameters: jax.Array, tied: bool) -> Explained:
    """Go over angles `x` (sets, d, n), with locations and concentrations `parameters` (sets, j, 2, d).

    The last result is the change of each location, and the new concentrations, which are equal if `tied`.
    """
    loc, k = parameters[:, :, 0, :, None], parameters[:, :, 1, :, None]
    apart = deviation(x[:, None], loc)[0]
    densities = jnp.sum(log_density(apart, jnp.broadcast_to(k, apart.shape)), 2)
    value, log_weight, weights = responsibilities(log_weights, densities, share)
    half = 0.5 * apart
    sine = jnp.sin(half)
    means = (total(weights[:, :, None] * each) for each in (2 * sine * jnp.cos(half), 2 * sine * sine))
    sine, versine = means
    length = jnp.hypot(sine, 1 - versine)
    rest = jnp.maximum(versine * (2 - versine) - sine * sine, 0) / (1 + length)
    if tied:
        length, rest = (pooled(log_weight, each) for each in (length, rest))
    move = jnp.arctan2(sine, 1 - versine)
    k = jnp.broadcast_to(bessel.inverse_ratio(length, rest), move.shape)
    return value, log_weight, jnp.stack([move, k], 2)


def pooled(log_weight: jax.Array, each: jax.Array) -> jax.Array:
    """Return the weighted mean of the components of a data set, along the second axis, which keeps the length 1."""
    weight = jnp.exp(log_weight).reshape(*log_weight.shape, *[1] * (each.ndim - 2))
    return jnp.sum(weight * each, 1, keepdims=True) / jnp.sum(weight, 1, keepdims=True)


@functools.partial(jax.jit, static_argnames="tied")
def over_directions(
    x: jax.Array, share: jax.Array, log_weights: jax.Array, parameters: jax.Array, tied: bool
) -> Explained:
    """Go over directions `x` (sets, d, n), with `parameters` (sets, j, d + 1): mean directions and concentrations.

    The last result holds the new parameters. The concentrations are equal if `tied`.
    """
    mean, k = parameters[..., :-1], parameters[..., -1]
    d, exact = mean.shape[-1], lax.Precision.HIGHEST
    if d <= FEW_COMPONENTS:
        versine = 0.5 * xla.tree_sum([jnp.square(x[:, None, i] - mean[..., i, None]) for i in range(d)])
    else:
        versine = jnp.maximum(1 - jnp.einsum("sdn,sjd->sjn", x, mean, precision=exact), 0)
    densities = -(k[..., None] * versine) - sphere.log_norm(k, d)[..., None]
    value, log_weight, weights = responsibilities(log_weights, densities, share)
    # Sum in blocks, so that rounding errors grow only with the number of blocks.
    block = min(x.shape[-1], MOST_PLACES)
    left, right = (each.reshape(*each.shape[:-1], -1, block) for each in (weights, x))
    centre = jnp.sum(jnp.einsum("sjmi,sdmi->smjd", left, right, precision=exact), 1)
    length = jnp.sqrt(jnp.sum(jnp.square(centre), -1))
    # With the mean square distance q from the old direction, and the change v of the mean, the square of the length is
    # 1 - q + v^2. A component of weight 0 has the length 0.
    square = 2 * total(weights * versine) - jnp.sum(jnp.square(centre - mean), -1)
    rest = jnp.where(length > 0.5, jnp.maximum(square, 0) / (1 + length), 1 - length)
    direction = centre / jnp.where(length > 0, length, 1)[..., None]
    if tied:
        length, rest = (pooled(log_weight, each) for each in (length, rest))
    k = jnp.broadcast_to(sphere.concentration_of(length, rest, d), log_weight.shape)
    return value, log_weight, jnp.concatenate([direction, k[..., None]], -1)


@functools.partial(jax.jit, static_argnames="kind")
def over_pairs(x: jax.Array, share: jax.Array, log_weights: jax.Array, parameters: jax.Array, kind: Kind) -> Explained:
    """Go over pairs `x` (sets, 2, n), with `parameters` (sets, j, 6): those of the model and `moments.log_total`.

    The last result holds the means of products of (1, sin, 1 - cos) of the deviations from the locations.
    """
    alpha, beta, k1, k2, r, log_total = (parameters[..., i, None] for i in range(6))
    a, b = (deviation(x[:, i, None], loc)[0] for i, loc in enumerate((alpha, beta)))
    k = (jnp.broadcast_to(each, a.shape) for each in (k1, k2, r))
    value, log_weight, weights = responsibilities(log_weights, moments.exponent(kind, a, b, *k) - log_total, share)

    def functions(apart: jax.Array) -> jax.Array:
        sine = jnp.sin(0.5 * apart)
        found = jnp.stack([jnp.ones_like(apart), 2 * sine * jnp.cos(0.5 * apart), 2 * sine * sine], 2)
        # Sum in blocks, so that rounding errors grow only with the number of blocks.
        return found.reshape(*found.shape[:-1], -1, min(found.shape[-1], MOST_PLACES))

    weights = weights.reshape(*weights.shape[:-1], 1, -1, min(weights.shape[-1], MOST_PLACES))
    left, right = weights * functions(a), functions(b)
    products = jnp.einsum("sjami,sjbmi->sjabm", left, right, precision=lax.Precision.HIGHEST)
    return value, log_weight, jnp.sum(products, -1)


class Clusters:
    """What expectation maximisation asks of components that are clusters, which may have one concentration."""

    tied: bool
    of_concentrations: ClassVar[Any]
    """The index of the concentrations in `parameters` (sets, j, ...)."""

    def completed(self, parameters: Array, largest: float, dtype: np.dtype) -> Array:
        """Return `parameters` of a start, with concentrations up to `largest`, which are equal if they are tied."""
        parameters, place = parameters.copy(), self.of_concentrations
        if self.tied:
            parameters[place] = parameters[place].mean(1, keepdims=True)
        parameters[place] = np.minimum(parameters[place], largest)
        return parameters

    def random(self, generator: np.random.Generator, number: int) -> Array | None:
        """Return None, since `rough` finds clusters."""
        return None


class Independent(Clusters):
    """What expectation maximisation asks of components with independent angles; `parameters` are (sets, j, 2, d)."""

    of_concentrations = slice(None), slice(None), 1

    def __init__(self, angles: int, tied: bool) -> None:
        self.empty, self.tied = np.broadcast_to([[0.0], [1.0]], (2, angles)), tied

    def over(self, x: jax.Array, share: jax.Array, log_weights: Array, parameters: Array) -> Explained:
        """Go over the data."""
        found: Explained = over_angles(x, share, log_weights, parameters, tied=self.tied)
        return found

    def apart(self, x: Array, places: Array) -> Array:
        """Return half the squares (t, n) of the chords between samples `x` (n, d) and `places` (t, d)."""
        return chords_of_angles(x, places)

    def refitted(self, parameters: Array, found: Array, largest: float, dtype: np.dtype) -> Array:
        """Return the parameters that explain the data best, from what `over` has found."""
        loc = turns_removed(parameters[:, :, 0] + found[:, :, 0])
        return np.stack([loc, np.minimum(found[:, :, 1], largest)], 2)

    def rough(self, place: Array, x: Array, share: Array) -> Array:
        """Return the parameters of a component at `place` (d,) that explains the samples `x` (n, d)."""
        mean = share @ np.exp(1j * (x - place)) / max(share.sum(), np.finfo(float).tiny)
        k = pairs_fit.rough_concentration(np.clip(1 - np.abs(mean), 1e-12, 1))
        return np.stack([turns_removed(place + np.angle(mean)), np.clip(k, *FIRST_CONCENTRATIONS)])


class Directions(Clusters):
    """What expectation maximisation asks of von Mises-Fisher components; `parameters` are (sets, j, d + 1)."""

    of_concentrations = ..., -1

    def __init__(self, dimension: int, tied: bool) -> None:
        self.empty, self.tied = np.concatenate([np.eye(dimension)[0], [1.0]]), tied

    def over(self, x: jax.Array, share: jax.Array, log_weights: Array, parameters: Array) -> Explained:
        """Go over the data."""
        found: Explained = over_directions(x, share, log_weights, parameters, tied=self.tied)
        return found

    def refitted(self, parameters: Array, found: Array, largest: float, dtype: np.dtype) -> Array:
        """Return the parameters that explain the data best, which `over` has found."""
        return np.concatenate([found[..., :-1], np.minimum(found[..., -1:], largest)], -1)

    def apart(self, x: Array, places: Array) -> Array:
        """Return half the squares (t, n) of the chords between samples `x` (n, d) and `places` (t, d)."""
        apart: Array = np.maximum(1 - places @ x.T, 0)
        return apart

    def rough(self, place: Array, x: Array, share: Array) -> Array:
        """Return the parameters of a component at `place` (d,) that explains the samples `x` (n, d)."""
        mean = share @ x / max(share.sum(), np.finfo(float).tiny)
        r = np.sqrt(mean @ mean)
        k = pairs_fit.rough_concentration(np.clip(1 - r, 1e-12, 1), len(place))
        k = np.clip(k, *(len(place) - 1) * np.array(FIRST_CONCENTRATIONS))
        return np.append(mean / r if r > 0 else place, k)


def angles_of(caller: str, samples: ArrayLike, pairs: bool = False) -> int:
    """Return the length of the last axis of checked samples, which holds the angles of a point."""
    shape: tuple[int, ...] = np.shape(samples)
    if not shape or not shape[-1] or (pairs and shape[-1] != 2):
        raise ValueError(
            f"{caller}: samples has shape {shape}, but its last axis must hold the angles of a point"
            f"{', phi and psi' if pairs else ''}."
        )
    return shape[-1]


def chords_of_angles(x: Array, places: Array) -> Array:
    """Return the sums (t, n) over all angles of 1 - cos of the differences of samples (n, d) and places (t, d)."""
    apart: Array = np.sum(2 * np.sin(0.5 * (x - places[:, None])) ** 2, -1)
    return apart


class Dependent:
    """What expectation maximisation asks of pairs; `parameters` are (sets, j, 21), with the `pairs_fit.cumulants`."""

    empty = np.array([0.0, 0.0, 1.0, 1.0, 0.0, *np.zeros(16)])

    def __init__(self, kind: Kind, caller: str, samples: ArrayLike, tied: bool) -> None:
        if tied:
            raise ValueError(f"{caller}: tied=True is not supported for pairs of angles. Leave it out.")
        angles_of(caller, samples, pairs=True)
        self.kind = kind

    def over(self, x: jax.Array, share: jax.Array, log_weights: Array, parameters: Array) -> Explained:
        """Go over the data."""
        needed = parameters[..., [0, 1, 2, 3, 4, 5 + pairs_fit.LOG_TOTAL]]
        found: Explained = over_pairs(x, share, log_weights, needed, self.kind)
        return found

    def refitted(self, parameters: Array, found: Array, largest: float, dtype: np.dtype) -> Array:
        """Return parameters that explain the data better, after a few Newton steps."""
        flat, steps = parameters.reshape(-1, 21), pairs_fit.FEW_STEPS
        start = np.concatenate([np.zeros((len(flat), 2)), flat[:, 2:5]], 1)
        end = pairs_fit.maximise(self.kind, found.reshape(-1, 3, 3), start, largest, steps, dtype, flat[:, 5:])
        locs = turns_removed(end.at[:, :2] + flat[:, :2])
        return np.concatenate([locs, end.at[:, 2:], end.known], 1).reshape(parameters.shape)

    def apart(self, x: Array, places: Array) -> Array:
        """Return half the squares (t, n) of the chords between samples `x` (n, 2) and `places` (t, 2)."""
        return chords_of_angles(x, places)

    def rough(self, place: Array, x: Array, share: Array) -> Array:
        """Return the parameters (5,) of a component at `place` (2,) that explains the samples `x` (n, 2)."""
        share = share / max(share.sum(), np.finfo(float).tiny)
        products = pairs_fit.products_of(turns_removed(x - place)[None], share[None])
        parameters: Array = pairs_fit.starts(self.kind, products, FIRST_CONCENTRATIONS)[1][0]
        parameters[:2] = turns_removed(parameters[:2] + place)
        return parameters

    def random(self, generator: np.random.Generator, number: int) -> Array | None:
        """Return the parameters (j, 5) of components with random locations and correlations.

        They serve as starts for components that cross or have two modes, which `rough` rarely separates because they
        are not clusters.
        """
        phi, psi, correlation = generator.uniform(-1, 1, (3, number))
        k, r = np.full(number, RANDOM_CONCENTRATION), LARGEST_RANDOM_CORRELATION * correlation
        return np.stack([np.pi * phi, np.pi * psi, k, k, r], 1)

    def completed(self, parameters: Array, largest: float, dtype: np.dtype) -> Array:
        """Append `pairs_fit.cumulants` to parameters (sets, j, 5) of a start, after scaling them down to `largest`."""
        flat = parameters.reshape(-1, 5).copy()
        flat[:, 2:] *= np.minimum(largest / np.maximum(np.abs(flat[:, 2:]).max(1, keepdims=True), largest), 1)
        known = pairs_fit.known_of(self.kind, flat[:, 2:], dtype)
        return np.concatenate([flat, known], 1).reshape(*parameters.shape[:-1], 21)


Family = Independent | Directions | Dependent


class Clustering(NamedTuple):
    """How `Mixture.fit` treats a class of distributions, whose attribute `CLUSTERING` it is."""

    family: Callable[[str, ArrayLike, bool], Family]
    """Returns the family for a caller, checked samples and `tied`, or raises ValueError."""
    parameters: Callable[[Any], Array]
    """Returns the parameters (..., j, ...) in float64, from broadcast distributions with a batch (..., j)."""
    distribution: Callable[[Any, Array], Any]
    """Returns distributions of the class, from the class and the parameters (..., j, ...)."""
    event_ndim: int = 1
    """How many last axes of the samples belong to one of them."""
    directions: bool = False
    """Whether the samples are vectors, of which only the directions count, and not angles."""


class Data(NamedTuple):
    """The data sets on the device, padded, with the family of the components and their largest concentration."""

    family: Family
    x: jax.Array
    """Shape (sets, d, n)."""
    share: jax.Array
    largest: float

    def step(self, at: Terms) -> tuple[Terms, Array]:
        """Return the mixtures after one step, and the mean log likelihood of each data set before it.

        The likelihood never falls, except by rounding. A component that has lost all weight keeps its parameters.
        """
        dtype, number = np.dtype(self.x.dtype), at.log_weights.shape[1]
        rest, sets = power_of_two(number) - number, len(at.parameters)
        log_weights = np.pad(at.log_weights, ((0, 0), (0, rest)), constant_values=-np.inf)
        empty = np.broadcast_to(self.family.empty, (sets, rest, *self.family.empty.shape))
        parameters = np.concatenate([at.parameters, empty], 1)
        explained = self.family.over(self.x, self.share, log_weights.astype(dtype), parameters.astype(dtype))
        value, log_weights, found = (np.asarray(each, np.float64) for each in explained)
        log_weights = log_weights[:, :number]
        refitted = self.family.refitted(at.parameters, found[:, :number], self.largest, dtype)
        some = (log_weights > -np.inf).reshape(*log_weights.shape, *[1] * (refitted.ndim - 2))
        return Terms(log_weights, np.where(some, refitted, at.parameters)), value


class Best:
    """The best mixtures found so far, and their mean log likelihoods."""

    terms: Terms | None = None
    value: Array

    def offer(self, terms: Terms, value: Array) -> None:
        """Replace the mixtures that are worse."""
        if self.terms is None:
            self.terms, self.value = terms, np.full(len(value), -np.inf)
        better = value > self.value
        self.terms, self.value = terms.where(better, self.terms), np.where(better, value, self.value)


def climb(data: Data, best: Best, start: Terms, steps: int, tolerance: float) -> Iterator[None]:
    """Take up to `steps` steps from `start`, until one gains at most `tolerance` in every data set; yield after each.

    The mixtures found are offered to `best`.
    """
    at, value = start, np.full(len(start.log_weights), -np.inf)
    going = np.ones(len(value), bool)
    for _ in range(steps + 1):
        after, now = data.step(at)
        best.offer(at, np.where(going, now, -np.inf))
        with np.errstate(invalid="ignore"):
            going &= now - value > tolerance
        value, at = np.where(going, now, value), after.where(going, at)
        yield
        if not going.any():
            break


def places_of(length: int, number: int) -> int:
    """Return how many samples with `length` numbers serve a start of `number` components; long ones take much time."""
    return min(max(MOST_NUMBERS // length, FOR_EACH * number, MOST_PLACES // 4), MOST_PLACES)


def seed(family: Family, generator: np.random.Generator, number: int, x: Array, share: Array) -> Terms:
    """Return a mixture for one data set, of components fitted to the samples nearest to one of several distant samples.

    The method is k-means++ (D. Arthur and S. Vassilvitskii, SODA 2007). Each sample is drawn with a probability
    proportional to its weight times the square of its chord to the nearest sample drawn before. Of several samples, the
    one that reduces the mean of these squares most is taken; in many dimensions, clusters are not much nearer to
    themselves than to each other.
    """
    most = places_of(x.shape[1], number)
    if len(x) > most:
        chosen = generator.choice(len(x), most, p=share / share.sum())
        x, share = x[chosen], np.full(most, 1 / most)
    # Float32 is enough to compare directions in many dimensions, as in `over_directions`.
    rough = x.astype(np.float32) if x.shape[1] > FEW_COMPONENTS else x
    nearest, owner, places = np.full(len(x), np.inf), np.zeros(len(x), int), []
    for j in range(number):
        chance = share * (nearest if j else 1)
        chance = chance if chance.sum() > 0 else share
        tried = generator.choice(len(x), min(number, MOST_TRIED), p=chance / chance.sum())
        apart = np.minimum(family.apart(rough, rough[tried]), nearest)
        best = np.argmin(apart @ share)
        places.append(x[tried[best]])
        owner, nearest = np.where(apart[best] < nearest, j, owner), apart[best]
    owned = [owner == j for j in range(number)]
    parameters = np.stack([family.rough(place, x[own], share[own]) for place, own in zip(places, owned, strict=True)])
    return Terms(np.log(np.maximum([share[own].sum() for own in owned], 1e-3)), parameters)


def seeds(data: Data, host: HostSets, generator: np.random.Generator, number: int, odd: bool) -> Terms:
    """Return a start for each data set; an `odd` one has random components where `seed` may not find them."""
    found = []
    for x, share in zip(host.x, host.share, strict=True):
        others = data.family.random(generator, number) if odd else None
        equal = np.full(number, -np.log(number))
        start = seed(data.family, generator, number, x, share) if others is None else Terms(equal, others)
        found.append(start)
    log_weights, parameters = map(np.stack, zip(*found, strict=True))
    return Terms(log_weights, data.family.completed(parameters, data.largest, np.dtype(data.x.dtype)))


def fit(
    data: Data,
    few: Data,
    first: Callable[[int], Terms],
    starts: int,
    steps: int,
    tolerance: float,
    best_of: Callable[[Terms], Any],
    progress: Callable[[Iterator[None]], Iterable[None]],
) -> Any:
    """Fit mixtures from the best of several `starts` ``first(i)``, or with 0 from ``first(0)``; return its `best_of`.

    The starts are compared on `few`, which may be `data`. `progress` passes each step on. KeyboardInterrupt gets the
    attribute `best` with the best result so far, or None.
    """
    trial = Best()
    best = trial if few is data else Best()

    def turns() -> Iterator[None]:
        for i in range(starts):
            yield from climb(few, trial, first(i), TRIAL_STEPS, tolerance)
        yield from climb(data, best, trial.terms or first(0), steps, tolerance)

    try:
        for _ in progress(turns()):
            pass
    except KeyboardInterrupt as interrupt:
        found = best.terms or trial.terms
        interrupt.best = found and best_of(found)  # type: ignore[attr-defined]
        raise
    return best.terms and best_of(best.terms)
