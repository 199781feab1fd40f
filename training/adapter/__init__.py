"""The adapter probe: LoRA and a confidence head on a decoder."""
