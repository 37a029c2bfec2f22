"""GGUF files seen as Hugging Face checkpoints."""
