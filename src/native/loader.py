"""Loads the compiled core in place of its sources, if it was built from exactly these sources for this Python."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any

from native.modules import LIBRARY, MANIFEST, MODULES, source_digests

Annotations = Mapping[str, Mapping[str, str]]
"""Class -> its fields' annotations as text."""

_KEYS = {"suffix", "sources", "types", "files", "annotations"}

in_use = False
"""True if this process loads the compiled core."""


def install() -> None:
    """Lets `import serving...` load the compiled core; says on standard error if it is out of date.

    Has no effect with TANDEM_PURE=1 or TANDEM_FROZEN=1.
    """
    global in_use
    manifest = _wanted_manifest()
    if in_use or manifest is None:
        return
    if reason := find_mismatch(manifest):
        print(f"note: the compiled core is not used: {reason}. `python -m native` builds it again.", file=sys.stderr)
        return
    sys.meta_path.insert(0, CompiledFinder(manifest["files"], manifest["annotations"]))
    in_use = True


def describe() -> str:
    """`compiled` or `pure`: what this process runs, or would run."""
    if in_use:
        return "compiled"
    manifest = _wanted_manifest()
    return "pure" if manifest is None or find_mismatch(manifest) else "compiled"


def _wanted_manifest() -> dict[str, Any] | None:
    """What was built; None: nothing, or the environment demands the sources."""
    if "1" in (os.environ.get("TANDEM_PURE"), os.environ.get("TANDEM_FROZEN")) or not MANIFEST.exists():
        return None
    return read_manifest()


def read_manifest() -> dict[str, Any]:
    """What was built; empty for a file that holds no manifest."""
    try:
        found = json.loads(MANIFEST.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def find_mismatch(manifest: Mapping[str, Any]) -> str:
    """Why this process cannot load what the manifest describes; empty: it can."""
    if _KEYS - manifest.keys():
        return f"its {MANIFEST.name} is damaged, or of an earlier version"
    if manifest["suffix"] != EXTENSION_SUFFIXES[0]:
        return f"it was built for {manifest['suffix']}, this Python loads {EXTENSION_SUFFIXES[0]}"
    if missing := [file for file in manifest["files"].values() if not (LIBRARY / file).is_file()]:
        return f"{missing[0]} is missing"
    built = {**manifest["sources"], **manifest["types"]}
    now = source_digests({**dict.fromkeys(MODULES), **built})
    changed = [module for module in now if now[module] != built.get(module)]
    changed += manifest["sources"].keys() - set(MODULES)
    return f"{', '.join(changed[:3])} changed since it was built" if changed else ""


class CompiledFinder(MetaPathFinder):
    def __init__(self, files: Mapping[str, str], annotations: Mapping[str, Annotations]) -> None:
        self._files, self._annotations = files, annotations

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None  # noqa: ARG002
    ) -> ModuleSpec | None:  # fmt: skip
        if name not in self._files:
            return None
        file = str(LIBRARY / self._files[name])
        return spec_from_file_location(name, file, loader=_AnnotatedLoader(name, file, self._annotations))


class _AnnotatedLoader(ExtensionFileLoader):
    """Gives compiled classes the annotations of their sources, which codecs read: mypyc keeps no generic ones.

    Compiled modules import each other without a finder, so that all that are there by now are looked at.
    """

    def __init__(self, name: str, file: str, annotations: Mapping[str, Annotations]) -> None:
        super().__init__(name, file)
        self._annotations = annotations

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for name, classes in self._annotations.items():
            for class_name, fields in classes.items():
                if found := getattr(sys.modules.get(name), class_name, None):
                    found.__annotations__.update(fields)
