"""Errors that a user can correct: printed as one paragraph without a traceback, before any work is lost."""


class UserError(Exception):
    """Says which setting is wrong, the value given, the values allowed, and the remedy."""


class ConfigError(UserError):
    """The configuration names something that does not exist, or combines settings that exclude each other."""
