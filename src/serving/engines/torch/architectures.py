"""Which models the engine can take apart."""

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gpt_neox")
"""`model_type` in a checkpoint's config.json."""
