"""GGUF files: what they say, their tokenizers, and their weights by transformers' names. Needs no torch."""
