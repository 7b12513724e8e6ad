"""Tests of the package; `reference` holds the exact values."""
