"""WISP's rejection predictor: token traces, families of predictors, threshold rules and evaluations.

Read `stages.py` first, then `trace.py` (the data), `mlp.py` (the family that is served) and `train.py`.
"""
