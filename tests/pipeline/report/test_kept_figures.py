"""Figures of one artifact are drawn once by the same code in the same look."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.report import kept_figures
from pipeline.report.figure_look import LINE, SCREEN, FigureLook


class Pen:
    """Draws one figure in `folder`, and counts how often."""

    def __init__(self) -> None:
        self.drawn = 0

    def into(self, folder: Path) -> Callable[[], None]:
        def draw() -> None:
            self.drawn += 1
            folder.mkdir(parents=True)
            (folder / "latency.png").write_text(f"figure {self.drawn}")

        return draw

    def report(self, artifact: Path, folder: Path, look: FigureLook = SCREEN) -> str:
        kept_figures.copy_or_draw(artifact, folder, look, self.into(folder))
        return (folder / "latency.png").read_text()


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    (tmp_path / "serve").mkdir()
    return tmp_path / "serve"


def test_a_second_run_copies_what_the_first_drew(artifact: Path, tmp_path: Path) -> None:
    pen = Pen()
    assert [pen.report(artifact, tmp_path / run) for run in "ab"] == ["figure 1", "figure 1"]
    assert pen.drawn == 1


def test_another_look_and_other_code_draw_again(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pen = Pen()
    pen.report(artifact, tmp_path / "a")
    assert pen.report(artifact, tmp_path / "b", LINE) == "figure 2"
    monkeypatch.setattr(kept_figures, "_code_digest", lambda: "of another version")
    assert pen.report(artifact, tmp_path / "c") == "figure 3"


def test_nothing_is_kept_of_a_figure_that_could_not_be_drawn(artifact: Path, tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("no font")

    with pytest.raises(ValueError, match="no font"):
        kept_figures.copy_or_draw(artifact, tmp_path / "a", SCREEN, fail)
    assert not list(artifact.iterdir())


def test_where_nothing_can_be_kept_every_run_draws(tmp_path: Path) -> None:
    pen = Pen()
    gone = tmp_path / "an artifact that was removed meanwhile"
    assert [pen.report(gone, tmp_path / run) for run in "ab"] == ["figure 1", "figure 2"]
