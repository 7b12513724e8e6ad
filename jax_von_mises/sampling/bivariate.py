"""Draw pairs of angles from counter-based words, without rejection.

The first angle is the quantile function of its marginal distribution, evaluated at a uniform random number. Given the
first angle, the second has a von Mises distribution.

*Layout of the stream.* Number j of a stream is word j (float32), or words 2 j and 2 j + 1 (float64). Pair i uses number
2 i for its first angle and number 2 i + 1 for its second. The lowest bit of a number's first word gives the angle's
side, and the other bits give its tail probability, as in `transform.tail`. The first angle is measured from its mode,
or from halfway between its modes if there are two. The second angle is measured from its mean direction given the
first.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.typing import DTypeLike

from jax_von_mises import arguments
from jax_von_mises.numerics import elementary, xla
from jax_von_mises.numerics.bivariate import models, quantile
from jax_von_mises.numerics.circle import reduce_turns, wrap
from jax_von_mises.numerics.density import valid
from jax_von_mises.numerics.elementary import nan_unless
from jax_von_mises.sampling import counter, transform
from jax_von_mises.sampling.programs import Programs
from jax_von_mises.sampling.request import Request, route_of
from jax_von_mises.sampling.sphere import number_positions

NAMES = "phi_loc", "psi_loc", "phi_concentration", "psi_concentration", "correlation"
PARTS = {"loc": NAMES[:2], "concentration": NAMES[2:]}
"""Names of the parameters along the last axes of `loc` and `concentration`, the two arrays that streams take."""


@dataclasses.dataclass(frozen=True)
class PairRequest(Request):
    """A draw of pairs for `draw_pairs`. Subclasses are pytrees in which all fields except arrays are static."""

    noun: ClassVar[str] = "pair"
    key: jax.Array
    arrays: tuple[jax.Array, ...]
    """The parameters in the order of `NAMES`."""
    start: counter.Wide | None
    shape: tuple[int, ...]
    """Shape of the batch, without the axis of the two angles."""
    dtype: np.dtype[Any]
    route: str
    out_sharding: NamedSharding | None = None
    kind: type[models.Model] = models.Sine
    """`models.Sine` or `models.Cosine`; a field, since `jax.jit` tells two classes of requests apart only by fields."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one pair."""
        return (2,)

    @property
    def numbers(self) -> int:
        """How many numbers of the stream one pair uses."""
        return 2

    @classmethod
    def of(
        cls, caller: str, key: object, parameters: Mapping[str, object], shape: object, start: Any, method: str
    ) -> Self:
        """Return a checked request for a batch of pairs with the shape `shape`, from position `start` (0 if None).

        `parameters` maps `NAMES` to values.
        """
        request = cls.from_arrays(caller, key, *arguments.parameters(caller, None, **parameters), shape, method)
        if start is None:
            return request.routed_by_size(method)
        return request.block(caller, arguments.position(caller, start))

    @classmethod
    def part(
        cls,
        caller: str,
        key: object,
        loc: object,
        concentration: object,
        shape: object,
        dtype: DTypeLike | None,
        method: str,
        /,
    ) -> Self:
        """Return a checked request from position 0; the last axes of `loc` and `concentration` hold the parameters."""
        given, of_result = arguments.parameters(caller, dtype, loc=loc, concentration=concentration)
        found: dict[str, Any] = {}
        for name, parts in PARTS.items():
            if np.shape(given[name])[-1:] != (len(parts),):
                raise ValueError(
                    f"{caller}: {name} has shape {np.shape(given[name])}, but for {cls.distribution} its last axis "
                    f"must hold {', '.join(parts)}."
                )
            found |= {part: given[name][..., j] for j, part in enumerate(parts)}
        return cls.from_arrays(caller, key, found, of_result, shape, method)

    @classmethod
    def from_arrays(
        cls, caller: str, key: object, arrays: Mapping[str, Any], dtype: np.dtype[Any], shape: object, method: str
    ) -> Self:
        """Return a checked request from position 0; `arrays` maps `NAMES` to checked parameters."""
        checked_key = arguments.one_key(caller, key)
        sizes = arguments.result_shape(caller, shape, **arrays)
        each = np.broadcast_shapes(*(np.shape(arrays[name]) for name in NAMES[2:]))
        route = route_of(caller, method, jax.ShapeDtypeStruct(each, dtype))
        return cls(checked_key, tuple(arrays[name] for name in NAMES), None, sizes, dtype, route)

    @property
    def parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """The arguments `loc` and `concentration` of `part`."""
        arrays = dict(zip(NAMES, self.arrays, strict=True))
        return {
            name: np.stack(np.broadcast_arrays(*(np.asarray(arrays[part]) for part in parts)), -1)
            for name, parts in PARTS.items()
        }

    def sharded(self, caller: str, out_sharding: NamedSharding | None) -> Self:
        """Return the request with the sharding of its result; raise ValueError if the mesh has explicit axes."""
        if out_sharding is not None and AxisType.Explicit in out_sharding.mesh.axis_types:
            raise ValueError(
                f"{caller}: out_sharding={arguments.safe_repr(out_sharding.spec)} is over a mesh with explicit axes, "
                "over which pairs cannot be sharded. Make the mesh with axis_types=(AxisType.Auto, ...)."
            )
        return super().sharded(caller, out_sharding)


