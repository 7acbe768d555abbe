"""Stages that profile machines and train what serving loads.

Every package has a `stages.py` with the functions that configuration names; read those of `wisp/` first. `fitting/` is
the kit that all trainings use.
"""
