"""LLQA: four-way questions on a person's day, from the descriptions of that day (Tran et al., 2022)."""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from serving.workload import records
from serving.workload.dataset import Example, PublicDataset
from serving.workload.metrics import ChoiceAccuracy
from serving.workload.records import DataRecord, InvalidRecordError

_TIME_RANGE = re.compile(r"\[\s*(\d\d?):(\d\d)\s*(?:-\s*(\d\d?):(\d\d)\s*)?\]")
_TIMESTAMP = re.compile(r"\d{4}/\d\d/\d\d (\d\d):(\d\d)")


@dataclass(frozen=True, kw_only=True)
class LLQA(PublicDataset):
    """JSON Lines of questions (question, answers, answer_idx, date, start_time, end_time), and of `descriptions` (desc,
    date), published as `descriptions.jsonl` beside the questions. Both paths are fields, so that both files identify a
    result.

    The descriptions of a question's date whose [from-to] overlaps its time span, ends included, precede the question. A
    description without such times (41 of the 11,699 published) is not used. Accuracy without worked examples, as in
    Synera, Table 2. Not on the Hub. Raises ValueError for questions without descriptions.
    """

    descriptions: Path | None = None

    name = "LLQA"
    file_format = "JSON Lines with question, answers, answer_idx, date, start_time and end_time"
    metrics = (ChoiceAccuracy(),)
    stop = ("\nQuestion:",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is not None and self.descriptions is None:
            raise ValueError(
                f"LLQA also needs the descriptions of the days that {self.path} asks about: set "
                f"workload.dataset.descriptions=FILE (published as {self.path.parent / 'descriptions.jsonl'})"
            )

    def example(self, row: DataRecord) -> Example:
        choices = tuple(choice.strip() for choice in row.texts("answers"))
        right = row.integer("answer_idx")
        if not 0 <= right < len(choices):
            raise row.error(f"answer_idx is {right}, needed is 0 to {len(choices) - 1}")
        shown = [f"{chr(ord('A') + index)}. {choice}" for index, choice in enumerate(choices)]
        log = self._log_between(row.text("date"), _minute(row, "start_time"), _minute(row, "end_time"))
        question = f"Question: {row.text('question').strip()}"
        # Without the log: with other descriptions a sealed question is to stay one.
        asked = "\n".join([question, *choices, *(row.text(name) for name in ("date", "start_time", "end_time"))])
        ask = "\n".join([*(["Log of the day:", *log, ""] if log else []), question, *shown, "Answer:"])
        answer = choices[right]
        return Example(f"llqa-{row.index}", ask, shown[right], (answer,), "lifelog", answer, choices, sealed_by=asked)

    def _log_between(self, date: str, start: int, end: int) -> list[str]:
        return [
            text for first, last, text in self._descriptions_by_date.get(date, ()) if first <= end and last >= start
        ]

    @cached_property
    def _descriptions_by_date(self) -> dict[str, list[tuple[int, int, str]]]:
        """Date -> (first minute, last minute, text) of each description, in file order."""
        days: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        try:
            for row in records.json_lines(self._descriptions_file()):
                text = row.text("desc", blank=True)
                span = _TIME_RANGE.search(text)
                if span:
                    first = int(span[1]) * 60 + int(span[2])
                    last = int(span[3]) * 60 + int(span[4]) if span[3] else first
                    days[row.text("date")].append((first, last, text.strip()))
        except InvalidRecordError as error:
            raise ValueError(f"{error}. LLQA's descriptions are JSON Lines with desc and date") from error
        return days

    def _descriptions_file(self) -> Path:
        if self.descriptions is None or not self.descriptions.is_file():
            raise ValueError(
                f"LLQA also needs its log descriptions, not found at {self.descriptions}; "
                "set workload.dataset.descriptions=FILE"
            )
        return self.descriptions


def _minute(row: DataRecord, name: str) -> int:
    moment = _TIMESTAMP.match(row.text(name))
    if not moment:
        raise row.error(f'field "{name}" is {row.text(name)!r}, needed is a time like 2015/03/11 06:36:00+00')
    return int(moment[1]) * 60 + int(moment[2])
