"""Define the cases of the benchmark: one module for each subject, with a function `cases` that returns a list."""

import importlib

__all__ = ["GROUPS", "cases"]

GROUPS = (
    *("circle", "arrays", "float64", "calls", "gradients", "functions", "fits", "sphere", "rotations", "pairs"),
    *("density", "streams", "words", "accuracy", "startup"),
)


def cases(names=GROUPS):
    """Return the cases of the groups `names`, by group."""
    return {name: importlib.import_module(f"benchmarks.subjects.{name}").cases() for name in names}
