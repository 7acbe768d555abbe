"""A policy is one choice for each slot in `slots/`; `partition/` divides a model over tiers. Read `policy.py` first: it
lists the slots, and the combinations that are refused.
"""
