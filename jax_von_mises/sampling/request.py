"""Hold the checked arguments of a draw in one object, choose its route, and run its program.

A distribution whose draws come from a key's stream of words is described by one `Family`. Streams, blocks, devices,
files and classes all draw it by a `Request`.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.typing import DTypeLike

from jax_von_mises import arguments
from jax_von_mises.numerics import xla
from jax_von_mises.sampling import counter, transform
from jax_von_mises.sampling.numbers import Numbers

# Smallest number of draws for which a table (2048 quantiles, or 2816 in float64) saves more time than it costs,
# measured on a two-core CPU by ``python -m benchmarks.performance_benchmark``.
QUANTILE_TABLE_MIN_SIZE = {"float32": 2**14, "float64": 2**13}


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
    """Name in `sample_block` and in files."""
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
    packed: Mapping[str, tuple[str, ...]] | None = None
    """Which parameters lie along the last axes of `loc` and `concentration`, the two arrays that streams take."""
    program: Callable[["Request"], jax.Array] | None = None
    """Computes the draws of a request, where `placed` is not fast enough."""
    explicit_meshes: bool = False
    """Whether draws can be sharded over meshes with explicit axes."""
    by_name: bool = False
    """Whether `sample_block` takes its name, and two arrays, in place of a distribution."""

    def __post_init__(self) -> None:
        """Register the family, so that its name finds it in any process."""
        FAMILIES[self.name] = self


def made_of(prefix: str) -> Callable[[Callable[[Family], Family]], Callable[[Family], Family]]:
    """Return a decorator that registers a function from a family to the one whose name is longer by a `prefix`."""

    def register(make: Callable[[Family], Family]) -> Callable[[Family], Family]:
        return MADE_OF.setdefault(prefix, functools.cache(make))

    return register


def family_named(name: str) -> Family:
    """Return the family with this name, in any process."""
    if name in FAMILIES:
        return FAMILIES[name]
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
    def whole(
        cls,
        family: Family,
        caller: str,
        key: object,
        values: Mapping[str, object],
        shape: object,
        dtype: DTypeLike | None,
        method: str,
        out_sharding: object = None,
    ) -> Self:
        """Return a checked request for a draw from position 0.

        Method "auto" uses the table for one set of parameters and many draws.
        """
        sharding = arguments.sharding(caller, out_sharding)
        return cls.part(family, caller, key, values, shape, dtype, method, by_size=True).sharded(caller, sharding)

    @classmethod
    def part(
        cls,
        family: Family,
        caller: str,
        key: object,
        values: Mapping[str, object],
        shape: object,
        dtype: DTypeLike | None,
        method: str,
        by_size: bool = False,
    ) -> Self:
        """Return a checked request from position 0.

        Method "auto" uses the table for one set of parameters; with `by_size`, only for enough draws.
        """
        checked_key = arguments.one_key(caller, key)
        arrays, of_result = arguments.parameters(caller, dtype, **values)
        batch = {}
        for name, rank in family.parameters.items():
            if name == family.vector:
                arguments.dimension(caller, name, arrays[name])
            batch[name] = arrays[name]
            if rank:
                of_array = np.shape(arrays[name])
                batch[name] = jax.ShapeDtypeStruct(of_array[: len(of_array) - rank], of_result)
        sizes = arguments.result_shape(caller, shape, **batch)
        tabulated = [batch[name].shape for name in family.tabulated]
        of_table = tabulated[0] if len(tabulated) == 1 else np.broadcast_shapes(*tabulated)
        route = arguments.method(caller, method, of_table, family.methods)
        if route == "auto":
            few = by_size and math.prod(sizes) < QUANTILE_TABLE_MIN_SIZE[arguments.compute_dtype(of_result).name]
            table = math.prod(of_table) == 1 and "table" in family.methods
            route = "table" if table and not (few and "direct" in family.methods) else "direct"
        parameters = tuple(arrays[name] for name in family.parameters)
        return cls(family, checked_key, parameters, None, sizes, of_result, route)

    @classmethod
    def of_stream(
        cls,
        family: Family,
        caller: str,
        key: object,
        loc: object,
        concentration: object,
        shape: object,
        dtype: DTypeLike | None,
        method: str,
    ) -> Self:
        """Return `part` for the arguments of `sample_block`."""
        if family.packed is None:
            values = dict(zip(family.parameters, (loc, concentration), strict=True))
            return cls.part(family, caller, key, values, shape, dtype, method)
        given, of_result = arguments.parameters(caller, dtype, loc=loc, concentration=concentration)
        found: dict[str, Any] = {}
        for name, parts in family.packed.items():
            if np.shape(given[name])[-1:] != (len(parts),):
                raise ValueError(
                    f"{caller}: {name} has shape {np.shape(given[name])}, but for {family.name} its last axis "
                    f"must hold {', '.join(parts)}."
                )
            found |= {part: given[name][..., j] for j, part in enumerate(parts)}
        return cls.part(family, caller, key, found, shape, of_result, method)

    @property
    def stream_parameters(self) -> dict[str, Any]:
        """The parameters by name, as `of_stream` takes them."""
        arrays = dict(zip(self.family.parameters, self.parameters, strict=True))
        if self.family.packed is None:
            return arrays
        return {
            name: np.stack(np.broadcast_arrays(*(np.asarray(arrays[part]) for part in parts)), -1)
            for name, parts in self.family.packed.items()
        }

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


class Programs(NamedTuple):
    """The two forms of a program: one allocates its result, and one reuses an array's memory."""

    new: jax.stages.Wrapped
    into: jax.stages.Wrapped
    """The program with an additional first argument, the array to reuse."""

    @classmethod
    def of(cls, program: Callable[[Request], jax.Array]) -> Self:
        """Apply `jax.jit` to both forms of ``program(request)``."""

        def into(buffer: jax.Array, request: Request) -> jax.Array:
            return program(request)

        return cls(jax.jit(program), jax.jit(into, donate_argnums=0, keep_unused=True))

    def run(self, request: Request, buffer: jax.Array | None) -> jax.Array:
        """Draw `request`, in the memory of `buffer` if that is given."""
        drawn: jax.Array = self.new(request) if buffer is None else self.into(buffer, request)
        return drawn


