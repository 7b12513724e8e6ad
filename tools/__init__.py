"""Scripts that generate and check parts of the package; they are not installed."""
