"""Compute the marginal of one angle, its normaliser, moments and quantile for the bivariate von Mises models."""
