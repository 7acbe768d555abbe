"""SST-2: sentiment of sentences from film reviews (Socher et al., 2013; the GLUE split)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from serving.workload import records
from serving.workload.dataset import Example, PublicDataset
from serving.workload.metrics import ChoiceAccuracy
from serving.workload.records import DataRecord

_LABELS = ("negative", "positive")


@dataclass(frozen=True, kw_only=True)
class SST2(PublicDataset):
    """TSV with the header `sentence`, `label` (0 or 1); quotes have no special meaning.

    5-shot and accuracy as in Synera, Table 2.
    """

    hub: str | None = "stanfordnlp/sst2"
    shots: int = 5

    name = "SST-2"
    file_format = "TSV with the columns sentence and label"
    instruction = "Say whether each review is positive or negative."
    metrics = (ChoiceAccuracy(lettered=False),)
    stop = ("\nReview:",)

    def records(self, path: Path) -> Iterable[DataRecord]:
        return records.csv_records(path, ("sentence", "label"), "\t", quoted=False)

    def example(self, row: DataRecord) -> Example:
        label = row.integer("label")
        if label not in (0, 1):
            raise row.error(f"label is {label}, needed is 0 or 1 (the test split has no labels)")
        ask = f"Review: {row.text('sentence').strip()}\nSentiment:"
        answer = _LABELS[label]
        return Example(f"sst2-{row.index}", ask, answer, (answer,), "sentiment", answer, _LABELS)
