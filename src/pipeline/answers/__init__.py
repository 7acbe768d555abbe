"""Answers to questions over many configurations: which policy meets my requirements, and who leads on what.

Read `choose.py` first.
"""
