"""Examples of the documentation: scripts that print tables and draw pictures, which the tests run too."""
