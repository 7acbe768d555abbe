"""Devices, clouds, links and policies: what a run does. Read `messages.py` first."""

from native import loader

loader.install()
