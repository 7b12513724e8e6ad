"""Laws as pytrees: frozen dataclasses that JAX takes apart and puts together."""

import jax

__all__ = ["pytree"]


def pytree(*fields):
    """Register a dataclass as a pytree whose children are these `fields`, its only ones.

    WORKAROUND(jax<=0.12): of two classes registered by ``jax.tree_util.register_dataclass`` the structures are equal if
    the fields have the same names, so that `jax.jit` now and then runs the program of the other class. Those of classes
    registered as here are not.
    """

    def register(cls):
        def flatten_with_keys(law):
            return [(jax.tree_util.GetAttrKey(name), getattr(law, name)) for name in fields], None

        def flatten(law):
            return [getattr(law, name) for name in fields], None

        def unflatten(_, children):
            return cls(*children)

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        return cls

    return register
