"""Quantisation of weights into blocks of GGUF's types: choice of each layer's type, and bytes of its rows."""
