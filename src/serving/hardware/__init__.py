"""Time, memory and energy of a run: chips, fleets, tiers, model shapes and latency models.

Read `latency.py` first: a forward's load and the linear model that times it. `testbed.py` is what a configuration's
`hardware` builds; `executor.py` runs work on one model and times it as another.
"""
