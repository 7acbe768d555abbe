"""The version that the package has is the one that is cited and the one that the changelog begins with."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
HEADING = re.compile(r"^## (\d+\.\d+\.\d+)(?: \((\d{4}-\d{2}-\d{2})\))?$", re.MULTILINE)


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def citation() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return found


def releases() -> list[tuple[str, str]]:
    return HEADING.findall((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


def test_package_citation_and_changelog_have_the_same_version() -> None:
    assert project()["version"] == str(citation()["version"]) == releases()[0][0]
    assert str(citation()["date-released"]) == releases()[0][1]


def test_versions_of_the_changelog_fall() -> None:
    versions = [tuple(map(int, version.split("."))) for version, _ in releases()]
    assert versions == sorted(set(versions), reverse=True)
    assert len(versions) >= 2


def test_the_citation_has_what_its_format_demands() -> None:
    found = citation()
    assert found.keys() >= {"cff-version", "message", "title", "authors"}
    assert found["license"] == project()["license"]
    assert all("name" in author or "family-names" in author for author in found["authors"])
