"""Artifacts: stages as data, the store that keeps what they built, build locks and the runner. Read `stage.py` first,
then `store.py` and `runner.py`."""
