"""The participants: a `Device` runs a `Requester` for each session, a `Worker` runs one hop of the target for batches.

Nodes turn events into commands and do nothing else. Read `requester.py` first, then `worker.py`.
"""
