"""Observers of a run and what is computed from them: records of sessions, batch times against the estimator, use of the
cloud, stalls of devices, overhead of decisions. Read `recorder.py` first.
"""
