"""Errors that a user can correct: printed as one paragraph without a traceback, before any work is lost.

Exit statuses of commands are here too: a sweep's workers return those of its jobs.
"""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BAD_INPUT = 2
INTERNAL_ERROR = 1
INTERRUPTED = 130
CLOSED_PIPE = 141
"""128 and the number of SIGPIPE, as a shell has it."""


class UserError(Exception):
    """Says which setting is wrong, the value given, the values allowed, and the remedy."""


class ConfigError(UserError):
    """The configuration names something that does not exist, or combines settings that exclude each other."""


@contextmanager
def named_yaml_errors(path: Path) -> Iterator[None]:
    """Turns the errors of reading a file of YAML into a ConfigError that names the file and the line."""
    import yaml

    try:
        yield
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{path} is no text in UTF-8 (byte {problem.start}); save it as UTF-8.") from problem
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        reason = getattr(problem, "problem", None) or problem
        raise ConfigError(f"{place}: this cannot be read as YAML: {reason}.") from problem


def print_problem(problem: Exception) -> int:
    """Prints an error of the user, or a fault of the project in full; the exit status."""
    if isinstance(problem, UserError):
        return print_error(problem)
    traceback.print_exception(problem)
    return INTERNAL_ERROR


def print_error(problem: str | UserError) -> int:
    """Prints the error, with its traceback if TANDEM_DEBUG is set; the exit status."""
    if isinstance(problem, UserError):
        print_wanted_traceback(problem)
    print(f"error: {problem}", file=sys.stderr)
    return BAD_INPUT


def print_interrupted() -> int:
    """Says after Ctrl-C what to do next; the exit status."""
    print("interrupted; all finished stages are kept, and the same command goes on from there.", file=sys.stderr)
    return INTERRUPTED


def survived_problem(problem: Exception) -> str:
    """The text of an error that ends one of several jobs. A fault of the project is printed with its traceback, a
    user's with TANDEM_DEBUG.
    """
    if isinstance(problem, UserError):
        print_wanted_traceback(problem)
        return str(problem)
    traceback.print_exception(problem)
    return f"{type(problem).__name__}: {problem}"


def print_wanted_traceback(problem: UserError) -> None:
    """Prints its traceback if TANDEM_DEBUG is set."""
    if os.environ.get("TANDEM_DEBUG"):
        traceback.print_exception(problem)
