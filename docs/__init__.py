"""Generate parts of the documentation, and provide its examples."""
