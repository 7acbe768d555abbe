"""Measures what hidden states that a split model sends reveal of the user's text; see `inversion_probe.py`."""
