"""Messages between hosts over gRPC: one bidirectional stream per pair of hosts.

Read `stream.py` first. `client.py` and `server.py` open streams. `frame.py` has what travels, `bounds.py` what a host
accepts in it, and `tensors.py` the values. `connection.py` checks and delivers received frames. `shaping/` limits the
loopback with `tc netem`.
"""
