"""Examples of the documentation: scripts that print tables and draw pictures."""
