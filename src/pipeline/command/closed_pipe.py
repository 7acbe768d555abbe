"""Ends a command without a traceback if its output goes into a pipe that is closed, as in `... | head`."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from pipeline.errors import CLOSED_PIPE


@contextmanager
def ends_at_closed_pipe() -> Iterator[None]:
    """Raises SystemExit in the block when it prints into a closed pipe."""
    streams = sys.stdout, sys.stderr
    guarded = [cast(TextIO, _PipeOutput(stream)) for stream in streams]
    sys.stdout, sys.stderr = guarded
    try:
        yield
    finally:
        try:
            for stream in guarded:
                stream.flush()
        finally:
            sys.stdout, sys.stderr = streams


class _PipeOutput:
    """A stream that raises SystemExit for a broken pipe: jobs, logs and callbacks catch every Exception and go on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return int(self._call(self._stream.write, text))

    def writelines(self, lines: Iterable[str]) -> None:
        self._call(self._stream.writelines, lines)

    def flush(self) -> None:
        self._call(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _call(self, method: Callable[..., Any], *given: object) -> Any:
        try:
            return method(*given)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # for what is still to be flushed
            sys.exit(CLOSED_PIPE)
