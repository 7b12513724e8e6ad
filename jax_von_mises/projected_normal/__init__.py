"""Directions of normal vectors."""
