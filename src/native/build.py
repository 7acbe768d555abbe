"""Compiles the core with mypyc in a folder of its own, and puts the result beside this file."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata, util
from importlib.machinery import EXTENSION_SUFFIXES
from modulefinder import ModuleFinder
from pathlib import Path
from tempfile import TemporaryDirectory

from native import classes
from native.classes import field_annotations, rewritten
from native.loader import find_mismatch, read_manifest
from native.modules import LIBRARY, MANIFEST, MODULES, PACKAGES, SOURCES, source_digests, source_path

# Other packages are not followed: they take minutes, no compiled module needs their types, and mypy fails on some.
_CONFIG = """[mypy]
strict = True
explicit_package_bases = True
ignore_missing_imports = True
follow_imports = skip

"""
_FOLLOWED = """[mypy-{package},{package}.*]
follow_imports = silent

"""
_SETUP = """
from mypyc.build import mypycify
from setuptools import setup

extensions = mypycify(["--config-file=mypy.ini", *{files!r}], opt_level="3", debug_level="0")
setup(name="core", packages=[], ext_modules=extensions)
"""


class BuildError(Exception):
    """mypyc or the C compiler failed; the text is the last lines that it printed."""


def is_current() -> bool:
    """True if the compiled core is there, fits the sources and this Python, and was built as it would be now.

    Without mypy nothing would be built now, and what is there is current.
    """
    if find_mismatch(manifest := read_manifest()):
        return False
    try:
        return bool(manifest.get("builder") == _builder_digest())
    except metadata.PackageNotFoundError:
        return True


def _builder_digest() -> str:
    parts = [path.read_bytes() for path in (Path(__file__), Path(classes.__file__))]
    return hashlib.sha256(b"".join(parts) + metadata.version("mypy").encode()).hexdigest()


def find_obstacle() -> str:
    """What is missing to compile; empty: nothing."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if not any(map(shutil.which, (compiler, "cc"))):
        return f"there is no C compiler ({compiler})"
    if util.find_spec("mypyc") is None or util.find_spec("setuptools") is None:
        return "mypy and setuptools, the extra 'compiled', are not installed"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers are not installed"
    return ""


def build() -> None:
    """Compiles the core; the folder of an earlier build is replaced when the new one is complete. Raises BuildError."""
    with TemporaryDirectory(prefix="tandem-core-") as folder:
        tree = Path(folder)
        digests = _copy_sources(tree)
        _compile(tree)
        _install(tree, digests)


def _copy_sources(tree: Path) -> dict[str, dict[str, str]]:
    """The project's packages, for types, with the compiled modules rewritten; the digests as they were, of the compiled
    modules (`sources`) and of those that they take types from (`types`).

    An installed wheel lies among packages of others.
    """
    for package in PACKAGES:
        shutil.copytree(SOURCES / package, tree / package, ignore=shutil.ignore_patterns("__pycache__", "lib", "conf"))
    digests = {"sources": source_digests(MODULES, tree), "types": source_digests(type_sources(tree), tree)}
    for module in MODULES:
        path = source_path(module, tree)
        path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
    return digests


def type_sources(root: Path = SOURCES) -> list[str]:
    """The modules of the project that the compiled ones import, directly or not, by name.

    mypyc compiles in what it finds there: the types of fields, the arguments of functions, constants.
    """
    finder = ModuleFinder(path=[str(root)])
    for module in MODULES:
        finder.import_hook(module)
    return sorted(name for name in finder.modules if name.partition(".")[0] in PACKAGES and name not in MODULES)


def _compile(tree: Path) -> None:
    files = [str(source_path(module, Path())) for module in MODULES]
    followed = "".join(_FOLLOWED.format(package=package) for package in PACKAGES)
    (tree / "mypy.ini").write_text(_CONFIG + followed, encoding="utf-8")
    (tree / "setup.py").write_text(_SETUP.format(files=files), encoding="utf-8")
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError("\n".join((done.stdout + done.stderr).strip().splitlines()[-15:]))


def _install(tree: Path, digests: dict[str, dict[str, str]]) -> None:
    """Moves the built files into place, each under its module's name."""
    suffix = EXTENSION_SUFFIXES[0]
    with TemporaryDirectory(dir=LIBRARY.parent, prefix=".lib-") as made:
        files = {}
        for module, path in _built(tree, suffix):
            files[module] = f"{module}{suffix}"
            shutil.copy(path, Path(made) / files[module])
        annotations = {module: field_annotations(source_path(module).read_text(encoding="utf-8")) for module in MODULES}
        manifest = {
            "suffix": suffix,
            "builder": _builder_digest(),
            **digests,
            "files": files,
            "annotations": annotations,
        }
        (Path(made) / MANIFEST.name).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        os.chmod(made, 0o755)
        shutil.rmtree(LIBRARY, ignore_errors=True)
        os.rename(made, LIBRARY)
        Path(made).mkdir()  # for the context manager to remove


def _built(tree: Path, suffix: str) -> Iterator[tuple[str, Path]]:
    """The built modules, and the library that they share."""
    yield from ((module, source_path(module, tree).with_suffix(suffix)) for module in MODULES)
    yield from ((path.name.removesuffix(suffix), path) for path in tree.glob(f"*{suffix}"))
