"""A package, so that no other `tests` of this machine is imported in its place."""
