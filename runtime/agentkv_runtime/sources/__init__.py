"""What models are exported from, beside the safetensors of a Hugging Face folder: GGUF files, LoRA adapters."""
