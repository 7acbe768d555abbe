"""Capacity: the most devices that a cloud serves within their SLOs (WISP, Eq. 20). `load_test.py` simulates a number of
devices, `search.py` finds the largest number, `stages.py` has the stages: read it first.
"""
