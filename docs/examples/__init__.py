"""Provide the examples of the documentation, which print tables and draw pictures."""
