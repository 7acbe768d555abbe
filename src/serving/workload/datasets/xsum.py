"""XSum: one-sentence summaries of BBC articles (Narayan et al., 2018)."""

from dataclasses import dataclass

from serving.workload.dataset import Example, PublicDataset
from serving.workload.metrics import Rouge1
from serving.workload.records import DataRecord


@dataclass(frozen=True, kw_only=True)
class XSum(PublicDataset):
    """JSON Lines with `article`, already a full prompt, and `summary_gt`, as HELM and H2O distribute it.

    The Hub's rows (document, summary) become the same prompt. An answer ends at `###`. ROUGE-1 without worked examples,
    as in Synera, Table 2.
    """

    hub: str | None = "EdinburghNLP/xsum"

    name = "XSum"
    file_format = "JSON Lines with article (a wrapped prompt) and summary_gt"
    metrics = (Rouge1(),)
    stop = ("###",)

    def example(self, row: DataRecord) -> Example:
        ask = _wrapped(row.text("document")) if row.has("document") else row.text("article")
        summary = row.text("summary_gt", "summary").strip()
        return Example(f"xsum-{row.index}", ask, summary, (summary,), "summary")


def _wrapped(document: str) -> str:
    return f"###\nArticle: {document.strip()}\n\nSummarize the above article in 1 sentence.\n"
