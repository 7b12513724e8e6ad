"""Scripts that make parts of the package; none of them is installed."""
