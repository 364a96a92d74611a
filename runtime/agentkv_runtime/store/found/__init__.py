"""Models that other programs keep on this machine, found and used in place."""
