"""Check the weighted samples of a fit, and arrange them as data sets."""

import contextlib
import dataclasses
import functools
import math
import operator
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.compiler import xla
from jax_von_mises.numerics.circle import LARGEST_LOC
from jax_von_mises.numerics.elementary import integers_of, nan_unless

Array = np.ndarray[Any, np.dtype[Any]]
# The first angles look like another unit than radians if a quarter is beyond a turn and all are multiples of a step
# (whole degrees, hours, days, or tenths), or if most are beyond two turns, and in an order that is not that of an
# unwrapped phase, which moves by less than half a turn at a time; in both cases not beyond ten turns in degrees.
FIRST, STEP, ONE_TURN, TWO_TURNS, TEN_TURNS = 1000, 0.05, 6.5, 4 * np.pi, 3600.0
# Number of summands in a block.
SUM_BLOCK = 2**14
# Data sets of up to this many samples in the host's memory are padded to a power of two, but at least to the first.
PADDED = 128, 2**20
# A message names as many samples as this.
NAMED = 5


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("samples", "weights", "known", "size"),
    meta_fields=("axes", "event_ndim", "dtype"),
)
@dataclasses.dataclass(frozen=True)
class WeightedSets:
    """The checked samples and weights of a fit."""

    samples: Any
    weights: Any
    """None for equal weights, otherwise an array that broadcasts to `batch`."""
    known: Any
    """A known parameter, of the shape of one sample for each set, or None."""
    size: Any
    """The number of observations, which broadcasts to `kept`, or None for the sum of the weights."""
    axes: tuple[int, ...]
    """Axes of `batch` to estimate over; the others index separate data sets."""
    event_ndim: int
    """Number of last axes that hold the components of one sample."""
    dtype: np.dtype
    """Dtype of the estimates."""

    @classmethod
    def of(
        cls,
        caller: str,
        one: str,
        samples: ArrayLike,
        weights: ArrayLike | None,
        axis: int | Sequence[int] | None,
        event_ndim: int = 0,
        size: ArrayLike | None = None,
        **known: ArrayLike | None,
    ) -> "WeightedSets":
        """Check the arguments of a fit, except for the axes of an event; messages call a sample `one`.

        Weights with a single axis belong to a single `axis`. One parameter may be given as `known`.
        """
        if isinstance(weights, jax.Array | np.ndarray) and weights.dtype == bool:
            weights = weights.astype(np.float32)  # True counts as one observation
        optional = {name: x for name, x in {"weights": weights, **known}.items() if x is not None}
        arrays, dtype = arguments.parameters(caller, None, samples=samples, **optional)
        sets = cls(arrays["samples"], arrays.get("weights"), None, None, (), event_ndim, dtype)
        batch = sets.batch
        axes = axes_of(caller, axis, len(batch))
        aligned: Any = sets.weights
        if aligned is not None:
            if np.ndim(aligned) == 1 and len(axes) == 1 and len(batch) > 1:
                aligned = np.asarray(aligned) if on_host(aligned) else aligned  # NumPy compiles nothing
                aligned = aligned.reshape(tuple(-1 if i == axes[0] else 1 for i in range(len(batch))))
            if not arguments.broadcasts(np.shape(aligned), batch):
                raise ValueError(
                    f"{caller}: weights of shape {np.shape(sets.weights)} do not broadcast to samples of shape {batch}"
                    f"{', without their last axis' if event_ndim else ''}. Give one weight for each {one}, or one for "
                    "each position along a single axis."
                )
        sets = dataclasses.replace(sets, weights=aligned, axes=axes)
        if size is not None:
            sets = dataclasses.replace(sets, size=arguments.parameter(caller, "size", size))
            if not arguments.broadcasts(np.shape(sets.size), sets.kept):
                raise ValueError(
                    f"{caller}: size of shape {np.shape(sets.size)} does not broadcast to the shape of the estimate, "
                    f"{sets.kept}. Give one number of observations, or one for each data set."
                )
        for name in known.keys() & arrays.keys():
            shape, wanted = np.shape(arrays[name]), sets.kept + np.shape(sets.samples)[len(batch) :]
            if not arguments.broadcasts(shape, wanted):
                raise ValueError(
                    f"{caller}: {name} of shape {shape} does not broadcast to the shape of the estimate, {wanted}. "
                    f"Give one {one}, or one for each data set."
                )
            sets = dataclasses.replace(sets, known=arrays[name])
        return sets

    @property
    def batch(self) -> tuple[int, ...]:
        """Shape of the samples without the axes of one sample."""
        shape: tuple[int, ...] = np.shape(self.samples)
        return shape[: len(shape) - self.event_ndim]

    @property
    def kept(self) -> tuple[int, ...]:
        """Shape of the data sets."""
        return tuple(size for i, size in enumerate(self.batch) if i not in self.axes)

    def padded(self) -> "WeightedSets":
        """Return the same data sets, padded with samples of weight 0 to a power of two if the host has the arrays.

        One program then serves all numbers of samples up to that power.
        """
        batch, kept = self.batch, len(self.kept)
        number = math.prod(batch[i] for i in self.axes)
        # Many small data sets would become many times as large.
        if not 0 < max(number, PADDED[0]) * math.prod(self.kept) <= PADDED[1] or not all(
            x is None or on_host(x) for x in (self.samples, self.weights)
        ):
            return self
        compute = arguments.compute_dtype(self.dtype)
        order = [i for i in range(len(batch)) if i not in self.axes] + list(self.axes)
        rest = power_of_two(number, PADDED[0]) - number

        def rows(values: Any) -> Any:
            with np.errstate(over="ignore"):
                values = np.asarray(values, compute)
            event = values.shape[len(batch) :]
            values = values.transpose(*order, *range(len(batch), values.ndim)).reshape(*self.kept, number, *event)
            # `device_put` is an explicit transfer, which `jax.transfer_guard` allows.
            return jax.device_put(np.pad(values, [(0, 0)] * kept + [(0, rest)] + [(0, 0)] * len(event)))

        weights = np.ones((), compute) if self.weights is None else np.asarray(self.weights)
        weights = rows(np.broadcast_to(weights, batch))
        return dataclasses.replace(self, samples=rows(self.samples), weights=weights, axes=(kept,))

    def rows(self) -> tuple[jax.Array, jax.Array]:
        """Return samples of shape event + `kept` + (n,), and their shares of the weights, which broadcast to the rest.

        The shares are NaN for a negative or infinite weight, and if no weight is positive. An empty data set becomes a
        single NaN. Where the weight is 0, other numbers replace those that may be no angle or no direction.
        """
        compute = arguments.compute_dtype(self.dtype)
        x, batch, front = jnp.asarray(self.samples, compute), self.batch, range(self.event_ndim)
        size, event = math.prod(batch[i] for i in self.axes), np.shape(x)[len(batch) :]
        weights = None
        if self.weights is not None:
            weights = jnp.broadcast_to(jnp.asarray(self.weights, compute), batch)
            finite = jnp.abs(x) <= LARGEST_LOC[compute.name]
            some = jnp.any(integers_of(x) << 1 != 0, -1, keepdims=True) if event else True
            usable = jnp.all(finite, -1, keepdims=True) & some if event else finite
            x = jnp.where(usable | (weights != 0).reshape(usable.shape), x, 1)
        x = jnp.moveaxis(x, range(len(batch), x.ndim), front)
        if not size:
            # The barrier keeps XLA from simplifying a program of constants, which takes it 50 attempts and a warning.
            nan = lax.optimization_barrier(jnp.full((*self.kept, 1), jnp.nan, compute))
            return jnp.broadcast_to(nan, event + nan.shape), nan
        x = merged(x, tuple(a + self.event_ndim for a in self.axes))
        if weights is None:
            return x, jnp.full((1,) * len(self.kept) + (size,), 1 / size, compute)
        return x, shares(merged(weights, self.axes))

    def observations(self) -> jax.Array:
        """Return the number of observations of each data set: `size` if given, otherwise the sum of the weights."""
        compute = arguments.compute_dtype(self.dtype)
        if self.size is not None:
            size = jnp.broadcast_to(jnp.asarray(self.size, compute), self.kept)
            return nan_unless(size, size > 0)
        if self.weights is None:
            return jnp.full(self.kept, math.prod(self.batch[i] for i in self.axes), compute)
        weights = jnp.broadcast_to(jnp.asarray(self.weights, compute), self.batch)
        return total(merged(weights, self.axes))

    def place(self) -> jax.Array:
        """Return `known` in the shape of one sample for each set."""
        shape = self.kept + np.shape(self.samples)[len(self.batch) :]
        return jnp.broadcast_to(jnp.asarray(self.known, arguments.compute_dtype(self.dtype)), shape)