def placed(request: Request) -> jax.Array:
    """Return the draws of a request by its family's `place`, in the sharding that the request asks for."""
    sharding, compute = request.out_sharding, arguments.compute_dtype(request.dtype)
    parameters = tuple(xla.hide_constants(*(jnp.asarray(x, compute) for x in request.parameters)))
    # An automatic mesh needs only a constraint on the result; an explicit one needs the sharding of every array.
    automatic = sharding is not None and AxisType.Explicit not in sharding.mesh.axis_types
    declared = None if automatic else sharding
    per_draw = request.family.numbers(request.event_shape)
    width = transform.words_per_element(compute)
    numbers = Numbers(request.key, request.start, request.shape, per_draw, width, declared)
    x = request.family.place(numbers, parameters, request.route, declared).astype(request.dtype)
    return lax.with_sharding_constraint(x, sharding) if automatic else x


def by_family(request: Request) -> jax.Array:
    """Return the draws of a request by its family's program."""
    return (request.family.program or placed)(request)


PROGRAMS = Programs.of(by_family)


def draw(request: Request, buffer: jax.Array | None = None) -> jax.Array:
    """Draw a request.

    If `buffer` is given, it must have the shape and dtype of the result. The draws reuse its memory, and `buffer` is
    deleted.
    """
    return PROGRAMS.run(request, buffer)


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5, 6))
def checked_when_traced(
    key: jax.Array,
    values: tuple[Any, ...],
    family: Family,
    shape: tuple[int, ...] | None,
    dtype: np.dtype[Any] | None,
    method: str,
    of_legacy: str | None,
) -> jax.Array:
    """Draw from position 0; check the arguments while the program is traced, once for each combination of types.

    `of_legacy` is the implementation of a legacy key, which is a setting of JAX on which the program depends.
    """
    named = dict(zip(family.parameters, values, strict=True))
    return by_family(Request.whole(family, family.name, key, named, shape, dtype, method))


def traceable(
    family: Family, key: Any, values: Mapping[str, Any], shape: Any, dtype: DTypeLike | None, method: str
) -> tuple[Any, ...] | None:
    """Return the arguments of `checked_when_traced`, or None if JAX would refuse or change one before it is checked.

    Lists and the integers and floats of Python and NumPy become what arrays and tuples of integers are, so that equal
    arguments share a program.
    """
    if not (isinstance(key, (jax.Array, jax.ShapeDtypeStruct)) and type(method) is str):
        return None
    sizes = None if shape is None else arguments.whole_sizes(family.name, "shape", shape)
    given: tuple[Any, ...] = tuple(
        value if arguments.is_traceable(value := values[name]) else arguments.parameter(family.name, name, value)
        for name in family.parameters
    )
    legacy = isinstance(key.dtype, np.dtype)
    of_legacy = str(jax.config.jax_default_prng_impl) if legacy else None  # type: ignore[attr-defined]
    if dtype is not None or not all(type(x) is float for x in given):
        # Equal numbers share a program, whether they are Python's, NumPy's or JAX's.
        of_result = arguments.float_dtype(family.name, dtype, given)
        default = of_result == arguments.float_dtype(family.name, None, ())
        if default and all(type(x) is float or isinstance(x, np.generic) for x in given):
            given, dtype = tuple(map(float, given)), None
        else:
            compute = arguments.compute_dtype(of_result)
            given, dtype = tuple(arguments.with_dtype(x, compute) for x in given), of_result
    if not all(map(arguments.is_traceable, given)):
        return None
    return key, tuple(arguments.on_device(*given)), family, sizes, dtype, method, of_legacy


def draw_whole(
    family: Family,
    caller: str,
    key: object,
    values: Mapping[str, object],
    shape: object,
    dtype: DTypeLike | None,
    method: str,
    out_sharding: object = None,
) -> jax.Array:
    """Draw from position 0."""
    # An invalid argument is refused below, in a message with the caller's name and the value.
    with contextlib.suppress(TypeError, ValueError, OverflowError, RecursionError):
        if out_sharding is None and (call := traceable(family, key, values, shape, dtype, method)):
            drawn: jax.Array = checked_when_traced(*call)
            return drawn
    return draw(Request.whole(family, caller, key, values, shape, dtype, method, out_sharding))
