"""`/v1/branches`: branches that clients create, hold by name, and publish."""
