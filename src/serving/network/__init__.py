"""Emulated network links: rate, delay, jitter, loss and outages, constant or from recordings.

Read `link.py` first. `trace.py` replays recordings, of which `mahimahi.py`, `two_columns.py` and `ucc_5g.py` read one
file format each.
"""
