"""Classes from outside the project that a configuration names: what they lack, and where their errors come from."""

from collections.abc import Iterator, Mapping
from json import JSONDecodeError
from traceback import walk_tb
from typing import Any

from pipeline.artifacts.own_code import PROJECT_PACKAGES, is_own

_TARGET = "_target_"


def error_text(problem: BaseException, data: Any, where: str) -> str | None:
    """What went wrong in a user's class below the node `data`, with its place; None if none of its lines took part."""
    own = dict(_own_targets(data, where))
    tops = {path.partition(".")[0] for path in own}
    frames = [frame for frame in _frames(problem) if frame[0].partition(".")[0] in tops]
    if not frames:
        return None
    module, file, line = frames[-1]
    path = next((path for path in own if path.rpartition(".")[0] == module), next(iter(own)))
    return f"{own[path]}: {path} ({file} line {line}): {_reason(problem)}"


def _frames(problem: BaseException) -> Iterator[tuple[str, str, int]]:
    """(module, file, line) of each frame, the outermost first; behind them those of a child process that failed."""
    for frame, line in walk_tb(problem.__traceback__):
        yield str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename, line
    yield from getattr(problem, "remote_frames", ())


def _own_targets(data: Any, where: str) -> Iterator[tuple[str, str]]:
    """(path, its place) of every class or function of the user's below a node."""
    if isinstance(data, Mapping):
        if is_own(str(data.get(_TARGET, PROJECT_PACKAGES[0]))):
            yield data[_TARGET], where
        for key, value in data.items():
            yield from _own_targets(value, f"{where}.{key}")
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _own_targets(value, f"{where}[{index}]")


def _reason(problem: BaseException) -> str:
    """Its words; those of Python and of libraries with the kind of error, and a text that is no JSON with its start."""
    if str(problem) and (type(problem) is ValueError or not is_own(type(problem).__module__)):
        return str(problem)
    of = f" in {problem.doc[:60]!r}" if isinstance(problem, JSONDecodeError) else ""
    said = f": {problem}" if str(problem) else ""
    return f"{type(problem).__name__}{said}{of}. TANDEM_DEBUG=1 shows the traceback."


def missing_members(value: object, protocol: Any) -> list[str]:
    """The members of the protocol that an object lacks; none where the annotation is no protocol."""
    bases = [base for base in getattr(protocol, "__mro__", ()) if getattr(base, "_is_protocol", False)]
    names = {name: None for base in reversed(bases) for name in (*vars(base), *vars(base).get("__annotations__", ()))}
    public = [name for name in names if not name.startswith("_")]
    return [name for name in public if not hasattr(type(value), name) and not hasattr(value, name)]
