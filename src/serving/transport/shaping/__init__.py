"""Puts a link on this machine's loopback with `tc netem`. `netem.py` builds the commands, `tc.py` runs them."""
