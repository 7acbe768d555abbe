"""The Hydra plugin of `override /hydra/sweeper: search`; `sweeper.py` is its only file."""
