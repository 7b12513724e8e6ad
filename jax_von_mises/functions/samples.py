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
from jax_von_mises.numerics import xla
from jax_von_mises.numerics.elementary import nan_unless

# Angles look like degrees if most of the first ones are beyond two turns, and within ten turns in degrees.
TWO_TURNS, TEN_TURNS, FIRST = 4 * np.pi, 3600.0, 1000
# Number of summands in a block.
SUM_BLOCK = 2**14


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("samples", "weights", "known"),
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
        **known: ArrayLike | None,
    ) -> "WeightedSets":
        """Check the arguments of a fit, except for the axes of an event; messages call a sample `one`.

        The weights of angles may also have a single axis, that of `axis`. One parameter may be given as `known`.
        """
        optional = {name: x for name, x in {"weights": weights, **known}.items() if x is not None}
        arrays, dtype = arguments.parameters(caller, None, samples=samples, **optional)
        sets = cls(arrays["samples"], arrays.get("weights"), None, (), event_ndim, dtype)
        batch = sets.batch
        axes = axes_of(caller, axis, len(batch))
        weights = sets.weights
        if weights is not None:
            angles = one == "angle"
            if angles and np.ndim(weights) == 1 and len(axes) == 1 and len(batch) > 1:
                weights = jnp.reshape(weights, tuple(-1 if i == axes[0] else 1 for i in range(len(batch))))
            if not arguments.broadcasts(np.shape(weights), batch):
                raise ValueError(
                    f"{caller}: weights of shape {np.shape(weights)} do not broadcast to samples of shape {batch}"
                    f"{', without their last axis' if event_ndim else ''}. Give one weight for each {one}"
                    f"{', or one for each position along a single axis' if angles else ''}."
                )
        sets = dataclasses.replace(sets, weights=weights, axes=axes)
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

    def rows(self) -> tuple[jax.Array, jax.Array]:
        """Return samples of shape event + `kept` + (n,), and their shares of the weights, which broadcast to the rest.

        The shares are NaN for a negative or infinite weight, and if no weight is positive. An empty data set becomes a
        single NaN.
        """
        compute = arguments.compute_dtype(self.dtype)
        x, batch, front = jnp.asarray(self.samples, compute), self.batch, range(self.event_ndim)
        size, event = math.prod(batch[i] for i in self.axes), np.shape(x)[len(batch) :]
        x = jnp.moveaxis(x, range(len(batch), x.ndim), front)
        if not size:
            # The barrier keeps XLA from simplifying a program of constants, which takes it 50 attempts and a warning.
            nan = lax.optimization_barrier(jnp.full((*self.kept, 1), jnp.nan, compute))
            return jnp.broadcast_to(nan, event + nan.shape), nan
        x = merged(x, tuple(a + self.event_ndim for a in self.axes))
        if self.weights is None:
            return x, jnp.full((1,) * len(self.kept) + (size,), 1 / size, compute)
        return x, shares(merged(jnp.broadcast_to(jnp.asarray(self.weights, compute), batch), self.axes))

    def place(self) -> jax.Array:
        """Return `known` in the shape of one sample for each set."""
        shape = self.kept + np.shape(self.samples)[len(self.batch) :]
        return jnp.broadcast_to(jnp.asarray(self.known, arguments.compute_dtype(self.dtype)), shape)


