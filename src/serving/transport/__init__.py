"""Messages between hosts: one gRPC stream a pair of hosts; what arrives is checked before a node hears it."""
