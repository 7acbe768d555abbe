"""The commands: `main.py` is `python -m pipeline`, `service.py` runs the cloud, device and page processes. Read
`main.py` first.
"""
