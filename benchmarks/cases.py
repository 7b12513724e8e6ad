"""Define the timed cases."""

from typing import NamedTuple

import numpy as np

__all__ = ["ARC", "CASES", "GRIDS", "LOCS", "SEED", "TASKS", "WEIGHTS", "Case", "LogUniform", "Task", "on_gpu"]

# Factor for the size of a case on a GPU, which draws 2^24 angles in the time of a few kernel launches.
GPU_FACTOR = 16
SEED = 20260101
ARC = (-1.0, 2.0)
WEIGHTS, LOCS = (0.3, 0.7), (-1.0, 2.0)


class Task(NamedTuple):
    """The noun for the results of a function, and the unit of its rates."""

    noun: str
    scale: float = 1e6
    prefix: str = "M"

    @property
    def unit(self):
        """The unit of a rate, as printed."""
        return f"{self.prefix} {self.noun}/s"


TASKS = {
    "sample": Task("draws"),
    "icdf": Task("points"),
    "cdf": Task("points"),
    "log_prob": Task("points"),
    "fit": Task("data sets", 1e3, "k"),
    "truncated": Task("draws"),  # from `ARC`
    "mixture": Task("points"),  # log density of a mixture of two components, with `WEIGHTS` and `LOCS`
    "gradient": Task("draws"),  # of the sum of the draws, with respect to their common concentration
}


class LogUniform(NamedTuple):
    """Concentrations, one for each draw, log-uniform between two bounds."""

    low: float
    high: float

    def values(self, count):
        """Return a float32 array of `count` concentrations, identical in every run and for every competitor."""
        spread = np.random.default_rng(0).uniform(np.log(self.low), np.log(self.high), count)
        return np.exp(spread).astype(np.float32)


class Case(NamedTuple):
    """A timed case: `count` results of `task` for `concentration` and location 0, in `dtype`.

    Goals apply to a `group`. In a grid, the group is the name of the grid. Otherwise, it is "one" (one concentration
    for all draws), "array" (a separate one for each draw) or "small" (a short call, which measures overhead) for the
    task "sample", and the name of the case for other tasks. `size` is the number of angles in a data set.
    """

    name: str
    group: str
    count: int
    concentration: float | LogUniform
    task: str = "sample"
    size: int = 1
    dtype: str = "float32"
    key_impl: str = "threefry2x32"

    @property
    def per_draw(self):
        """Whether every draw has its own concentration."""
        return isinstance(self.concentration, LogUniform)

    @property
    def concentrations(self):
        """The concentration as a float32 scalar or array."""
        return self.concentration.values(self.count) if self.per_draw else np.float32(self.concentration)

    def inputs(self, i):
        """Return input `i` as a NumPy array; tasks that start from keys do not use it."""
        generator = np.random.default_rng((SEED, i))
        if self.task == "icdf":
            values = generator.random(self.count)
        elif self.task == "fit":
            values = generator.vonmises(0.0, self.concentration, (self.count, self.size))
        else:
            values = generator.uniform(-3.14, 3.14, self.count)  # an angle closer to pi could round to more than pi
        return values.astype(self.dtype)

    def describe(self):
        """Return a description in one line."""
        if self.per_draw:
            concentration = "one concentration per draw, log-uniform from {:g} to {:g}".format(*self.concentration)
        else:
            concentration = f"concentration {self.concentration:g}"
        noun = TASKS[self.task].noun + (f" of {self.size:,} angles" if self.task == "fit" else "")
        key = f", {self.key_impl} key" if self.task in ("sample", "truncated", "gradient") else ""
        return f"{self.count:,} {noun}, {concentration}, {self.dtype}{key}"


CASES = (
    Case("k=0.1", "one", count=2**24, concentration=0.1),  # nearly uniform: rejection accepts nearly every attempt
    Case("k=1", "one", count=2**24, concentration=1.0),
    Case("k=5", "one", count=2**24, concentration=5.0),
    Case("k=100", "one", count=2**24, concentration=100.0),
    Case("k=1e4", "one", count=2**24, concentration=1e4),  # rejection accepts 66% of attempts, its minimum
    Case("array", "array", count=2**22, concentration=LogUniform(1e-2, 1e4)),
    Case("small", "small", count=1000, concentration=5.0),
    Case("icdf", "icdf", count=2**20, concentration=5.0, task="icdf"),
    Case("cdf", "cdf", count=2**20, concentration=5.0, task="cdf"),
    Case("cdf64", "cdf64", count=2**20, concentration=5.0, task="cdf", dtype="float64"),
    Case("log_prob", "log_prob", count=2**20, concentration=5.0, task="log_prob"),
    Case("mixture", "mixture", count=2**20, concentration=5.0, task="mixture"),
    Case("truncated", "truncated", count=2**20, concentration=5.0, task="truncated"),
    Case("fit", "fit", count=1000, concentration=5.0, task="fit", size=1000),
    Case("gradient", "gradient", count=2**20, concentration=5.0, task="gradient"),
)


GRID_COUNT = 2**22
NARROW, BROAD = LogUniform(0.5, 50.0), LogUniform(1e-2, 1e4)

# From one angle to a gigabyte of angles.
SIZES = (0, 10, 14, 18, 22, 26, 28)
DTYPES = ("float32", "bfloat16", "float16", "float64")
# Some releases of JAX lack some of these generators.
KEYS = ("threefry2x32", "threefry4x32", "philox2x32", "philox4x32", "rbg", "unsafe_rbg")
FUNCTIONS = ("icdf", "cdf", "log_prob", "gradient")

# Additional cases, which run only on request.
GRIDS = {
    "sizes": tuple(Case("size=1" if power == 0 else f"size=2^{power}", "sizes", 2**power, 5.0) for power in SIZES),
    "concentrations": tuple(
        Case(f"concentration={k:g}", "concentrations", GRID_COUNT, k)
        for k in (0.01, 0.1, 1.0, 10.0, 100.0, 1e4, 1e6, 1e8)
    ),
    "dtypes": tuple(Case(f"dtype={dtype}", "dtypes", GRID_COUNT, 5.0, dtype=dtype) for dtype in DTYPES),
    "keys": tuple(Case(f"key={name}", "keys", GRID_COUNT, 5.0, key_impl=name) for name in KEYS),
    "arrays": tuple(
        Case(f"array-{name}=2^{power}", "arrays", 2**power, concentrations)
        for name, concentrations in (("narrow", NARROW), ("broad", BROAD))
        for power in SIZES
        if 10 <= power <= 26
    ),
    # What a GPU is asked for: one concentration, one for each angle, and the gradient with respect to these.
    "gpu": (
        *(Case(f"gpu-one=2^{power}", "gpu", 2**power, 5.0) for power in (20, 24, 28)),
        *(Case(f"gpu-array=2^{power}", "gpu", 2**power, BROAD) for power in (20, 24, 26)),
        *(Case(f"gpu-gradient=2^{power}", "gpu", 2**power, BROAD, task="gradient") for power in (20, 24)),
    ),
    "functions": tuple(
        Case(f"{task},k={k:g},{dtype}", "functions", 2**20, k, task=task, dtype=dtype)
        for task in FUNCTIONS
        for k, dtype in ((0.1, "float32"), (100.0, "float32"), (1e4, "float32"), (5.0, "float64"))
    ),
}

# Groups whose cases have the same size on a GPU as on a CPU.
FIXED = ("small", "sizes", "arrays", "gpu")


def on_gpu(case):
    """Return the case with enough work for a GPU; cases of the groups in `FIXED` do not change."""
    return case if case.group in FIXED else case._replace(count=case.count * GPU_FACTOR)
