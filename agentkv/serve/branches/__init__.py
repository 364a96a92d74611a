"""`/v1/branches`: branches that clients name, hold and publish."""
