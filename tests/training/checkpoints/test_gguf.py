"""A GGUF file of a package: what is missing is said with the command that installs it."""

from pathlib import Path
from typing import Any

import pytest

from training.checkpoints.gguf import LIBRARIES, PackagedGGUF

FACTS: dict[str, Any] = {"sha256": "0" * 64, "install": "make it", "license": "MIT", "origin": "here"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("packed_model", *LIBRARIES):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "packed_model" / "model.gguf").write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "packed_model"


def test_a_missing_package_is_named_with_the_command() -> None:
    with pytest.raises(ValueError, match=r"missing: no_such_package.* Run: make it"):
        PackagedGGUF(package="no_such_package", file="model.gguf", **FACTS)


def test_a_missing_file_is_named(package: str) -> None:
    with pytest.raises(ValueError, match=r"package packed_model has no file other.gguf. Run: make it"):
        PackagedGGUF(package=package, file="other.gguf", **FACTS)


def test_another_file_than_the_digest_names_is_refused(package: str) -> None:
    found = PackagedGGUF(package=package, file="model.gguf", **FACTS)
    with pytest.raises(ValueError, match=r"has the sha256 [0-9a-f]{64}, wanted is 0{64}.* Run again: make it"):
        found.check_content()
