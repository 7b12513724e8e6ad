"""Command line: the commands, and the summary of a sample."""
