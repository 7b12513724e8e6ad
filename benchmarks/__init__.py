"""Measure the speed and accuracy of ``jax_von_mises``, and compare them with other libraries.

docs/benchmarks.md lists the programs and the question that each one answers. Run them from the root of the repository;
``pip install -e ".[bench]"`` installs their dependencies.
"""
