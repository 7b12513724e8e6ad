"""Version of the package, which the files that it writes record."""

__version__ = "0.2.0"
