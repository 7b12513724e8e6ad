"""Other distributions on the circle."""
