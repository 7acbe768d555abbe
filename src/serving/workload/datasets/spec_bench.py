"""Spec-Bench: prompts of six kinds to compare speculative decoding (Xia et al., 2024)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from serving.workload.dataset import Example, PublicDataset, QualityTarget
from serving.workload.records import DataRecord

_KINDS = ("translation", "summarization", "qa", "math_reasoning", "rag")


@dataclass(frozen=True, kw_only=True)
class SpecBench(PublicDataset):
    """JSON Lines with question_id, category, turns and sometimes reference.

    Without quality metric; for acceptance length and speed-up of six kinds (MT-Bench's eight small categories are one
    kind, `multi_turn`). `turns=first` uses only the first turn of a conversation; `turns=all` joins the user's
    turns in one prompt, because there is no model answer between them.
    """

    turns: Literal["first", "all"] = "first"

    name = "Spec-Bench"
    file_format = "JSON Lines with question_id, category and turns"
    metrics = ()
    measures_quality_of: ClassVar[QualityTarget] = "none"

    def example(self, row: DataRecord) -> Example:
        turns = row.texts("turns")
        category = row.text("category")
        ask = turns[0] if self.turns == "first" else "\n\n".join(turns)
        kind = category if category in _KINDS else "multi_turn"
        references = tuple(_texts(row.fields.get("reference")))
        return Example(str(row.integer("question_id")), ask, "", references, kind, sealed_by=turns[0])


def _texts(reference: Any) -> Iterator[str]:
    """The texts of a reference, which may be absent or a list of lists."""
    if isinstance(reference, str):
        yield reference
    elif isinstance(reference, list):
        for part in reference:
            yield from _texts(part)
