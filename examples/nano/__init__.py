"""A nano model that really does a desk agent's work, and the script that trains it."""
