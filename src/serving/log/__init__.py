"""The event log of a run, its replay, and its time line for trace viewers.

Read `event_log.py` first: the entries and the JSON lines of one process. `reader.py` reads and merges logs, `replay.py`
checks that fresh nodes decide the same, `perfetto.py` draws the time line.
"""
