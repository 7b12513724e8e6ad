"""Hold the checked arguments of a draw in one object, choose its route, and run its program.

A distribution whose draws come from a key's stream of words is described by one `Family`. Streams, blocks, devices,
files and classes all draw it by a `Request`.
"""

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.typing import DTypeLike

from jax_von_mises import arguments
from jax_von_mises.compiler import xla
from jax_von_mises.engine import counter, tails
from jax_von_mises.engine.numbers import Numbers

# Smallest number of draws for which a table (2048 quantiles, or 2816 in float64) saves more time than it costs,
# measured on a two-core CPU by ``python -m benchmarks.performance_benchmark``.
QUANTILE_TABLE_MIN_SIZE = {np.dtype(np.float32): 2**14, np.dtype(np.float64): 2**13}


class Place(Protocol):
    """A function that computes draws from their numbers."""

    def __call__(
        self, numbers: Numbers, parameters: tuple[jax.Array, ...], route: str, sharding: NamedSharding | None
    ) -> jax.Array:
        """Return draws in the dtype of the parameters, which broadcast with ``numbers.shape``.

        `sharding` is that of the result, on a mesh with explicit axes.
        """


# All families by their names, and the functions that make a family from another one, by the prefix of its name.
FAMILIES: dict[str, "Family"] = {}
MADE_OF: dict[str, Callable[["Family"], "Family"]] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """What a stream must know of a distribution; static in programs, and equal only to itself."""

    name: str
    """Name in files and on the command line."""
    noun: str
    """Name of one draw in messages."""
    parameters: Mapping[str, int]
    """The parameters, and how many of their last axes belong to one draw."""
    place: Place
    """Computes draws."""
    numbers: Callable[[tuple[int, ...]], int] = lambda event_shape: 1
    """How many numbers of the stream one draw of a shape uses."""
    event_shape: Callable[[tuple[Any, ...]], tuple[int, ...]] = lambda parameters: ()
    """Returns the shape of one draw, whose axes follow those of the batch."""
    tabulated: tuple[str, ...] = ()
    """The parameters on which a table of quantiles depends."""
    methods: tuple[str, ...] = arguments.METHODS
    """Which methods it has; "auto" is always among them."""
    vector: str | None = None
    """A parameter whose last axis holds the components of a vector."""
    program: Callable[["Request"], jax.Array] | None = None
    """Computes the draws of a request, where `placed` is not fast enough."""
    kernel: Callable[["Request"], jax.stages.Wrapped | None] | None = None
    """Returns the program of a kernel of our own that draws a whole request, or None."""
    explicit_meshes: bool = False
    """Whether draws can be sharded over meshes with explicit axes."""

    def __post_init__(self) -> None:
        """Register the family, so that its name finds it in any process."""
        FAMILIES[self.name] = self


def made_of(prefix: str) -> Callable[[Callable[[Family], Family]], Callable[[Family], Family]]:
    """Return a decorator that registers a function from a family to the one whose name is longer by a `prefix`."""

    def register(make: Callable[[Family], Family]) -> Callable[[Family], Family]:
        return MADE_OF.setdefault(prefix, functools.cache(make))

    return register


def registered() -> dict[str, Family]:
    """Return the families of all distributions of the package, by name."""
    importlib.import_module("jax_von_mises.public")
    return FAMILIES


