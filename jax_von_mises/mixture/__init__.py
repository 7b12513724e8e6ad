"""Mixtures of any distribution."""
