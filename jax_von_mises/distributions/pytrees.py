"""Distributions as pytrees: frozen dataclasses that JAX takes apart and puts together, and that compare by value."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises.arguments import is_array

__all__ = ["ByValue", "pytree"]


def pytree(*fields, static=()):
    """Register a dataclass as a pytree whose children are these `fields`; the `static` ones are parts of its structure.

    JAX puts shapes, axes, specifications or None in the place of arrays. So the constructor, which checks and converts
    its arguments, is not called when a pytree is put together.

    WORKAROUND(jax<=0.12): of two classes registered by ``jax.tree_util.register_dataclass`` the structures are equal if
    the fields have the same names, so that `jax.jit` now and then runs the program of the other class. Those of classes
    registered as here are not.
    """

    def register(cls):
        def flatten_with_keys(tree):
            return [(jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in fields], aside(tree)

        def flatten(tree):
            return [getattr(tree, name) for name in fields], aside(tree)

        def aside(tree):
            return tuple(getattr(tree, name) for name in static)

        def unflatten(aside, children):
            tree = object.__new__(cls)
            for name, child in zip((*fields, *static), (*children, *aside), strict=True):
                object.__setattr__(tree, name, child)
            return tree

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        return cls

    return register


class ByValue:
    """Equality and hash of a pytree, from its leaves.

    Two are equal if they are of one class, and their leaves have the same shape, dtype, weak type and values: programs
    of JAX that have one of them as a static argument then compute the same with the other.
    """

    def __eq__(self, other):
        """Whether the leaves are equal: a bool, or a traced one where values are traced. NaN equals only itself."""
        if type(other) is not type(self):
            return NotImplemented
        (leaves, structure), (others, other_structure) = jax.tree.flatten(self), jax.tree.flatten(other)
        if structure != other_structure:
            return False
        found = [_same(x, y) for x, y in zip(leaves, others, strict=True)]
        return not any(same is False for same in found) and functools.reduce(operator.and_, found, True)

    def __ne__(self, other):
        """The contrary, also of a traced bool."""
        equal = self.__eq__(other)
        if equal is NotImplemented:
            return equal
        return not equal if isinstance(equal, bool) else jnp.logical_not(equal)

    def __hash__(self):
        """Of the values, which must be known."""
        leaves, structure = jax.tree.flatten(self)
        return hash((structure, *map(_hash_key, leaves)))


def _same(x, y):
    if x is y:
        return True
    if not is_array(x) or not is_array(y):
        return not is_array(x) and not is_array(y) and bool(x == y)
    if _kind(x) != _kind(y):
        return False
    if isinstance(x, jax.core.Tracer) or isinstance(y, jax.core.Tracer):
        return jnp.all(x == y)
    # By NumPy: where something else is being traced, what JAX computes is traced as well.
    return bool(np.all(np.asarray(x) == np.asarray(y)))


def _hash_key(leaf):
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(
            "A distribution with traced parameters has no hash, since their values are not known. Pass it to jax.jit "
            "and other transformations as an ordinary argument, which is not static."
        )
    if not is_array(leaf):
        return leaf
    return *_kind(leaf), (np.asarray(leaf) + 0).tobytes()  # + 0: no negative zero, which equals the other one


def _kind(array):
    """Return what two arrays have in common before their values are compared."""
    return array.shape, array.dtype, bool(getattr(array, "weak_type", False))
