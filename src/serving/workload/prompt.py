"""A prompt with its reference answers, and the selection of a data set's prompts for a run."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from serving.core.keyed_random import key, uniform

MatchRule = Literal["equals", "ends_with", "contains"]


@dataclass(frozen=True)
class Prompt:
    """`text` goes to the model; the other fields go to the metrics.

    `references` are full texts of good answers; `answer` is the core of the answer: an option's text, a number, a word.
    `choices` are the options in the order shown. `shots` counts the worked examples in `text`. The answer ends at the
    first of the `stop` strings, because a base model continues with the next example.
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
        """The part of a generated text before the `stop` strings, stripped."""
        text = generated.strip()
        for stop in self.stop:
            text = text.partition(stop)[0]
        return text.strip()


BLANK_PROMPT = Prompt("blank", "", (), "blank")
"""Stands for what a device asks where the source of outcomes chooses it."""


def check_prompts(prompts: Sequence[Prompt], source: str, has_text: bool = True, is_scored: bool = True) -> None:
    """Raises ValueError that names the first item of `source` with a blank text or, if answers are scored, a blank
    reference, with what is no text, or with the id of an earlier one.
    """
    seen: dict[str, int] = {}
    for number, prompt in enumerate(prompts, 1):
        problem = ""
        if strange := [one for one in (prompt.text, *prompt.references) if not isinstance(one, str)]:
            problem = f"it has {strange[0]!r} where a text is wanted"
        elif has_text and not prompt.text.strip():
            problem = "its prompt is empty"
        elif is_scored and not all(reference.strip() for reference in prompt.references):
            problem = "a reference of it is empty"
        elif prompt.id in seen:
            problem = f"item {seen[prompt.id]} has the same id"
        if problem:
            raise ValueError(f"{source}: item {number} (id {prompt.id!r}): {problem}; correct it, or leave it out")
        seen[prompt.id] = number


def select_prompts(
    prompts: Sequence[Prompt],
    n: int,
    seed: int,
    skip: int = 0,
    reuse_prompts: bool = False,
    section: str = "workload",
) -> list[Prompt]:
    """Draws `skip` + `n` prompts from all tasks in turn, skips the first `skip`, and returns the others shuffled.

    A larger `n` with the same seed includes the prompts of a smaller one. The draw depends on ids, not on file order.
    With `reuse_prompts` prompts repeat once all were used; without it, raises ValueError if there are too few, which
    names the options of `section`.
    """
    if not prompts:
        raise ValueError(f"{section}: the data set has no prompts; look at the file that {section}.path names")
    if reuse_prompts and skip < len(prompts):
        unique = select_prompts(prompts, min(n, len(prompts) - skip), seed, skip)
        return [unique[i % len(unique)] for i in range(n)]
    if skip >= len(prompts):
        raise ValueError(f"{section}.skip={skip} leaves none of the data set's {len(prompts)} prompts; lower it")
    if skip + n > len(prompts):
        wanted = f"{section}.num_prompts={n}" + (f" after {skip} that are skipped" if skip else "")
        raise ValueError(
            f"{wanted} is more than the data set's {len(prompts)} prompts; lower it, or set "
            f"{section}.reuse_prompts=true"
        )
    selected = list(islice(_round_robin_tasks(prompts, seed), skip, skip + n))
    return sorted(selected, key=lambda prompt: uniform(key(seed, prompt.id), 0, "order"))


def _round_robin_tasks(prompts: Sequence[Prompt], seed: int) -> Iterator[Prompt]:
    """Yields one prompt of each task in turn; the order within a task is random."""
    by_task: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in sorted(prompts, key=lambda prompt: (uniform(key(seed, prompt.id), 0, "select"), prompt.id)):
        by_task[prompt.task].append(prompt)
    for turn in range(max(map(len, by_task.values()))):
        yield from (by_task[task][turn] for task in sorted(by_task) if turn < len(by_task[task]))
