"""Lowering for the MLX backend: the whole program as one graph of MLX operations."""
