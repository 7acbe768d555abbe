"""One thing to ask a model, and what is known about a right answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Rule = Literal["equals", "ends_with", "contains"]


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
    rule: Rule = "equals"
    shots: int = 0
    stop: tuple[str, ...] = ()

    def answered(self, generated: str) -> str:
        """The part of a generated text that answers this prompt, without surrounding white space."""
        text = generated.strip()
        for stop in self.stop:
            text = text.partition(stop)[0]
        return text.strip()
