"""Define the version of the package, which records it in the files that it writes."""

__version__ = "0.2.0"
