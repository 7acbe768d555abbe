"""The embedded model pair: its synthetic corpus, tokenizer, Llama models and their training, and the pair's quality.

Read `stages.py`, then `lm_training.py`. `corpus.py` is a stage of its own.
"""
