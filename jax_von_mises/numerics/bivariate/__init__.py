"""Numerics of the bivariate von Mises models: the marginal of an angle, its normaliser, moments and quantile."""
