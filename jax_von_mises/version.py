"""The version of the package, also of what it writes."""

__version__ = "0.2.0"
