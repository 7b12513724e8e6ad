"""Bivariate von Mises distributions."""
