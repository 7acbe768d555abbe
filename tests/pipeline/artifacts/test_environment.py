"""The commit that a result names is that of this code, not of the folder that it was installed in."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.artifacts.environment import revision


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's repository with one commit of one file."""
    if not shutil.which("git"):
        pytest.skip("no git here")
    (tmp_path / "mine.py").write_text("x = 1\n")
    as_user = ["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@localhost"]
    for words in (["init", "-q"], ["add", "mine.py"], ["commit", "-q", "-m", "First"]):
        subprocess.run([*as_user, *words], check=True)
    return tmp_path


def test_a_tracked_file_has_the_commit_and_says_when_something_was_changed(repository: Path) -> None:
    found = revision(repository / "mine.py")
    assert found is not None
    assert len(found) == 40
    (repository / "mine.py").write_text("x = 2\n")
    assert revision(repository / "mine.py") == f"{found}-dirty"


def test_a_wheel_inside_a_users_repository_has_no_commit(repository: Path) -> None:
    (repository / "installed").mkdir()
    installed = repository / "installed" / "environment.py"
    installed.touch()
    assert revision(installed) is None


def test_a_file_outside_git_has_no_commit(tmp_path: Path) -> None:
    assert revision(tmp_path / "environment.py") is None
