"""The garbage collector pauses while a configuration is composed, and never for longer."""

import gc
from collections.abc import Iterator

import pytest

from pipeline.config.collector import collector_paused, resume_collector


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_nothing_is_collected_until_the_job_begins_and_what_was_made_until_then_never() -> None:
    with collector_paused():
        assert not gc.isenabled()
        resume_collector()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 1000


def test_the_collector_runs_after_an_error() -> None:
    with pytest.raises(SystemExit), collector_paused():
        raise SystemExit(2)
    assert gc.isenabled()


def test_what_one_command_left_is_collected_after_the_next_began() -> None:
    with collector_paused():
        pass
    with collector_paused():
        assert gc.get_freeze_count() == 0
