"""CNN/DailyMail: summaries of news articles (See et al., 2017)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from serving.workload import records
from serving.workload.dataset import Example, PublicDataset
from serving.workload.metrics import Rouge1
from serving.workload.records import DataRecord


@dataclass(frozen=True, kw_only=True)
class CNNDailyMail(PublicDataset):
    """CSV with article, highlights, id. ROUGE-1 without worked examples, as in Synera, Table 2."""

    hub: str | None = "abisee/cnn_dailymail"
    config: str | None = "3.0.0"

    name = "CNN/DailyMail"
    file_format = "CSV with the columns article, highlights and id"
    metrics = (Rouge1(),)

    def records(self, path: Path) -> Iterable[DataRecord]:
        return records.csv_records(path, ("article", "highlights", "id"), ",", quoted=True)

    def example(self, row: DataRecord) -> Example:
        ask = f"Article: {row.text('article').strip()}\n\nSummarise the article in three sentences.\nSummary:"
        highlights = row.text("highlights").strip()
        return Example(row.text("id"), ask, highlights, (highlights,), "summary")
