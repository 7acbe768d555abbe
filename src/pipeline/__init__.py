"""The command line and everything around a run: configuration, artifacts, running, reports and searches.

Packages from the bottom up: errors, artifacts, config, report, search, running, api, command. Read `running.py` first.
"""

import os

# Threads of libgomp spin while they wait for each other: on a busy machine two of them trained twenty times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
