"""The ways to run a setup: emulated and simulated on virtual time, local and grpc on the wall clock; with the clients
that send requests, injected failures, and the files of results. Read `runtime.py` first: it has the interface.
"""