def on_host(array: Any) -> bool:
    """Return whether the values of an array are known, and in the host's memory."""
    if not isinstance(array, jax.Array):
        return True
    known = not isinstance(array, jax.core.Tracer) and array.is_fully_addressable
    return known and array.devices() == {jax.local_devices()[0]} and jax.local_devices()[0].platform == "cpu"


def warn_of_degrees(caller: str, angles: Any) -> None:
    """Warn once for each place of a call if checked angles, known and in the host's memory, look like degrees."""
    if not on_host(angles):
        return
    first = np.ravel(np.asarray(angles))[:FIRST].astype(np.float64)
    first = first[np.isfinite(first)]
    moves, first = np.diff(first), np.abs(first)
    if not first.size or np.max(first) <= ONE_TURN:
        return
    steps, one_way = first / STEP, np.all(moves >= 0) or np.all(moves <= 0)
    coarse = np.max(first) <= TEN_TURNS and np.all(np.abs(steps - np.rint(steps)) <= 2e-7 * steps)
    if coarse and np.mean(first > ONE_TURN) > 0.25:
        why = f"they go beyond one turn, up to {np.max(first):g}, and are whole or rounded numbers"
    elif np.mean((first > TWO_TURNS) & (first <= TEN_TURNS)) > 0.5 and (one_way or np.any(np.abs(moves) > np.pi)):
        why = "most are beyond two turns"
    else:
        return
    warnings.warn(
        f"{caller}: the angles look like degrees or hours, since {why}. Convert degrees with jnp.deg2rad, and other "
        "units with a factor of 2 pi over their number in a turn. If they are radians, ignore this: "
        "warnings.filterwarnings('ignore', '.*look like degrees')",
        UserWarning,
        stacklevel=depth_of_caller(),
    )


