"""The source of a user's own modules, which is a part of the identity of the stages that run it."""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

PROJECT_PACKAGES = ("pipeline", "serving", "training", "native", "hydra_plugins")


def code_digests(modules: Iterable[str]) -> dict[str, str]:
    """The sha256 of the source of each module that is a user's own, and of those of the user's own that it imports.

    Modules of the project and installed ones are none of a user's.
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
    """None for a module of the project or an installed one, and for what is no module with a source."""
    if not _is_own(module.partition(".")[0]):
        return None
    file = getattr(sys.modules.get(module), "__file__", None) or next(_places(module), "")
    return Path(file) if file.endswith(".py") else None


def _is_own(package: str) -> bool:
    """True if a module without a dot is a user's. It is not imported: that may take seconds."""
    if package in PROJECT_PACKAGES or package in sys.stdlib_module_names:
        return False
    places = [getattr(sys.modules.get(package), "__file__", None) or "", *_places(package)]
    found = [place for place in places if place]
    return bool(found) and not any(Path(place).is_relative_to(one) for place in found for one in _installed_folders())


def _places(module: str) -> Iterator[str]:
    """Where the module would be imported from: its file, or the folders of a package without one."""
    try:
        spec = find_spec(module)
    except (ImportError, AttributeError, ValueError):  # its package is none, or fails
        return
    if spec:
        yield from filter(None, (spec.origin, *(spec.submodule_search_locations or ())))


def _imported(source: bytes, module: str, is_package: bool) -> Iterator[str]:
    """Names that may be modules which this source imports; what cannot be parsed imports nothing."""
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
