"""CommonsenseQA: five-way questions of general knowledge (Talmor et al., 2019)."""

from dataclasses import dataclass

from serving.workload.dataset import Example, PublicDataset
from serving.workload.metrics import ChoiceAccuracy
from serving.workload.records import DataRecord


@dataclass(frozen=True, kw_only=True)
class CommonsenseQA(PublicDataset):
    """JSON Lines as on the Hub (question, choices {label, text}) or as first published (question {stem, choices}).

    5-shot and accuracy as in Synera, Table 2. A worked example answers "A. bank".
    """

    hub: str | None = "tau/commonsense_qa"
    shots: int = 5

    name = "CommonsenseQA"
    file_format = "JSON Lines with question, choices {label, text} and answerKey"
    instruction = "Answer each question with one of its options."
    metrics = (ChoiceAccuracy(),)
    stop = ("\nQuestion:",)

    def example(self, row: DataRecord) -> Example:
        question, labels, choices = (
            _published_fields(row) if isinstance(row.fields.get("question"), dict) else _hub_fields(row)
        )
        right = row.text("answerKey")
        if right not in labels or len(labels) != len(choices):
            raise row.error(f"answerKey {right!r} and {len(choices)} options labelled {', '.join(labels)} do not agree")
        shown = [f"{chr(ord('A') + index)}. {choice}" for index, choice in enumerate(choices)]
        ask = "\n".join([f"Question: {question}", *shown, "Answer:"])
        answer = choices[labels.index(right)]
        return Example(row.text("id"), ask, shown[labels.index(right)], (answer,), "commonsense", answer, choices)


def _hub_fields(row: DataRecord) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    choices = row.nested("choices")
    return row.text("question"), choices.texts("label"), choices.texts("text")


def _published_fields(row: DataRecord) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    question = row.nested("question")
    options = list(question.records("choices"))
    return (
        question.text("stem"),
        tuple(each.text("label") for each in options),
        tuple(each.text("text") for each in options),
    )