def depth_of_caller() -> int:
    """Return the `stacklevel` of the nearest frame outside the package, for a warning of the calling function."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("jax_von_mises", "contextlib"):
        depth, frame = depth + 1, frame.f_back
    return depth


@contextlib.contextmanager
def loop_on_host(caller: str) -> Iterator[None]:
    """Raise TypeError instead of JAX's errors if a fit that is a loop on the host is traced."""
    try:
        yield
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        raise TypeError(
            f"{caller}: this fit is a loop on the host, so it cannot run inside `jit`, `vmap` or `grad`. Call it "
            "outside. To fit several data sets at once, put them along further axes of the samples, and name the "
            "others with `axis`."
        ) from error


@dataclasses.dataclass(frozen=True)
class HostSets:
    """The samples and weights of `WeightedSets` as NumPy arrays, with one data set in each row."""

    x: Array
    """Samples in float64, of shape (sets, n, event); 0 in data sets that are not `good`."""
    share: Array
    """Weights that sum to 1, of shape (sets, n)."""
    good: Array
    """Whether a set has samples, weights of 0 or more that are finite, and a positive weight."""
    dtype: np.dtype
    """Dtype of computations on the device."""

    @classmethod
    def of(cls, caller: str, sets: WeightedSets, directions: bool = False) -> "HostSets":
        """Return the data sets; with `directions`, the samples are vectors, which are divided by their lengths.

        A sample of positive weight that is no angle or no direction raises ValueError.
        """
        batch, axes, dtype = sets.batch, sets.axes, arguments.compute_dtype(sets.dtype)
        front = [i for i in range(len(batch)) if i not in axes]
        shape = math.prod(sets.kept), math.prod(batch[i] for i in axes)
        x = np.asarray(sets.samples, np.float64)
        weights = np.ones(()) if sets.weights is None else np.asarray(sets.weights, np.float64)
        weights = np.broadcast_to(weights, batch)
        event = x.shape[len(batch) :]
        if directions:
            x = unit_vectors(x)
            usable = np.isfinite(x.sum(-1))
        else:
            usable = np.all(np.abs(x) <= LARGEST_LOC[dtype.name], tuple(range(len(batch), x.ndim)))
        if not np.all(usable):
            refuse_unusable(caller, sets.samples, ~usable & (weights > 0), directions)
            x = np.where(usable.reshape(*batch, *[1] * len(event)), x, 0)
        x = x.transpose(*front, *axes, *range(len(batch), x.ndim)).reshape(*shape, math.prod(event))
        share = weights.transpose(*front, *axes).reshape(shape)
        if not shape[1]:  # a sample with the weight 0, so that the set is not good
            x, share = np.zeros((shape[0], 1, x.shape[2])), np.zeros((shape[0], 1))
        largest = share.max(1)
        good = (share >= 0).all(1) & (largest > 0) & (largest < np.inf)
        share = np.where(good[:, None], share, 1) / np.where(good, largest, 1)[:, None]
        share = share / np.maximum(share.sum(1, keepdims=True), 1)
        return cls(x, share, good, dtype)

    def some(self, number: int, generator: np.random.Generator) -> "HostSets":
        """Return `number` samples of each set, drawn with their weights as probabilities."""
        chosen = [generator.choice(len(share), number, p=share / share.sum()) for share in self.share]
        x = np.stack([x[places] for x, places in zip(self.x, chosen, strict=True)])
        return dataclasses.replace(self, x=x, share=np.full(x.shape[:2], 1 / number))

    def repeated(self, number: int) -> "HostSets":
        """Return `number` copies of the data sets."""
        x, share, good = (np.concatenate([each] * number) for each in (self.x, self.share, self.good))
        return HostSets(x, share, good, self.dtype)

    def on_device(self) -> tuple[jax.Array, jax.Array]:
        """Return samples (sets, event, n) and shares (sets, n) on the device.

        They are padded to a power of two, with shares of 0.
        """
        rest = power_of_two(self.share.shape[1], 128) - self.share.shape[1]
        x = np.pad(np.swapaxes(self.x.astype(self.dtype), 1, 2), ((0, 0), (0, 0), (0, rest)))
        share = np.pad(self.share.astype(self.dtype), ((0, 0), (0, rest)))
        return jax.device_put(x), jax.device_put(share)


