"""How good one generated text is, from 0 to 1: exact match, the chosen option, the final number, ROUGE-1."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from string import ascii_uppercase
from typing import Any, Protocol

from serving.workload.prompt import Prompt


class Metric(Protocol):
    """A named figure of one answer."""

    @property
    def name(self) -> str: ...
    def score(self, text: str, prompt: Prompt) -> float:
        """0 to 1 for what was generated, as decoded without special tokens."""


def _equals(text: str, prompt: Prompt) -> bool:
    return text in prompt.references


def _ends_with(text: str, prompt: Prompt) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(prompt.answer.rstrip('.'))}$", text.rstrip(".")))


def _contains(text: str, prompt: Prompt) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(prompt.answer)}(?!\w)", text))


_MATCH_RULES: Mapping[str, Callable[[str, Prompt], bool]] = {
    "equals": _equals,
    "ends_with": _ends_with,
    "contains": _contains,
}


@dataclass(frozen=True)
class ExactMatch:
    """1 if the answer satisfies the prompt's own rule, letter for letter.

    `equals`: the text is one of the references; `ends_with`: its last words, full stops aside, are the answer;
    `contains`: the answer stands in it as whole words.
    """

    name: str = "exact_match"

    def score(self, text: str, prompt: Prompt) -> float:
        return float(_MATCH_RULES[prompt.match_rule](prompt.extract_answer(text), prompt))


@dataclass(frozen=True)
class ChoiceAccuracy:
    """1 if the option that `chosen` reads from the text is the right one; a text that names none scores 0.

    `lettered`: the options were shown with letters, so a letter alone chooses.
    """

    name: str = "accuracy"
    lettered: bool = True

    def score(self, text: str, prompt: Prompt) -> float:
        return float(chosen_option(prompt.extract_answer(text), prompt.choices, self.lettered) == prompt.answer)


def chosen_option(text: str, choices: tuple[str, ...], lettered: bool) -> str | None:
    """The option that a free text names; the first rule that finds one decides.

    1. The first line begins with an option's letter: alone, in parentheses, before `.`, `:`, `,` or `)`, or before
       that option's own text ("B", "(B) the mall", "B. mall", "B mall"; but not "A mall", where A is an article).
    2. Anywhere: "answer is B", "Answer: (B)" (again not "answer is A mall").
    3. The option whose text, as whole words and whatever the case, comes first in the first line; the longer one if
       two begin at the same place ("department store" before "department").
    """
    line = text.strip().partition("\n")[0]
    if lettered:
        lettered_choice = _by_letter(line, text, choices)
        if lettered_choice is not None:
            return lettered_choice
    return _by_words(line, choices)


def _by_letter(line: str, text: str, choices: tuple[str, ...]) -> str | None:
    letters = ascii_uppercase[: len(choices)]
    start = re.match(rf"\(?([{letters}])(?:[.:,)]|\s*$|\s+(?=(.*)))", line)
    if start:
        choice = choices[letters.index(start[1])]
        if start[2] is None or start[2].casefold().startswith(choice.strip().casefold()):
            return choice
    said = re.search(rf"(?i:answer\s*(?:is|:))\s*\(?([{letters}])(?!\w|(?<=A)\s+[a-z])", text)
    return choices[letters.index(said[1])] if said else None


def _by_words(line: str, choices: tuple[str, ...]) -> str | None:
    found = []
    for choice in choices:
        words = re.escape(choice.strip().rstrip(" ."))
        at = re.search(rf"(?<!\w){words}(?!\w)", line, re.IGNORECASE)
        if at:
            found.append((at.start(), -len(choice), choice))
    return min(found)[2] if found else None


_NUMBER = re.compile(r"(?:(?<!\d)[-+])?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_ANSWER_MARK = re.compile(r"####|\\boxed\{|answer\s*(?:is|:)", re.IGNORECASE)


@dataclass(frozen=True)
class FinalNumber:
    """1 if the text's final number equals the answer's, as numbers: 2,125 = 2125.0, a leading $ or a unit aside."""

    name: str = "final_number"

    def score(self, text: str, prompt: Prompt) -> float:
        got = final_number(prompt.extract_answer(text))
        return float(got is not None and got == final_number(prompt.answer))


def final_number(text: str) -> Decimal | None:
    """The number after the last `####`, `\\boxed{` or "answer is", or without such a mark the last number."""
    marks = list(_ANSWER_MARK.finditer(text))
    after = _NUMBER.search(text, marks[-1].end()) if marks else None
    numbers = [after.group()] if after else _NUMBER.findall(text)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


@dataclass(frozen=True)
class Rouge1:
    """ROUGE-1 F of unigrams against the nearest reference (package rouge-score, with Porter stemming).

    Source: Lin, ROUGE: A Package for Automatic Evaluation of Summaries, 2004. Synera prints it times 100.
    """

    name: str = "rouge1"

    def score(self, text: str, prompt: Prompt) -> float:
        scored = _rouge().score_multi(prompt.references, prompt.extract_answer(text))
        return float(scored["rouge1"].fmeasure)


@cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge1"], use_stemmer=True)
