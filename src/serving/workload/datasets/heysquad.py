"""HeySQuAD: transcripts of SQuAD's questions as people spoke them (Wu et al., 2023)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from serving.workload import records
from serving.workload.dataset import Example, PublicDataset
from serving.workload.metrics import Rouge1
from serving.workload.records import DataRecord


@dataclass(frozen=True, kw_only=True)
class HeySQuAD(PublicDataset):
    """SQuAD 1.1 JSON: data[].paragraphs[] {context, qas[] {id, question, answers[] {text}}}.

    Questions marked impossible are skipped. 5-shot and ROUGE-1 against the best-matching answer as in Synera, Table 2;
    an answer is one line. Only the text columns of the Hub's copy are fetched, not the audio.
    """

    hub: str | None = "yijingwu/HeySQuAD_human"
    shots: int = 5

    name = "HeySQuAD"
    file_format = "SQuAD 1.1 JSON (data, paragraphs, qas)"
    instruction = "Answer each question from its passage, in a few words."
    metrics = (Rouge1(),)
    columns = ("id", "context", "transcription", "answers", "is_impossible")
    stop = ("\n",)

    def records(self, path: Path) -> Iterable[DataRecord]:
        for article in records.json_member(path, "data"):
            for paragraph in article.records("paragraphs"):
                context = paragraph.text("context")
                for question in paragraph.records("qas"):
                    yield DataRecord({**question.fields, "context": context}, question.location, question.index)

    def example(self, row: DataRecord) -> Example | None:
        if row.fields.get("is_impossible"):
            return None
        spoken = row.text("transcription", "question").strip()
        ask = f"Passage: {row.text('context').strip()}\nQuestion: {spoken}\nAnswer:"
        answers = tuple(dict.fromkeys(_answers(row)))
        if not answers:
            raise row.error('field "answers" is empty, needed is one answer or more')
        return Example(row.text("id"), ask, answers[0], answers, "reading")


def _answers(row: DataRecord) -> Iterable[str]:
    """Texts of `answers`: a list of objects in SQuAD's files, an object of lists in some Hub copies."""
    if isinstance(row.fields.get("answers"), dict):
        return row.nested("answers").texts("text")
    return [answer.text("text").strip() for answer in row.records("answers")]
