"""Questions that a chat model asked itself: prompts for a model where no data set is at hand."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from serving.workload import records
from serving.workload.dataset import QualityTarget
from serving.workload.metrics import Metric
from serving.workload.prompt import Prompt

QUESTIONS_FILE = "questions.jsonl"


@dataclass(frozen=True, kw_only=True)
class SelfAsked:
    """Questions {id, question} of the artifact that `training.checkpoints.stages.record_questions` leaves, a folder.

    Without metric and references. They are drawn as those that a pruned drafter was healed on, so its drafts are
    accepted more often than on other prompts.
    """

    questions: Path

    name: ClassVar[str] = "questions that the model asked itself"
    metrics: ClassVar[tuple[Metric, ...]] = ()
    measures_quality_of: ClassVar[QualityTarget] = "none"

    @property
    def is_built(self) -> bool:
        """True if the stage has written the questions."""
        return self._file.is_file()

    @property
    def _file(self) -> Path:
        return Path(self.questions, QUESTIONS_FILE)

    def prompts(self) -> list[Prompt]:
        """The questions, in file order. Raises ValueError for a malformed line."""
        return list(_read_questions(self._file, records.file_stamp(self._file)))


@lru_cache(maxsize=8)
def _read_questions(file: Path, stamp: object) -> tuple[Prompt, ...]:  # noqa: ARG001
    """The questions, read again only if the file changed."""
    rows = records.json_lines(file)
    return tuple(Prompt(row.text("id"), row.text("question"), (), "question") for row in rows)
