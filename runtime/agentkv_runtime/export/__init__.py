"""Ahead of time: Hugging Face models in, ExecuTorch programs out. Needs torch; the rest of the package does not."""
