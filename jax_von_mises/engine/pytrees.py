"""Register frozen dataclasses as pytrees, and let distributions compare by value."""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises.arguments import is_array

__all__ = ["ByValue", "pytree"]

T = TypeVar("T")


def pytree(*fields: str, static: Sequence[str] = ()) -> Callable[[type[T]], type[T]]:
    """Register a dataclass as a pytree with the children `fields`; the `static` fields are part of its structure.

    JAX may put shapes, axes, specifications or None in place of arrays. Unflattening therefore skips the constructor,
    which checks and converts its arguments.

    WORKAROUND(jax<=0.12): ``jax.tree_util.register_dataclass`` gives two classes with the same field names equal
    structures, so that `jax.jit` sometimes runs the program of the other class. Classes registered here have different
    structures.
    """

    def register(cls: type[T]) -> type[T]:
        def flatten_with_keys(tree: T) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
            return [(jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in fields], aside(tree)

        def flatten(tree: T) -> tuple[list[Any], tuple[Any, ...]]:
            return [getattr(tree, name) for name in fields], aside(tree)

        def aside(tree: T) -> tuple[Any, ...]:
            return tuple(getattr(tree, name) for name in static)

        def unflatten(aside: Iterable[Any], children: Iterable[Any]) -> T:
            tree = object.__new__(cls)
            for name, child in zip((*fields, *static), (*children, *aside), strict=True):
                object.__setattr__(tree, name, child)
            return tree

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        return cls

    return register


class ByValue:
    """Base class of pytrees that compare and hash by their leaves.

    Two pytrees are equal if they have the same structure, and their leaves have the same shape, dtype, weak type and
    values. A program compiled with one of them as a static argument then computes the same results for the other.
    """

    def __eq__(self, other: object) -> Any:
        """Return whether the leaves are equal, as a bool or a traced bool; a leaf with NaN equals only itself."""
        if type(other) is not type(self):
            return NotImplemented
        structure: Any
        (leaves, structure), (others, other_structure) = jax.tree.flatten(self), jax.tree.flatten(other)
        if structure != other_structure:
            return False
        results = [_same(x, y) for x, y in zip(leaves, others, strict=True)]
        return not any(same is False for same in results) and functools.reduce(operator.and_, results, True)

    def __ne__(self, other: object) -> Any:
        """Return the negation of ``==``, which may be a traced bool."""
        equal = self.__eq__(other)
        if equal is NotImplemented:
            return equal
        return not equal if isinstance(equal, bool) else jnp.logical_not(equal)

    def __hash__(self) -> int:
        """Hash the values of the leaves, which must not be traced."""
        leaves, structure = jax.tree.flatten(self)
        return hash((structure, *map(_hash_key, leaves)))


def _same(x: Any, y: Any) -> bool | jax.Array:
    if x is y:
        return True
    if not is_array(x) or not is_array(y):
        return not is_array(x) and not is_array(y) and bool(x == y)
    if _kind(x) != _kind(y):
        return False
    if isinstance(x, jax.core.Tracer) or isinstance(y, jax.core.Tracer):
        return jnp.all(x == y)
    # Use NumPy, since JAX returns a traced result while a function is traced.
    return bool(np.all(np.asarray(x) == np.asarray(y)))


def _hash_key(leaf: Any) -> object:
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(
            "A distribution with traced parameters has no hash, since their values are unknown. Pass it to jax.jit and "
            "other transformations as an ordinary argument, not a static one."
        )
    if not is_array(leaf):
        return leaf
    return *_kind(leaf), (np.asarray(leaf) + 0).tobytes()  # adding 0 turns -0.0 into 0.0, which equals it


def _kind(array: Any) -> tuple[tuple[int, ...], np.dtype, bool]:
    """Return the shape, dtype and weak type, which must be the same for equal arrays."""
    return array.shape, array.dtype, bool(getattr(array, "weak_type", False))
