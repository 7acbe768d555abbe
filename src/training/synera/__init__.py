"""Synera's offline profiling: thresholds of selective offloading, and the alignment of the small and the large model.

Read `stages.py` first.
"""
