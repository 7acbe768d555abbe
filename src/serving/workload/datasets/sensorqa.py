"""SensorQA: questions on weeks of wearable-sensor records (Reichman et al., 2025)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from serving.workload import records
from serving.workload.dataset import Example, PublicDataset
from serving.workload.metrics import Rouge1
from serving.workload.records import DataRecord


@dataclass(frozen=True, kw_only=True)
class SensorQA(PublicDataset):
    """A JSON list of {question, answer[], images[]}; `answer` holds one answer, split at its commas.

    A text model does not see the sensor records, which are pictures, so the score only measures the form of an answer.
    5-shot and ROUGE-1 as in Synera, Table 2; an answer is one line. Not on the Hub.
    """

    shots: int = 5

    name = "SensorQA"
    file_format = "a JSON list of objects with question and answer (a list of texts)"
    instruction = "Answer each question about my week in a few words."
    metrics = (Rouge1(),)
    stop = ("\n",)

    def records(self, path: Path) -> Iterable[DataRecord]:
        return records.json_list(path)

    def example(self, row: DataRecord) -> Example:
        ask = f"Question: {row.text('question').strip()}\nAnswer:"
        answer = ", ".join(piece.strip() for piece in row.texts("answer"))
        return Example(f"sensorqa-{row.index}", ask, answer, (answer,), "sensors")
