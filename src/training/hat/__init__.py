"""Training of HAT's adapter and of Medusa heads on the hidden states of a frozen target (HAT, section 3.4).

Read `stages.py` first: record a trace (`trace.py`), train on it (`train.py`, `distillation.py`), judge the drafts when
they are served (`serving_eval.py`).
"""
