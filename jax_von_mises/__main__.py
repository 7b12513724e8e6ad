"""Run the command line as ``python -m jax_von_mises``."""

import sys

from jax_von_mises.cli.program import entry

if __name__ == "__main__":
    sys.exit(entry())
