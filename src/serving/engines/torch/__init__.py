"""A model on one chip, by torch: layers over packed tokens of many sessions, with a paged KV cache. Start with
`engine.py`; `draft.py` and `forward.py` are its two kinds of work, `model_runner.py` runs the layers.
"""
