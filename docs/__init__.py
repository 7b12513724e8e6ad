"""Programs that make parts of the documentation, and its examples."""
