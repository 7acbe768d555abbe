"""Latency profiles: the engine timed on a grid of work, and the coefficients of WISP, Eq. 19, fitted to the timings.

Read `stages.py`, then `profile.py`. `grid.py` and `work.py` say what is timed, `timing.py` how; `fit.py` fits it.
"""