def family_named(name: str) -> Family:
    """Return the family with this name, in any process."""
    families = registered()
    if name in families:
        return families[name]
    for prefix, make in MADE_OF.items():
        if name.startswith(prefix):
            return make(family_named(name.removeprefix(prefix)))
    raise ValueError(f"this version of jax_von_mises has no distribution {name!r}.")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("key", "parameters", "start"),
    meta_fields=("family", "shape", "dtype", "route", "out_sharding"),
)
@dataclasses.dataclass(frozen=True)
class Request:
    """A draw with its position in the stream and its sharding, as a pytree whose fields but arrays are static."""

    family: Family
    key: jax.Array
    """One typed key."""
    parameters: tuple[Any, ...]
    """Arrays that `arguments.parameters` returned, in the order of the family's."""
    start: counter.Wide | None
    """Position of the first draw in the key's stream, a pair (hi, lo) of uint32; None for 0."""
    shape: tuple[int, ...]
    """Shape of the batch, without the axes of one draw."""
    dtype: np.dtype[Any]
    route: str
    """ "direct" or "table"."""
    out_sharding: NamedSharding | None = None

    @classmethod
    def of(
        cls,
        caller: str,
        family: Family,
        key: object,
        values: Mapping[str, object],
        shape: object = None,
        dtype: DTypeLike | None = None,
        method: str = "auto",
        *,
        by_size: bool = True,
    ) -> Self:
        """Return a checked request from position 0; the caller's name stands in messages.

        Method "auto" uses the table for one set of parameters; with `by_size`, only for enough draws.
        """
        checked_key = arguments.one_key(caller, key)
        arrays, of_result = arguments.parameters(caller, dtype, **values)
        if family.vector is not None:
            arguments.dimension(caller, family.vector, arrays[family.vector])
        parameters = tuple(arrays[name] for name in family.parameters)
        sizes = None if shape is None else arguments.whole_sizes(caller, "shape", shape)
        sizes, of_table = shapes_of(caller, family, tuple(x.shape for x in parameters), sizes)
        route = arguments.method(caller, method, of_table, family.methods)
        if route == "auto":
            few = by_size and math.prod(sizes) < QUANTILE_TABLE_MIN_SIZE[arguments.compute_dtype(of_result)]
            table = math.prod(of_table) == 1 and "table" in family.methods
            route = "table" if table and not (few and "direct" in family.methods) else "direct"
        return cls(family, checked_key, parameters, None, sizes, of_result, route)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one draw, whose axes follow those of `shape`."""
        return self.family.event_shape(self.parameters)

    def sharded(self, caller: str, out_sharding: NamedSharding | None) -> Self:
        """Return the request with the sharding of its result, or raise ValueError if that is impossible."""
        if out_sharding is None:
            return self
        given = f"{caller}: out_sharding={arguments.safe_repr(out_sharding.spec)}"
        if not self.family.explicit_meshes and AxisType.Explicit in out_sharding.mesh.axis_types:
            raise ValueError(
                f"{given} is over a mesh with explicit axes, over which {self.family.noun}s cannot be sharded. Make "
                "the mesh with axis_types=(AxisType.Auto, ...)."
            )
        if self.event_shape and any(out_sharding.spec[len(self.shape) :]):
            raise ValueError(
                f"{given} shards the components of a {self.family.noun}. Shard only the axes of the batch, of shape "
                f"{self.shape}."
            )
        return dataclasses.replace(self, out_sharding=out_sharding)

    def at(self, start: Any, **changed: Any) -> Self:
        """Return the request moved to position `start`, with the fields in `changed` replaced.

        `start` is an integer, traced or not, or a pair (hi, lo) of uint32.
        """
        return dataclasses.replace(self, start=counter.halves(start), **changed)

    def block(self, caller: str, start: Any) -> Self:
        """Return the request moved to the checked position `start`; raise ValueError if it passes the stream's end."""
        if (first := arguments.known_position(start)) is not None:
            self.within_stream(caller, first, first + math.prod(self.shape), f"shape={self.shape}")
        return self.at(start)

    def within_stream(self, caller: str, start: int, end: int, described: str) -> None:
        """Raise ValueError if draws `start` to ``end - 1``, as `described` in the message, pass the stream's end."""
        numbers = self.family.numbers(self.event_shape)
        arguments.within_stream(caller, start, end, described, numbers, self.family.noun)


# For the shapes of an earlier call, this saves a fifth of the time of a small draw.
@functools.lru_cache
def shapes_of(
    caller: str, family: Family, shapes: tuple[tuple[int, ...], ...], sizes: tuple[int, ...] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the batch and of the tables, for draws of given `sizes` with parameters of these shapes."""
    ranks = family.parameters.items()
    batch = {name: shape[: len(shape) - rank] for (name, rank), shape in zip(ranks, shapes, strict=True)}
    sizes = arguments.result_shape(caller, sizes, batch)
    return sizes, np.broadcast_shapes(*(batch[name] for name in family.tabulated))


def placed(request: Request) -> jax.Array:
    """Return the draws of a request by its family's `place`, in the sharding that the request asks for."""
    sharding, compute = request.out_sharding, arguments.compute_dtype(request.dtype)
    parameters = tuple(xla.hide_constants(*(jnp.asarray(x, compute) for x in request.parameters)))
    # An automatic mesh needs only a constraint on the result; an explicit one needs the sharding of every array.
    automatic = sharding is not None and AxisType.Explicit not in sharding.mesh.axis_types
    declared = None if automatic else sharding
    per_draw = request.family.numbers(request.event_shape)
    width = tails.words_per_element(compute)
    numbers = Numbers(request.key, request.start, request.shape, per_draw, width, declared)
    x = request.family.place(numbers, parameters, request.route, declared).astype(request.dtype)
    return lax.with_sharding_constraint(x, sharding) if automatic else x


def by_family(request: Request) -> jax.Array:
    """Return the draws of a request by its family's program."""
    return (request.family.program or placed)(request)


def draw(request: Request) -> jax.Array:
    """Draw a request, by one program for all requests with the same static fields and types of arrays."""
    drawn: jax.Array = program(request)
    return drawn


program = jax.jit(by_family)
