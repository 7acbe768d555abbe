"""The kit that every training uses: where it runs, how long, on what batches, which weights are kept.

Read `trainer.py` first. `recipe.py` holds the hyperparameters and loads no torch, so that a plan is made without it.
"""
