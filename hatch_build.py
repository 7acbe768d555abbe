"""Wheels with the compiled core: TANDEM_COMPILE=1 python -m pip wheel --no-deps ."""

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledCore(BuildHookInterface[Any]):
    """Compiles the core into a wheel for this Python; without TANDEM_COMPILE=1 the wheel is pure."""

    @property
    def _wanted(self) -> bool:
        return os.environ.get("TANDEM_COMPILE") == "1"

    def dependencies(self) -> list[str]:
        return ["mypy>=1.18", "setuptools>=77"] if self._wanted else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises `native.build.BuildError` if the core cannot be compiled."""
        if not self._wanted or version == "editable":
            return
        sys.path.insert(0, str(Path(self.root, "src")))
        from native import build
        from native.modules import LIBRARY

        if not build.is_current():
            build.build()
        build_data["force_include"][str(LIBRARY)] = "native/lib"
        build_data["pure_python"], build_data["infer_tag"] = False, True
