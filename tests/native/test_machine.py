"""What this machine gives a process."""

import os

import pytest

from native.machine import usable_cores


def test_cores_that_this_process_may_not_use_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 5}, raising=False)
    assert usable_cores() == 3


@pytest.mark.parametrize(("known", "expected"), [(8, 8), (None, 1)])
def test_a_system_without_affinities_has_the_cores_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, known: int | None, expected: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: known)
    assert usable_cores() == expected
