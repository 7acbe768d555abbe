"""The requests of a run: prompts of a data set, their arrivals, service-level objectives and quality metrics.

Read `workload.py` first. A new data set is one file in `datasets/`, built on `dataset.py`.
"""
