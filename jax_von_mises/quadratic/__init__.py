"""Densities on spheres whose logarithm is a quadratic form: one engine of words, integrals and eigenframes."""
