"""LoRA adapters: read from PEFT files, applied per row of a batch."""
