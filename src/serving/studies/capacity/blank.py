"""A data set of one blank prompt, for simulations that know tokens by their number alone."""

from dataclasses import dataclass
from typing import ClassVar

from serving.workload.dataset import Audience
from serving.workload.metrics import Metric
from serving.workload.prompt import Prompt

PROMPT = Prompt("blank", "", (), "blank")


@dataclass(frozen=True)
class Blank:
    """One prompt without text, asked as often as there are requests: how long it is, the outcomes say."""

    name: ClassVar[str] = "blank"
    metrics: ClassVar[tuple[Metric, ...]] = ()
    measures_quality_of: ClassVar[Audience] = "nobody"

    def prompts(self) -> list[Prompt]:
        return [PROMPT]
