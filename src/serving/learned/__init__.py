"""What training writes and serving loads: HAT's adapter and Medusa heads, trained scores (token routers, WISP's
rejection predictor), Hyperion's dispatch network, Synera's thresholds. Read `artifact.py` first: it has the file format
of all of them, of recorded traces and of fits.
"""
