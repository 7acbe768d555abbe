"""GSM8K: grade-school word problems (Cobbe et al., 2021)."""

import re
from dataclasses import dataclass

from serving.workload.dataset import Example, PublicDataset
from serving.workload.metrics import FinalNumber, final_number
from serving.workload.records import DataRecord

_CALCULATOR = re.compile(r"<<[^<>]*>>")
_FINAL = re.compile(r"####|\\boxed\{")


@dataclass(frozen=True, kw_only=True)
class GSM8K(PublicDataset):
    """JSON Lines with question and answer (ending in `#### 18`), or problem and solution (ending in `\\boxed{18}`).

    5-shot with the worked solutions, without their calculator notes <<...>>; scored by the final number.
    """

    hub: str | None = "openai/gsm8k"
    config: str | None = "main"
    split: str = "test"
    shots: int = 5

    name = "GSM8K"
    file_format = "JSON Lines with problem and solution (or question and answer) that ends in \\boxed{} or ####"
    instruction = "Solve each problem step by step and end with the answer, a number."
    metrics = (FinalNumber(),)
    stop = ("\nProblem:",)

    def example(self, row: DataRecord) -> Example:
        solution = _CALCULATOR.sub("", row.text("solution", "answer")).strip()
        number = final_number(solution)
        if number is None or not _FINAL.search(solution):
            raise row.error(f"no final number after #### or \\boxed{{ in {solution[-40:]!r}")
        ask = f"Problem: {row.text('problem', 'question').strip()}\nSolution:"
        return Example(f"gsm8k-{row.index}", ask, solution, (solution,), "arithmetic", str(number))
