"""Draw angles as lazy Dask arrays.

The module needs the extra ``dask``.
"""

from jax_von_mises.streams.dask import sample as sample

__all__ = ["sample"]


def __dir__() -> list[str]:
    """Return the public names and the names that start with two underscores."""
    return [name for name in globals() if name in __all__ or name.startswith("__")]
