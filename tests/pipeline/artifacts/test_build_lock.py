"""Notes of claims: what they say while one is held, and that a broken one does no harm."""

from pathlib import Path

from pipeline.artifacts.build_lock import hold_build_lock, keys_in_use, registration_lock
from tests.programs.build_artifacts import graph


def never(stage: str) -> None:
    raise AssertionError(f"waited for {stage}")


def test_a_held_build_lock_claims_the_stage_and_its_ancestors(tmp_path: Path) -> None:
    needed = {one.key for one in graph().ancestors.values()}
    with hold_build_lock(tmp_path, graph(), never):
        assert claimed_elsewhere(tmp_path) == {graph().key, *needed}
    assert claimed_elsewhere(tmp_path) == set()


def claimed_elsewhere(folder: Path) -> set[str]:
    with registration_lock(folder):
        return keys_in_use(folder)


def test_an_unreadable_claim_file_is_ignored(tmp_path: Path) -> None:
    with hold_build_lock(tmp_path, graph(), never):
        (tmp_path / f"{graph().key}.json").write_text("{")
        assert keys_in_use(tmp_path) == {graph().key}
