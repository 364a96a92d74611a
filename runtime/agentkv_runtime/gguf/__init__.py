"""What a GGUF file says beside its weights. Needs neither torch nor the package gguf."""
