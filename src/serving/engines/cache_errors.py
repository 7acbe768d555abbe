"""Errors of a KV cache that all engines raise, with models and without."""


class CacheHoleError(RuntimeError):
    """Work begins after the end of its session's cache."""


class CacheFullError(RuntimeError):
    """More is to be cached than there is room for."""
