"""A job builds missing and forced stages."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.progress_display import NullObserver
from pipeline.config.compose import ConfigLibrary
from pipeline.errors import ConfigError
from pipeline.running import Job

STAGES = {
    "corpus": {"_target_": "tests.support.stage_functions.write_text", "text": "a"},
    "serve": {"_target_": "tests.support.stage_functions.write_text", "_kind_": "serve", "text": "b"},
}


def job(outputs: Path, force: Any = ()) -> Job:
    data = {"outputs": str(outputs), "stages": STAGES, "force": force, "accelerator": "cpu"}
    return Job(data, ConfigLibrary(None, {}), NullObserver())  # type: ignore[arg-type]


def built(one: Job) -> int:
    return len(one.run([one.plan().serve])[1])


@pytest.mark.parametrize("force", ["serve", ["serve"]])
def test_a_forced_stage_is_built_again(tmp_path: Path, force: Any) -> None:
    assert built(job(tmp_path)) == 1
    assert built(job(tmp_path)) == 0
    assert built(job(tmp_path, force)) == 1


def test_a_stage_that_is_not_in_the_run_cannot_be_forced(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no stage 'corpse' in this run"):
        job(tmp_path, "corpse").plan()
