"""`python -m pipeline results` outside a checkout."""

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
