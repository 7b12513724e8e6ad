"""Examples of the documentation: scripts that print tables and draw pictures; the tests also run them."""
