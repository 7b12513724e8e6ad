"""Numerics of the bivariate von Mises models: the marginal of one angle, its normaliser, moments and quantile."""
