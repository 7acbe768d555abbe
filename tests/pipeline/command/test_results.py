"""`python -m pipeline results` outside a checkout."""

import json
import re
from pathlib import Path

import pytest

from pipeline.command import results
from pipeline.config.arguments import conf_dir
from pipeline.errors import UserError


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if conf/ lay inside the package."""
    monkeypatch.setattr(results, "WHEEL_CONF", conf_dir())


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("words", [["keep", "outputs"], ["draws", "outputs"], ["write"], ["check"]])
def test_an_installed_package_writes_and_checks_no_pages(words: list[str]) -> None:
    with pytest.raises(UserError, match=rf"results {words[0]} writes or checks docs/ of a checkout.*Run it in a"):
        results.main(words)


@pytest.mark.usefixtures("installed")
def test_an_installed_package_lists_what_was_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results.kept, "results_folder", lambda: tmp_path)
    assert results.main(["list"]) == 0
    assert "synera/table4" in capsys.readouterr().out


@pytest.fixture
def former_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of results with one file of draws, which does not say by which rule they were drawn."""
    node = {"experiment": "synera/x", "draws": 200, "jobs": 1, "files": {}, "claims": {"a claim": 1.0}}
    (tmp_path / "x.draws").write_text(json.dumps(node))
    monkeypatch.setattr(results.kept, "results_folder", lambda: tmp_path)


@pytest.mark.usefixtures("former_draws")
def test_draws_of_a_former_rule_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert results.main(["list"]) == 0
    assert re.search(r"^synera/x +draws of the clock: of an unknown rule$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.usefixtures("former_draws")
def test_a_check_names_draws_of_a_former_rule_and_does_not_fail_for_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "different_pages", list)
    assert results.main(["check"]) == 0
    assert capsys.readouterr().out == "synera/x: draws of the clock of an unknown rule\n"
