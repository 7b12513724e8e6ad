"""Define what the von Mises and the von Mises-Fisher distribution with a natural parameter share.

They are subclasses whose only leaf is the natural parameter. Their other parameters are computed from it in such a way
that derivatives with respect to it are right, also at 0.
"""

import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine.base import Parameter, Parametric, as_leaf, check_values, computed
from jax_von_mises.engine.request import Family
from jax_von_mises.von_mises import natural
from jax_von_mises.von_mises.natural_draw import natural_family


class OfNatural(Parametric):
    """Mixin for a subclass with the leaf `natural`, whose properties stand for the parameters of its base class."""

    natural: Any = None  # set in each instance; it replaces the property of the base class

    def __new__(cls, *parameters: Any, **named: Any) -> Any:
        """Return a distribution of the base class for its parameters, as ``dataclasses.replace`` asks for."""
        return cls._base()(*parameters, **named) if parameters or named else object.__new__(cls)

    @classmethod
    def _base(cls) -> type[Parametric]:
        return next(base for base in cls.__mro__ if "FAMILY" in vars(base))

    @classmethod
    def _of(cls, caller: str, value: ArrayLike, validate_args: bool, components: int | None = None) -> Self:
        """Return the distribution with the natural parameter `value`, after checking it."""
        made = object.__new__(cls)
        value = as_leaf(caller, "natural", value)
        if arguments.is_known(value):
            arguments.dimension(caller, "natural", value, components)
        if validate_args:
            check_values(caller, Parameter("natural", "real", 1), arguments.parameter(caller, "natural", value))
        object.__setattr__(made, "natural", value)
        return made

    def __repr__(self) -> str:
        return f"{self._base().__name__}.from_natural({self.natural!r})"

    def _drawn_by(self) -> tuple[Family, dict[str, Any]]:
        return natural_family(self.FAMILY), {"natural": self._leaf()}

    def _mapped(self, function: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> Self:
        value = arguments.as_jax(self._leaf())
        mapped: Self = jax.tree.unflatten(
            jax.tree.structure(self), [function(jnp.broadcast_to(value, shape + value.shape[-1:]))]
        )
        return mapped

    @property
    def concentration(self) -> jax.Array:
        """Length of the natural parameter."""
        return self._part(natural.concentration_of)

    def _leaf(self) -> Any:
        """Return the checked natural parameter."""
        return arguments.parameter(type(self).__name__, "natural", self.natural)

    def _of_natural(
        self, method: str, function: Callable[..., jax.Array], value: ArrayLike, rank: int = 0
    ) -> jax.Array:
        """Return ``function(value, natural)``; `rank` counts the last axes of a value that are not of the batch.

        The natural parameter is not rounded on the way, as the parameters computed from it are.
        """
        caller = f"{self._base().__name__}.{method}"
        arrays, dtype = arguments.parameters(caller, None, value=value, natural=self.natural)
        ranks = {"value": rank, "natural": 1}
        shapes = {name: np.shape(x)[: np.ndim(x) - ranks[name]] for name, x in arrays.items()}
        arguments.broadcast_shapes(caller, shapes)
        found: jax.Array = computed(away, (function,), tuple(arrays.values()), tuple(ranks.values()), dtype)
        return found

    def _part(self, part: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Return a function of the natural parameter, moved away from 0."""
        value = self._leaf()
        found: jax.Array = of_natural(part, value, arguments.float_dtype(type(self).__name__, None, [value]))
        return found


def away(function: Callable[..., jax.Array], value: jax.Array, vector: jax.Array) -> jax.Array:
    """Return a function of a value and a natural parameter, which is moved away from 0."""
    return function(value, natural.away_from_zero(vector, natural.SMALLEST))


@functools.partial(jax.jit, static_argnums=(0, 2))
def of_natural(part: Callable[[jax.Array], jax.Array], value: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return a function of vectors moved away from 0, rounded to a dtype once."""
    smallest = natural.SMALLEST_HALF if dtype == jnp.float16 else natural.SMALLEST
    vector = natural.away_from_zero(jnp.asarray(value, arguments.compute_dtype(dtype)), smallest)
    return part(vector).astype(dtype)


def sum_of_naturals(caller: str, natural: ArrayLike, other: ArrayLike) -> jax.Array:
    """Return the sum of two natural parameters, whose batches broadcast."""
    arrays, dtype = arguments.parameters(caller, None, natural=natural, other=other)
    shapes = {name: np.shape(x)[:-1] for name, x in arrays.items()}
    arguments.broadcast_shapes(caller, shapes)
    result: jax.Array = computed(jnp.add, (), tuple(arrays.values()), (1, 1), dtype)
    return result
