"""Which policy wins where: one load for all policies at each place of a grid of link, acceptance, devices and load; the
borders between winners, and closed forms beside them. Read `contest.py` first.
"""
