"""The source of a user's own modules, which is a part of the identity of the stages that run it."""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

PROJECT_PACKAGES = ("pipeline", "serving", "training", "native", "hydra_plugins")


def is_own(path: str) -> bool:
    """True if this dotted path is a user's."""
    return path.partition(".")[0] not in PROJECT_PACKAGES


def place(path: str) -> str:
    """The file and line of the function at a dotted path, as `lab/fit.py line 3`; empty if its module is not loaded."""
    module, _, name = path.rpartition(".")
    code = getattr(getattr(sys.modules.get(module), name, None), "__code__", None)
    return f"{code.co_filename} line {code.co_firstlineno}" if code else ""


def code_digests(modules: Iterable[str]) -> dict[str, str]:
    """The sha256 of the source of each of these modules that is neither the project's nor installed, and of all such
    modules that it imports.
    """
    found: dict[str, str] = {}
    seen, waiting = set[str](), list(modules)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if file := _own_source(name):
            source = file.read_bytes()
            found[name] = hashlib.sha256(source).hexdigest()
            waiting += _imported(source, name, is_package=file.name == "__init__.py")
    return dict(sorted(found.items()))


def _own_source(module: str) -> Path | None:
    """None for a module of the project or an installed one, and for what is no module with a source.

    Nothing is imported, not even the module's package: that may take seconds.
    """
    top, *rest = module.split(".")
    if top in PROJECT_PACKAGES or top in sys.stdlib_module_names:
        return None
    file = next((file for file in _places(top, rest) if file.suffix == ".py" and file.is_file()), None)
    return None if file is None or any(map(file.is_relative_to, _installed_folders())) else file


def _places(top: str, rest: Sequence[str]) -> Iterator[Path]:
    """Where the source of the module `top`, or of one below that package, may be."""
    try:
        spec = find_spec(top)
    except ValueError:  # no name, or a module that was made by hand
        return
    if spec is None:
        return
    if not rest:
        yield Path(spec.origin or "")
    for folder in spec.submodule_search_locations or () if rest else ():
        yield Path(folder, *rest[:-1], f"{rest[-1]}.py")
        yield Path(folder, *rest, "__init__.py")


def _imported(source: bytes, module: str, is_package: bool) -> Iterator[str]:
    """The names in the source's imports, which may be modules; none if the source cannot be parsed."""
    package = module if is_package else module.rpartition(".")[0]
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _resolved("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _resolved(name: str, package: str) -> str:
    """The absolute name of a module; an empty one for a relative name that leaves its package."""
    try:
        return resolve_name(name, package)
    except ImportError:
        return ""


@cache
def _installed_folders() -> frozenset[str]:
    paths = sysconfig.get_paths()
    return frozenset(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
