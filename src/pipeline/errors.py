"""Errors that a user can correct: printed as one paragraph without a traceback, before any work is lost.

Exit statuses of commands are here too: a sweep's workers return those of its jobs.
"""

import os
import sys
import traceback

BAD_INPUT = 2
INTERNAL_ERROR = 1
INTERRUPTED = 130
CLOSED_PIPE = 141
"""128 and the number of SIGPIPE, as a shell has it."""


class UserError(Exception):
    """Says which setting is wrong, the value given, the values allowed, and the remedy."""


class ConfigError(UserError):
    """The configuration names something that does not exist, or combines settings that exclude each other."""


def print_problem(problem: Exception) -> int:
    """Prints an error of the user, or a fault of the project in full; the exit status."""
    if isinstance(problem, UserError):
        return print_error(problem)
    traceback.print_exception(problem)
    return INTERNAL_ERROR


def print_error(problem: str | UserError) -> int:
    """Prints the error, with its traceback if TANDEM_DEBUG is set; the exit status."""
    if isinstance(problem, UserError) and os.environ.get("TANDEM_DEBUG"):
        traceback.print_exception(problem)
    print(f"error: {problem}", file=sys.stderr)
    return BAD_INPUT