as_pytree = functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("key", "arrays", "start"),
    # WORKAROUND(jax<=0.12): without `kind`, both classes would have equal structures; see `distributions.pytrees`.
    meta_fields=("shape", "dtype", "route", "out_sharding", "kind"),
)


@as_pytree
@dataclasses.dataclass(frozen=True)
class SineRequest(PairRequest):
    """A draw of pairs of the sine model."""

    distribution: ClassVar[str] = "sine-bivariate-von-mises"
    kind: type[models.Model] = models.Sine


@as_pytree
@dataclasses.dataclass(frozen=True)
class CosineRequest(PairRequest):
    """A draw of pairs of the cosine model."""

    distribution: ClassVar[str] = "cosine-bivariate-von-mises"
    kind: type[models.Model] = models.Cosine


def pairs_of(request: PairRequest) -> jax.Array:
    """Return the pairs of a request, computed in one program."""
    shape, route, kind, sharding = request.shape, request.route, request.kind, request.out_sharding
    compute = arguments.compute_dtype(request.dtype)
    phi_loc, psi_loc, *of_model = xla.hide_constants(*(jnp.asarray(x, compute) for x in request.arrays))
    k1, k2, r = of_model
    if all(x.size == 1 for x in of_model):
        k1, k2, r = (x.reshape(()) for x in of_model)
    else:
        k1, k2, r = (jnp.broadcast_to(x, shape) for x in of_model)
    k1, k2 = valid(k1), valid(k2)
    words = functools.partial(pair_words, shape, transform.words_per_element(compute))
    first, second = xla.separate_loop(words, request.key, request.start)
    a = first_angle(first, k1, k2, r, kind, route)
    phi, psi = pair(kind, a, second, k1, k2, r)
    phi, psi = (wrap(x, broadcast_loc(loc, shape)) for x, loc in ((phi, phi_loc), (psi, psi_loc)))
    x = jnp.stack([phi, psi], -1).astype(request.dtype)
    return x if sharding is None else lax.with_sharding_constraint(x, sharding)


PROGRAMS = Programs.of(pairs_of)


def draw_pairs(request: PairRequest, buffer: jax.Array | None = None) -> jax.Array:
    """Draw the pairs of a request; for `buffer`, see `sampler.draw`."""
    return PROGRAMS.run(request, buffer)


def pair_words(
    shape: tuple[int, ...], width: int, key: jax.Array, start: counter.Wide | None
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Return the `width` words of each first angle, and those of each second angle, for pairs from `start` on."""
    generator, key = counter.key_words(key)
    if width == 1:
        # One block of the generator holds both words of a pair.
        first, second = counter.block_words(generator, key, counter.indices(shape, start), 2)
        return (first,), (second,)
    positions = [number_positions(shape, start, 2, j, None) for j in range(2)]
    of_first, of_second = (counter.block_words(generator, key, position, 2) for position in positions)
    return of_first, of_second


def broadcast_loc(loc: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return `loc` reduced to one turn and broadcast to `shape`."""
    return jnp.broadcast_to(reduce_turns(loc), shape)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def first_angle(
    words: tuple[jax.Array, ...],
    k1: jax.Array,
    k2: jax.Array,
    r: jax.Array,
    kind: type[models.Model],
    route: str,
) -> jax.Array:
    """Return the first angle as the model measures it, in (-pi, pi), from the quantile function of its marginal."""

    def angle(words: tuple[jax.Array, ...], k1: jax.Array, k2: jax.Array, r: jax.Array) -> jax.Array:
        t, c, negative = transform.tail(words)
        upper = t <= 0.25
        tau = 2 * jnp.where(upper, t, c)
        model = kind.of(k1, k2, r)
        if route == "table":
            a = quantile.look_up(quantile.table(model), tau, upper)
        else:
            a = quantile.half_quantile(model, tau, upper)
        a = nan_unless(a, ~jnp.isnan(k1 + k2 + r))
        return jnp.where(negative, -a, a)

    return xla.separate_loop(angle, words, k1, k2, r)


@first_angle.defjvp
def _first_angle_jvp(
    kind: type[models.Model], route: str, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    a = first_angle(*primals, kind, route)
    slopes = quantile.derivatives(kind, jnp.abs(a), *primals[1:])
    moved = sum(slope * tangent for slope, tangent in zip(slopes, tangents[1:], strict=True))
    return a, jnp.where(a < 0, -moved, moved)


def pair(
    kind: type[models.Model],
    a: jax.Array,
    words: tuple[jax.Array, ...],
    k1: jax.Array,
    k2: jax.Array,
    r: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Return both angles relative to their locations, given the `a` of `first_angle` and the second angle's words."""
    model = kind.of(k1, k2, r)
    half = 0.5 * a
    square = half * half
    sine_half = half * elementary.sine_over(square)
    cosine, sine = model.second(2 * sine_half * elementary.cosine(square), 2 * sine_half * sine_half)
    least = models.SMALLEST[a.dtype.name] ** 2
    rho = elementary.square_root(jnp.maximum(cosine * cosine + sine * sine, least))
    b = transform.angles_about_zero(words, rho, "direct", None)
    return models.from_mode_side(a, model), wrap(b, quantile.direction(cosine, sine))
