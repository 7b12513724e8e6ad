"""What the documentation is built from, and its examples."""
