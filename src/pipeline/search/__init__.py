"""Searches over options with Optuna: the space, the study that survives interruptions, and the loop of trials. Read
`search.py` first."""
