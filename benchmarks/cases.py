"""What is timed: the table of cases, shared by the benchmarks and their tests."""

from typing import NamedTuple

import numpy as np

__all__ = ["CASES", "Case", "LogUniform", "on_gpu"]

# A GPU draws 2**24 angles in the time of a few kernel launches; this many times more measures the kernel.
GPU_FACTOR = 16


class LogUniform(NamedTuple):
    """A concentration for every draw, its logarithm uniform between two bounds."""

    low: float
    high: float

    def values(self, count):
        """Float32 array of `count` concentrations, the same in every run and for every competitor."""
        spread = np.random.default_rng(0).uniform(np.log(self.low), np.log(self.high), count)
        return np.exp(spread).astype(np.float32)


class Case(NamedTuple):
    """One timing: `draws` angles at `concentration`, about 0, written as `dtype`.

    `group` is the kind of work, which the goals are set for: one concentration for all draws ("one"), one for each
    draw ("array"), or a call too short to be about anything but its overhead ("small").
    """

    name: str
    group: str
    draws: int
    concentration: float | LogUniform
    dtype: str = "float32"
    key_impl: str = "threefry2x32"

    @property
    def per_draw(self):
        """Whether every draw has its own concentration."""
        return isinstance(self.concentration, LogUniform)

    @property
    def concentrations(self):
        """The concentration as a float32 scalar or array."""
        return self.concentration.values(self.draws) if self.per_draw else np.float32(self.concentration)

    def describe(self):
        """One line for a reader."""
        if self.per_draw:
            law = "one concentration per draw, log-uniform from {:g} to {:g}".format(*self.concentration)
        else:
            law = f"concentration {self.concentration:g}"
        return f"{self.draws:,} draws, {law}, {self.dtype}, {self.key_impl} key"


CASES = (
    Case("k=0.1", "one", draws=2**24, concentration=0.1),  # nearly uniform: rejection keeps nearly every try
    Case("k=1", "one", draws=2**24, concentration=1.0),
    Case("k=5", "one", draws=2**24, concentration=5.0),
    Case("k=100", "one", draws=2**24, concentration=100.0),
    Case("k=1e4", "one", draws=2**24, concentration=1e4),  # rejection keeps 66 %, its worst
    Case("array", "array", draws=2**22, concentration=LogUniform(1e-2, 1e4)),
    Case("small", "small", draws=1000, concentration=5.0),
)


def on_gpu(case):
    """Give the case enough draws for a GPU."""
    return case if case.group == "small" else case._replace(draws=case.draws * GPU_FACTOR)
