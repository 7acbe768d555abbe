"""From configuration to a wired system: what to serve (`setup.py`), the nodes and links that it needs (`topology.py`),
adding them to a driver (`wiring.py`), loading models (`model_loading.py`). Read `setup.py` first.
"""
