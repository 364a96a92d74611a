"""GGUF files: metadata, tokenizers, and weights under transformers' names. Needs no torch."""
