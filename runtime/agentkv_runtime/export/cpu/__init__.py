"""Lowering for the CPU backend: attention and quantised layers for our delegate, the rest for XNNPACK."""
