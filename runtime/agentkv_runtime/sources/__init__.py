"""Sources of an export beside the safetensors of a Hugging Face folder: GGUF files, LoRA adapters."""
