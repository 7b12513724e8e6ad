"""The version of the package, also of what it writes."""

__version__ = "0.1.0"
