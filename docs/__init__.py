"""Programs that generate parts of the documentation, and its examples."""
