"""Piecewise polynomials that a program makes for itself: a function computed once on a grid, then looked up."""

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax


def cell_polynomials(values, nodes):
    """Coefficients (degree + 1, cells) of the polynomials through `values` (cells, degree + 1).

    `nodes` are their places in a cell, from 0 to 1.
    """
    # Differences first: formed from the values themselves, the power coefficients would lose a digit. Both maps are
    # matrix products, since XLA never fuses those with the function, and so never computes it anew for each row.
    degree = len(nodes) - 1
    difference = np.concatenate([-np.ones((1, degree)), np.eye(degree)])
    powers = np.linalg.inv(np.vander(nodes, increasing=True)[1:, 1:]).T

    def by_products(values):
        product = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
        rest = product(product(values, jnp.asarray(difference, values.dtype)), jnp.asarray(powers, values.dtype))
        return jnp.concatenate([values[:, :1], rest], axis=1).T

    def by_sums(values):
        # For CUDA XLA tries many programs for each product, which takes seconds, and the one that it takes, and with it
        # the order of the sums, may differ between processes.
        values = lax.optimization_barrier(values)
        first, *others = (values[:, j] for j in range(degree + 1))
        rises = [other - first for other in others]
        columns = [sum(rise * float(row[j]) for rise, row in zip(rises, powers, strict=True)) for j in range(degree)]
        return lax.optimization_barrier(jnp.stack([first, *columns]))

    return lax.platform_dependent(values, cuda=by_sums, default=by_products)


def evaluate(coefficients, cell, place, out_sharding=None):
    """The polynomial of each `cell` (int32, within bounds) at `place` in [0, 1]."""
    value = None
    for column in reversed(tuple(coefficients)):
        term = column.at[cell].get(mode="promise_in_bounds", out_sharding=out_sharding)
        value = term if value is None else value * place + term
    return value
