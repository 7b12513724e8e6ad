"""Test the package; the reference modules compute exact values independently of it."""