def unit_vectors(x: Array) -> Array:
    """Return float64 vectors divided by their lengths; NaN for zero vectors and those that are not finite."""
    with np.errstate(all="ignore"):
        square = np.einsum("...i,...i->...", x, x)
        extreme = ~((square > 1e-280) & (square < np.inf))
        if np.any(extreme):
            x = x / np.where(extreme, np.max(np.abs(x), -1), 1)[..., None]
            square = np.einsum("...i,...i->...", x, x)
        unit: np.ndarray[Any, np.dtype[Any]] = x / np.sqrt(square)[..., None]
        return unit


def refuse_unusable(caller: str, samples: Any, unusable: Array, directions: bool) -> None:
    """Raise ValueError that names the first samples that are `unusable`, if any is."""
    places = np.argwhere(unusable)
    if not len(places):
        return
    named = ", ".join(str(place.tolist()) if len(place) != 1 else str(place[0]) for place in places[:NAMED])
    allowed = "finite, and not a zero vector" if directions else "finite, and at most 2^24 rad (2^53 in float64)"
    raise ValueError(
        f"{caller}: {len(places)} of {unusable.size} samples cannot be used, since a sample must be {allowed}. They "
        f"have the indices {named}{', ...' if len(places) > NAMED else ''}; the first is "
        f"{arguments.safe_repr(np.asarray(samples)[tuple(places[0])].tolist())}. Drop them, or give them the weight 0."
    )


