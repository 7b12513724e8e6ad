"""Piecewise polynomials that a program makes for itself: a function computed once on a grid, then looked up."""

import jax.numpy as jnp
import numpy as np

from jax_von_mises import xla


def cell_polynomials(values, nodes):
    """Coefficients (degree + 1, cells) of the polynomials through `values` (cells, degree + 1).

    `nodes` are their places in a cell, from 0 to 1.
    """
    # Differences first: formed from the values themselves, the power coefficients would lose a digit.
    degree = len(nodes) - 1
    difference = np.concatenate([-np.ones((1, degree)), np.eye(degree)])
    powers = np.linalg.inv(np.vander(nodes, increasing=True)[1:, 1:]).T
    rest = xla.unfused_product(xla.unfused_product(values, difference), powers)
    return jnp.concatenate([values[:, :1], rest], axis=1).T


def evaluate(coefficients, cell, place, out_sharding=None):
    """The polynomial of each `cell` (int32, within bounds) at `place` in [0, 1]."""
    value = None
    for column in reversed(tuple(coefficients)):
        term = column.at[cell].get(mode="promise_in_bounds", out_sharding=out_sharding)
        value = term if value is None else value * place + term
    return value
