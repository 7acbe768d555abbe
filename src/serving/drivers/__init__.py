"""Drivers deliver events to nodes and carry out their commands: `Simulator` in virtual time, `RealTimeDriver` in real
time. Read `simulator.py` first.
"""
