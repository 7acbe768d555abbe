"""One model on one chip: drafts, verifies and runs spans of layers over `transformers` models with its own KV cache."""
