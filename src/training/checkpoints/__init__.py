"""Checkpoints that are made from other checkpoints: unpacked from GGUF, or pruned."""
