"""One thing to ask a model, and what is known about a right answer.

Which prompts of a data set are asked, and in which order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from serving.core.keyed_random import key, uniform

MatchRule = Literal["equals", "ends_with", "contains"]


@dataclass(frozen=True)
class Prompt:
    """`text` goes to the model; all else goes to the metrics.

    `references` are whole texts that a good answer resembles, `answer` is the one thing asked for: an option's text,
    a number, a word. `choices` are the options in the order shown. `shots` counts the worked examples inside `text`.
    Text from one of the `stop` strings on is no part of an answer: a base model goes on with the next example.
    """

    id: str
    text: str
    references: tuple[str, ...]
    task: str
    answer: str = ""
    choices: tuple[str, ...] = ()
    match_rule: MatchRule = "equals"
    shots: int = 0
    stop: tuple[str, ...] = ()

    def extract_answer(self, generated: str) -> str:
        """The part of a generated text that answers this prompt, without surrounding white space."""
        text = generated.strip()
        for stop in self.stop:
            text = text.partition(stop)[0]
        return text.strip()


def select_prompts(
    prompts: Sequence[Prompt], n: int, seed: int, skip: int = 0, reuse_prompts: bool = False
) -> list[Prompt]:
    """`n` prompts after the first `skip` of a draw from every task in turn, in an order that mixes the tasks.

    A larger `n` with the same seed asks all that a smaller one asks. The draw depends on ids, not on file order. With
    `reuse_prompts` all are asked once before any is asked a second time; else raises ValueError when there are fewer.
    """
    if reuse_prompts and skip < len(prompts):
        once = select_prompts(prompts, min(n, len(prompts) - skip), seed, skip)
        return [once[i % len(once)] for i in range(n)]
    if skip + n > len(prompts):
        asked = f"workload.num_prompts={n}" + (f" after {skip} that are left to others" if skip else "")
        raise ValueError(
            f"{asked} asks for more than the data set's {len(prompts)}; set it lower, or workload.reuse_prompts"
        )
    picked = list(islice(_round_robin_tasks(prompts, seed), skip, skip + n))
    return sorted(picked, key=lambda prompt: uniform(key(seed, prompt.id), 0, "order"))


def _round_robin_tasks(prompts: Sequence[Prompt], seed: int) -> Iterator[Prompt]:
    """One prompt of each task in turn; the order inside a task is drawn."""
    by_task: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in sorted(prompts, key=lambda prompt: (uniform(key(seed, prompt.id), 0, "select"), prompt.id)):
        by_task[prompt.task].append(prompt)
    for turn in range(max(map(len, by_task.values()))):
        yield from (by_task[task][turn] for task in sorted(by_task) if turn < len(by_task[task]))
