"""Define the cases of the benchmark, in groups whose names the files of results have."""

import importlib

__all__ = ["GROUPS", "cases"]

# The module and the function that returns the cases of each group.
WHERE = {
    **{name: ("draws", name) for name in ("circle", "arrays", "float64")},
    **{name: (name, "cases") for name in ("classes", "calls", "gradients", "functions", "fits", "sphere")},
    **{name: (name, "cases") for name in ("rotations", "pairs", "streams", "accuracy", "startup")},
}
GROUPS = tuple(WHERE)


def cases(names=GROUPS):
    """Return the cases of the groups `names`, by group."""
    found = {}
    for name in names:
        module, function = WHERE[name]
        found[name] = getattr(importlib.import_module(f"benchmarks.subjects.{module}"), function)()
    return found
