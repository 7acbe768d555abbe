"""A model on one chip, by torch: layers over packed tokens of many sessions, with a paged KV cache. Start with
`engine.py`; `draft.py` and `forward.py` are its two kinds of work, `model_runner.py` runs the layers.
"""

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gpt_neox")
"""`model_type` in the config.json of the checkpoints that this engine runs; here, because plans load no torch."""
