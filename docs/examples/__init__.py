"""Examples of the documentation, each a script that draws its own picture; the tests run them too."""
