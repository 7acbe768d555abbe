"""The command line and everything around a run: configuration, artifacts, running, reports and searches.

Packages from the bottom up: errors, artifacts, config, report, search, running, api, command. Read `running.py` first.
"""