def warn_of_degrees(caller: str, angles: Any) -> None:
    """Warn once for each place of a call if checked angles, known and in the host's memory, look like degrees."""
    if isinstance(angles, jax.Array):
        known = not isinstance(angles, jax.core.Tracer) and angles.is_fully_addressable
        if not known or any(device.platform != "cpu" for device in angles.devices()):
            return
    first = np.abs(np.ravel(np.asarray(angles))[:FIRST].astype(np.float64))
    if first.size and np.mean((first > TWO_TURNS) & (first <= TEN_TURNS)) > 0.5:
        warnings.warn(
            f"{caller}: most angles are beyond two turns, so they may be degrees. Convert those with jnp.deg2rad. If "
            "they are radians, ignore this: warnings.filterwarnings('ignore', '.*beyond two turns')",
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

    x: "np.ndarray[Any, np.dtype[Any]]"
    """Samples in float64, of shape (sets, n, event); 0 in data sets that are not `good`."""
    share: "np.ndarray[Any, np.dtype[Any]]"
    """Weights that sum to 1, of shape (sets, n)."""
    good: "np.ndarray[Any, np.dtype[Any]]"
    """Whether a set has only finite samples, weights of 0 or more, and a positive weight."""
    dtype: np.dtype
    """Dtype of computations on the device."""

    @classmethod
    def of(cls, sets: WeightedSets) -> "HostSets":
        """Return the data sets."""
        batch, axes = sets.batch, sets.axes
        front = [i for i in range(len(batch)) if i not in axes]
        shape = math.prod(sets.kept), math.prod(batch[i] for i in axes)
        x = np.asarray(sets.samples, np.float64)
        event = x.shape[len(batch) :]
        x = x.transpose(*front, *axes, *range(len(batch), x.ndim)).reshape(*shape, math.prod(event))
        if sets.weights is None:
            share = np.ones(shape)
        else:
            share = np.broadcast_to(np.asarray(sets.weights, np.float64), batch).transpose(*front, *axes).reshape(shape)
        if not shape[1]:  # a sample with the weight 0, so that the set is not good
            x, share = np.zeros((shape[0], 1, x.shape[2])), np.zeros((shape[0], 1))
        largest = share.max(1)
        good = np.isfinite(x).all((1, 2)) & (share >= 0).all(1) & (largest > 0) & (largest < np.inf)
        share = np.where(good[:, None], share, 1) / np.where(good, largest, 1)[:, None]
        share = share / np.maximum(share.sum(1, keepdims=True), 1)
        return cls(np.where(good[:, None, None], x, 0), share, good, arguments.compute_dtype(sets.dtype))

    def of_directions(self) -> "HostSets":
        """Return the samples divided by their lengths; a set with a zero vector of positive weight is not good."""
        length = np.linalg.norm(self.x, axis=-1)
        good = self.good & ~((length == 0) & (self.share > 0)).any(1)
        x = self.x / np.where(length > 0, length, 1)[..., None]
        return dataclasses.replace(self, x=np.where(good[:, None, None], x, 0), good=good)

    def some(self, number: int, generator: np.random.Generator) -> "HostSets":
        """Return `number` samples of each set, drawn with their weights as probabilities."""
        chosen = [generator.choice(len(share), number, p=share / share.sum()) for share in self.share]
        x = np.stack([x[places] for x, places in zip(self.x, chosen, strict=True)])
        return dataclasses.replace(self, x=x, share=np.full(x.shape[:2], 1 / number))

    def on_device(self) -> tuple[jax.Array, jax.Array]:
        """Return samples (sets, event, n) and shares (sets, n) on the device.

        They are padded to a power of two, with shares of 0.
        """
        rest = power_of_two(self.share.shape[1], 128) - self.share.shape[1]
        x, share = (
            np.pad(np.swapaxes(self.x, 1, 2), ((0, 0), (0, 0), (0, rest))),
            np.pad(self.share, ((0, 0), (0, rest))),
        )
        return jax.device_put(x.astype(self.dtype)), jax.device_put(share.astype(self.dtype))


def power_of_two(size: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least `size` and `least`."""
    return 1 << (max(size, least) - 1).bit_length()


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


def effective_size(share: jax.Array) -> jax.Array:
    """Return the number of equal weights with the same sum of squares as the shares, n for n equal weights."""
    return 1 / total(jnp.square(share))


def total(values: jax.Array) -> jax.Array:
    """Return the sum over the last axis, in blocks, so that rounding errors grow only with the number of blocks."""
    size = values.shape[-1]
    if size > SUM_BLOCK:
        pad = [(0, 0)] * (values.ndim - 1) + [(0, -size % SUM_BLOCK)]
        return total(total(jnp.pad(values, pad).reshape(*values.shape[:-1], -1, SUM_BLOCK)))
    return xla.sum_last_axis(values)
