"""One command of the operating system, run to its end."""

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from typing import TypeAlias

Command: TypeAlias = tuple[str, ...]

Run: TypeAlias = Callable[[Command], str]
"""What the command wrote; raises CommandError when it fails."""

_LONGEST_S = 30.0


class CommandError(RuntimeError):
    """A command failed; the message holds both, the command and what it said."""


def search_path(environ: Mapping[str, str] = os.environ) -> str:
    """PATH, and where administrators' tools are, which other people's PATH leaves out."""
    return os.pathsep.join((environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def run(command: Command) -> str:
    """Without a shell, in plain English. Raises CommandError when it fails or does not end."""
    told = os.environ | {"PATH": search_path(), "LC_ALL": "C"}
    try:
        done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise CommandError(f"`{shlex.join(command)}`: {problem}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip(" .\n") or f"exit status {done.returncode}"
        raise CommandError(f"`{shlex.join(command)}`: {said}")
    return done.stdout
