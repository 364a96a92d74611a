"""Output of commands, and their progress display."""
