"""Distributions with any density on the circle."""