def power_of_two(size: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least `size` and `least`."""
    return 1 << (max(size, least) - 1).bit_length()


def check_size(caller: str, size: ArrayLike | None, bias_correction: bool) -> None:
    """Refuse a number of observations that would have no effect."""
    if size is not None and not bias_correction:
        raise ValueError(
            f"{caller}: size={arguments.safe_repr(size)} has no effect without bias_correction=True. Leave it out, or "
            "give it to standard_errors."
        )


def axes_of(caller: str, axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return the axes to sum over, as a sorted tuple of non-negative indices."""
    if axis is None:
        return tuple(range(ndim))
    try:
        axes = tuple(operator.index(a) for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))
    except TypeError as error:
        raise TypeError(
            f"{caller}: axis={arguments.safe_repr(axis)} must be an integer, a tuple of integers or None."
        ) from error
    if any(not -ndim <= a < ndim for a in axes):
        raise ValueError(
            f"{caller}: axis={arguments.safe_repr(axis)} is out of range for samples with {ndim} "
            f"dimension{'s' * (ndim != 1)}."
        )
    axes = tuple(sorted(a % ndim for a in axes))
    if len(set(axes)) < len(axes):
        raise ValueError(f"{caller}: axis={arguments.safe_repr(axis)} names an axis twice.")
    return axes


def merged(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Return `x` with `axes` merged into one last axis."""
    x = jnp.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim))
    kept = x.shape[: x.ndim - len(axes)]
    return x.reshape(*kept, math.prod(x.shape[len(kept) :]))


def shares(weights: jax.Array) -> jax.Array:
    """Return weights divided by their sum over the last axis.

    The shares are NaN for a negative or infinite weight, and if no weight is positive.
    """
    weights = nan_unless(weights, weights >= 0)
    # Scale by a power of two where the sum may overflow or underflow.
    largest = jnp.max(weights, -1, keepdims=True, initial=0)
    scaled = weights * jnp.where(largest > 2.0**64, 2.0**-64, jnp.where(largest < 2.0**-64, 2.0**64, 1))
    return scaled / total(scaled)[..., None]


def total(values: jax.Array) -> jax.Array:
    """Return the sum over the last axis, in blocks, so that rounding errors grow only with the number of blocks."""
    size = values.shape[-1]
    if size > SUM_BLOCK:
        pad = [(0, 0)] * (values.ndim - 1) + [(0, -size % SUM_BLOCK)]
        return total(total(jnp.pad(values, pad).reshape(*values.shape[:-1], -1, SUM_BLOCK)))
    return xla.sum_last_axis(values)


def kept(good: Array, new: Array, old: Array) -> Array:
    """Return `new` for the data sets that are `good`, and `old` for the others."""
    return np.where(good.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def rough_concentration(versine: Array, dimension: int = 2) -> Array:
    """Return the concentration at which the mean of 1 - cos is `versine`; on the circle, the error is below 7 %.

    The formula is equation 4.4 of Banerjee et al., J. Mach. Learn. Res. 6, 2005.
    """
    r = 1 - versine
    rough: Array = r * (dimension - 1 + versine * (1 + r)) / (versine * (1 + r))
    return rough


def turns_removed(x: Array) -> Array:
    """Return angles minus their full turns, in [-pi, pi]."""
    return x - 2 * np.pi * np.rint(x / (2 * np.pi))
