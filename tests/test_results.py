"""docs/claims.md and the tables of docs are what docs/results says, and what has changed since is named there."""

from pipeline.command.results import different_pages
from pipeline.report.results.kept import read_results, results_folder


def test_docs_are_written_from_the_kept_results():
    """`python -m pipeline results write` writes them; a result whose configuration changed since says so there."""
    assert [path.name for path, _ in different_pages()] == []


def test_every_kept_result_names_its_files_and_revision():
    for result in read_results(results_folder()):
        assert result.files, result.experiment
        assert result.revisions, result.experiment
