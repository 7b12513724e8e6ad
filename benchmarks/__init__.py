"""Speed and accuracy of ``jax_von_mises`` compared with other libraries.

Each program answers one question; docs/benchmarks.md lists them. Run them from the root of the repository;
``pip install -e ".[bench]"`` installs their dependencies.
"""
