"""Saving, loading and offloading branches: the file format and the operations."""
