"""The command line: commands, their progress and summary, and which of several processes this one is."""
