"""Divides a model's blocks over the tiers of a testbed. `problem.py` states the problem, each strategy solves it, and
`division.py` builds it from a model and a testbed. Read `problem.py` first.
"""
