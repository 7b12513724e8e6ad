"""Combine each example with a dtype, and say which combinations `make test` leaves to `make test-more`."""

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from jax_von_mises.engine.base import of_one_angle
from tests.distributions.conformance import spaces
from tests.distributions.conformance.examples import EXAMPLES, PLAIN, Example

# Those of the examples made of others that `make test-more` tests, too. The rest is tested weekly.
MADE = {"VonMises.from_natural", "VonMisesFisher.from_natural", "SineSkewed VonMises", "Mixture VonMises"}
MADE |= {"Mixture VonMisesFisher", "Mixture SineBivariateVonMises"}
# Programs of pairs compile for 10 s.
LIGHT = (PLAIN | MADE) - {"SineBivariateVonMises", "CosineBivariateVonMises", "Mixture SineBivariateVonMises"}


def marked(quick: Collection[str], more: Collection[str] = PLAIN | MADE) -> list[Any]:
    """Return the names of all examples, with marks for those that `make test`, or also `make test-more`, leaves out."""

    def marks(name: str) -> Any:
        return () if name in quick else pytest.mark.more if name in more else pytest.mark.slow

    return [pytest.param(name, marks=marks(name)) for name in EXAMPLES]


@dataclasses.dataclass
class Case:
    """One example in one dtype."""

    example: Example
    dtype: Any

    @functools.cached_property
    def one(self):
        """A batch of three distributions, or the first of them."""
        given = self.example.parameters(self.dtype) if self.example.batched else self.example.one(self.dtype)
        return self.example.make(**given)

    @functools.cached_property
    def space(self) -> spaces.Space:
        """The space of draws."""
        if of_one_angle(self.one):
            return spaces.CIRCLE
        if not self.example.of_vectors:
            return spaces.TORUS
        return spaces.SPHERE if self.one.event_shape == (3,) else spaces.ROTATIONS

    def tolerance(self, float32: float, float64: float) -> float:
        """Return the tolerance of the dtype."""
        return float32 if self.dtype == np.float32 else float64


def cases(quick: Collection[str], float32: Collection[str], float64: Collection[str]) -> list[Any]:
    """Return the parameters of a fixture.

    Those of the names `quick`, in float32, belong to `make test`, and those of the names `float32` and `float64` to
    `make test-more`.
    """
    return [
        pytest.param((name, dtype), id=f"{name}-{dtype.__name__}", marks=marks)
        for dtype, names in ((np.float32, marked(quick, float32)), (np.float64, marked((), float64)))
        for (name,), marks, _ in names
    ]


@contextlib.contextmanager
def in_its_mode(parameter: tuple[str, Any]) -> Iterator[Case]:
    """Return the case of a fixture's parameter, in 64-bit mode if necessary."""
    name, dtype = parameter
    with jax.enable_x64(dtype == np.float64):
        yield Case(EXAMPLES[name], dtype)
