"""docs/claims.md and the tables of docs are what docs/results says, and what has changed since is named there."""

import re
from pathlib import Path

from pipeline.command.results import different_pages
from pipeline.report.results.kept import read_results, results_folder


def test_docs_are_written_from_the_kept_results():
    """`python -m pipeline results write` writes them; a result whose configuration changed since says so there."""
    assert [path.name for path, _ in different_pages()] == []


def test_every_kept_result_names_its_files_and_revision():
    for result in read_results(results_folder()):
        assert result.files, result.experiment
        assert result.revisions, result.experiment


def test_the_readme_counts_the_claims_that_the_page_has():
    root = Path(__file__).parents[1]
    counted = re.search(r"^(\d+) claims: ", (root / "docs" / "claims.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert counted
    assert f"{counted[1]} claims" in (root / "README.md").read_text(encoding="utf-8")
