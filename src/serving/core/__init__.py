"""What nodes and policy slots share: a device's `Session`, a worker's queued requests and KV accounting, scores, keyed
random numbers, measured link and batch times; and the codec of the event log and the wire. Read `session.py` first.
"""
