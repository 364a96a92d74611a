"""Lowering for the CPU backend: attention for our own delegate, the rest for XNNPACK."""
