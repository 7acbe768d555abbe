"""Messages between hosts over gRPC: one bidirectional stream per pair of hosts.

Read `stream.py` first. `client.py` and `server.py` open streams, `handshake.py` checks that both hosts belong to one
run, `encode.py` and `decode.py` convert messages, `connection.py` checks and delivers received frames. `shaping/`
limits the loopback with `tc netem`.
"""
