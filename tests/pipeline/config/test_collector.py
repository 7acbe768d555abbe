"""The garbage collector pauses while a configuration is composed, and never for longer."""

import gc

import pytest

from pipeline.config.collector import collector_paused, resume_collector


def test_nothing_is_collected_until_the_job_begins() -> None:
    with collector_paused():
        assert not gc.isenabled()
        resume_collector()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 1000  # what was composed is looked through no more
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


def test_the_collector_runs_after_an_error() -> None:
    with pytest.raises(SystemExit), collector_paused():
        raise SystemExit(2)
    assert gc.isenabled()
