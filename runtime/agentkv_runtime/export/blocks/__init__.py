"""Weights as blocks of GGUF's types, made well: which type a layer gets, and the bytes of its rows."""
