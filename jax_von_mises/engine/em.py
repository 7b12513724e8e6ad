"""Fit mixtures by expectation maximisation, from the best of several starts.

The loop runs on the host. Each turn calls one compiled program that goes over the data, and updates the parameters. The
data and the components are padded with weights of 0, so one program serves all sizes up to the next power of two.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special
from jax.typing import ArrayLike

from jax_von_mises.engine.samples import Array, HostSets, kept, power_of_two, total

# Steps from each start before the best one continues.
TRIAL_STEPS = 15
# Range of the components' initial concentrations, which keeps a component from starting at a single point.
FIRST_CONCENTRATIONS = 0.5, 50.0
# Starts are found and compared on at most this many samples of a data set, and on fewer if they have more numbers than
# the second, but on so many for each component.
MOST_PLACES, MOST_NUMBERS, FOR_EACH = 2**14, 2**19, 128
# A component of a start is placed at one of as many samples as there are components, but at most this number.
MOST_TRIED = 32
# Data sets with up to the first number of samples in all, which have many poor local maxima, have so many times as many
# starts. The last number of copies are fitted at once, which takes about as long as one.
FEW_SAMPLES, MORE_STARTS, COPIES = 128, 8, 16
# Above this dimension, float32 is enough to compare directions, and a product of matrices computes 1 - cos of the
# angles between them, with a rounding error of 1e-7.
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

    def repeated(self, number: int) -> "Terms":
        """Return `number` copies of these mixtures."""
        return Terms(*(np.concatenate([each] * number) for each in self))


# What a program over the data returns: the mean log likelihood of each data set, the logarithm of the weight of each
# component, and what the model needs for new parameters.
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


def pooled(log_weight: jax.Array, each: jax.Array, held: jax.Array) -> jax.Array:
    """Return the weighted mean of the components of a data set, along the second axis, which keeps the length 1.

    Components whose concentration is `held`, of the shape of `each`, do not count.
    """
    weight = jnp.exp(log_weight).reshape(*log_weight.shape, *[1] * (each.ndim - 2))
    weight = jnp.where(held, 0, weight)
    return jnp.sum(weight * each, 1, keepdims=True) / jnp.sum(weight, 1, keepdims=True)


class Clusters:
    """What expectation maximisation asks of components that are clusters, which may have one concentration."""

    tied: bool
    of_concentrations: ClassVar[Any]
    """The index of the concentrations in `parameters` (sets, j, ...)."""
    of_places: ClassVar[Any]
    """The index of the locations or mean directions."""

    def held(self, caller: str, parameters: Array, dtype: np.dtype) -> Array:
        """Return checked `parameters` (sets, j, ...) that are held, NaN where they are estimated."""
        if np.any(parameters[self.of_concentrations] < 0):
            raise ValueError(f"{caller}: fixed holds a negative concentration, but concentrations must be 0 or more.")
        return parameters

    def around(self, held: Array) -> tuple[Array, Array, Array]:
        """Return the places (j, d) that are `held` (j, ...), which of them are clusters, and which a start places.

        A component whose held concentration is below the first ones is a background, no cluster.
        """
        sets = held[None]
        flat = len(held), -1
        k, places = (sets[index].reshape(flat) for index in (self.of_concentrations, self.of_places))
        known, background = ~np.isnan(places).any(1), (k < FIRST_CONCENTRATIONS[0]).all(1)
        return places, known & ~background, ~known & ~background

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


class Model(Protocol):
    """What expectation maximisation asks of components of a class; `parameters` are (sets, j, ...)."""

    empty: Array
    """Parameters of a component, which fill up their number."""
    of_concentrations: ClassVar[Any]
    """The index in `parameters` of the numbers that do not exceed the largest concentration in magnitude."""

    def over(self, x: jax.Array, share: jax.Array, log_weights: Array, parameters: Array, held: Array) -> Explained:
        """Go over the data; `held` says which of the parameters are not estimated."""

    def held(self, caller: str, parameters: Array, dtype: np.dtype) -> Array:
        """Return checked parameters that are held, NaN where they are estimated, from those of `fixed`."""

    def around(self, held: Array) -> tuple[Array, Array, Array]:
        """Return the places (j, d) that are `held` (j, ...), which of them are clusters, and which a start places."""

    def apart(self, x: Array, places: Array) -> Array:
        """Return half the squares (t, n) of the chords between samples `x` (n, d) and `places` (t, d)."""

    def refitted(self, parameters: Array, found: Array, largest: float, dtype: np.dtype) -> Array:
        """Return parameters that explain the data better, from what `over` has found."""

    def rough(self, place: Array, x: Array, share: Array) -> Array:
        """Return the parameters of a component at `place` (d,) that explains the samples `x` (n, d)."""

    def random(self, generator: np.random.Generator, number: int) -> Array | None:
        """Return the parameters (j, ...) of random components, or None if `rough` finds all."""

    def completed(self, parameters: Array, largest: float, dtype: np.dtype) -> Array:
        """Return the parameters of a start as `over` takes them."""


class Clustering(NamedTuple):
    """How `Mixture.fit` treats a class of distributions, whose attribute `CLUSTERING` it is."""

    model: Callable[[str, ArrayLike, bool], Model]
    """Returns the model for a caller, checked samples and `tied`, or raises ValueError."""
    parameters: Callable[[Any], Array]
    """Returns the parameters (..., j, ...) in float64, from broadcast distributions with a batch (..., j)."""
    distribution: Callable[[Any, Array], Any]
    """Returns distributions of the class, from the class and the parameters (..., j, ...)."""
    estimate: Any
    """The named tuple of the standard errors of the parameters, in the order of the leaves of a distribution."""
    event_ndim: int = 1
    """How many last axes of the samples belong to one of them."""
    directions: bool = False
    """Whether the samples are vectors, of which only the directions count, and not angles."""


class Data(NamedTuple):
    """The data sets on the device, padded, with the model of the components and their largest concentration."""

    model: Model
    x: jax.Array
    """Shape (sets, d, n)."""
    share: jax.Array
    largest: float
    held: Terms | None = None
    """Weights and parameters that are not estimated, of the shapes of the mixtures; NaN elsewhere."""
    copies: int = 1
    """How many times the data sets are repeated, all of them before the first one comes again."""

    def best_copies(self, best: "Best") -> Terms | None:
        """Return the best mixture of the copies of each data set, or None if no step was taken."""
        if best.terms is None or self.copies == 1:
            return best.terms
        value = best.value.reshape(self.copies, -1)
        sets = value.shape[1]
        chosen = np.argmax(np.where(np.isnan(value), -np.inf, value), 0) * sets + np.arange(sets)
        return Terms(*(each[chosen] for each in best.terms))

    def holding(self, terms: Terms) -> Terms:
        """Return the mixtures with the held weights and parameters; the other weights share what is left."""
        if self.held is None:
            return terms
        log_weights, parameters = self.held
        free = np.isnan(log_weights)
        left = np.maximum(1 - np.sum(np.exp(np.where(free, -np.inf, log_weights)), 1, keepdims=True), 0)
        others = np.where(free, terms.log_weights, -np.inf)
        top = np.maximum(np.max(others, 1, keepdims=True), -np.finfo(float).max)
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = others - top + np.log(left) - np.log(np.sum(np.exp(others - top), 1, keepdims=True))
        scaled = np.where(others == -np.inf, -np.inf, scaled)
        return Terms(np.where(free, scaled, log_weights), np.where(np.isnan(parameters), terms.parameters, parameters))

    def step(self, at: Terms) -> tuple[Terms, Array]:
        """Return the mixtures after one step, and the mean log likelihood of each data set before it.

        The likelihood never falls, except by rounding. A component that has lost all weight keeps its parameters.
        """
        dtype, number = np.dtype(self.x.dtype), at.log_weights.shape[1]
        rest, sets = power_of_two(number) - number, len(at.parameters)
        log_weights = np.pad(at.log_weights, ((0, 0), (0, rest)), constant_values=-np.inf)
        empty = np.broadcast_to(self.model.empty, (sets, rest, *self.model.empty.shape))
        parameters = np.concatenate([at.parameters, empty], 1)
        held = np.zeros(parameters.shape, bool)
        if self.held is not None:
            held[:, :number] = ~np.isnan(self.held.parameters)
        explained = self.model.over(self.x, self.share, log_weights.astype(dtype), parameters.astype(dtype), held)
        value, log_weights, found = (np.asarray(each, np.float64) for each in explained)
        log_weights = log_weights[:, :number]
        refitted = self.model.refitted(at.parameters, found[:, :number], self.largest, dtype)
        some = (log_weights > -np.inf).reshape(*log_weights.shape, *[1] * (refitted.ndim - 2))
        return self.holding(Terms(log_weights, np.where(some, refitted, at.parameters))), value


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


def copies_of(model: Model, sets: int, size: int) -> int:
    """Return how many times data sets of `size` samples are fitted at once; each copy of pairs takes its time."""
    return COPIES if isinstance(model, Clusters) and sets * power_of_two(size, 128) <= FEW_SAMPLES else 1


def seeded_mixture(
    model: Model,
    generator: np.random.Generator,
    number: int,
    x: Array,
    share: Array,
    most_tried: int = MOST_TRIED,
    around: Array | tuple[()] = (),
) -> Terms:
    """Return a mixture for one data set, of components fitted to the samples nearest to one of several distant samples.

    The samples are distant from the places `around`, too, of which the components come after the others.

    The method is k-means++ (D. Arthur and S. Vassilvitskii, SODA 2007). Each sample is drawn with a probability
    proportional to its weight times the square of its chord to the nearest sample drawn before. Of several samples, the
    one that reduces the mean of these squares most is taken, of `most_tried` at most; in many dimensions, clusters are
    not much nearer to themselves than to each other.
    """
    most = places_of(x.shape[1], number)
    if len(x) > most:
        chosen = generator.choice(len(x), most, p=share / share.sum())
        x, share = x[chosen], np.full(most, 1 / most)
    # Float32 is enough to compare directions in many dimensions, as in `sphere.clusters`.
    rough = x.astype(np.float32) if x.shape[1] > FEW_COMPONENTS else x
    nearest, owner, places = np.full(len(x), np.inf), np.zeros(len(x), int), []
    if len(around):
        apart = model.apart(rough, np.asarray(around, rough.dtype))
        nearest, owner = apart.min(0), number + apart.argmin(0)
    for j in range(number):
        chance = share * (nearest if j or len(around) else 1)
        chance = chance if chance.sum() > 0 else share
        tried = generator.choice(len(x), min(number, most_tried), p=chance / chance.sum())
        apart = np.minimum(model.apart(rough, rough[tried]), nearest)
        best = np.argmin(apart @ share)
        places.append(x[tried[best]])
        owner, nearest = np.where(apart[best] < nearest, j, owner), apart[best]
    places += list(around)
    owned = [owner == j for j in range(len(places))]
    parameters = np.stack([model.rough(place, x[own], share[own]) for place, own in zip(places, owned, strict=True)])
    return Terms(np.log(np.maximum([share[own].sum() for own in owned], 1e-3)), parameters)


def seeds(data: Data, host: HostSets, generator: np.random.Generator, number: int, odd: bool) -> Terms:
    """Return a start for each data set; an `odd` one has random components where `seeded_mixture` may not find them.

    The starts of copies after the first are spread more widely, and so also find components of single samples.
    """
    found, sets = [], len(host.x) // data.copies
    for i, (x, share) in enumerate(zip(host.x, host.share, strict=True)):
        others, tried = data.model.random(generator, number) if odd else None, MOST_TRIED if i < sets else 1
        equal = np.full(number, -np.log(number))
        if others is not None:
            found.append(Terms(equal, others))
        elif data.held is None:
            found.append(seeded_mixture(data.model, generator, number, x, share, tried))
        else:
            places, clusters, free = data.model.around(data.held.parameters[i])
            seeded = seeded_mixture(data.model, generator, max(free.sum(), 1), x, share, tried, places[clusters])
            order = np.zeros(number, int)
            order[free] = np.arange(free.sum())
            order[clusters] = max(free.sum(), 1) + np.arange(clusters.sum())
            found.append(Terms(equal, seeded.parameters[order]))
    log_weights, parameters = map(np.stack, zip(*found, strict=True))
    parameters = data.model.completed(parameters, data.largest, np.dtype(data.x.dtype))
    return data.holding(Terms(log_weights, parameters))


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

    def found() -> Any:
        terms = data.best_copies(best) or trial.terms
        return terms and best_of(terms)

    try:
        for _ in progress(turns()):
            pass
    except KeyboardInterrupt as interrupt:
        interrupt.best = found()  # type: ignore[attr-defined]
        raise
    return found()
