"""Command line: the commands, their progress and their summary."""
