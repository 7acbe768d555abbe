"""Quality of one generated text, from 0 to 1: exact match, chosen option, final number, ROUGE-1."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from math import nan
from reprlib import repr as short_repr
from string import ascii_uppercase
from typing import Any, Protocol, SupportsFloat, runtime_checkable

from serving.workload.prompt import Prompt


@runtime_checkable
class Metric(Protocol):
    @property
    def name(self) -> str: ...
    def score(self, text: str, prompt: Prompt) -> float:
        """Scores a generated text, decoded without special tokens, from 0 to 1."""


def checked_score(metric: Metric, text: str, prompt: Prompt) -> float:
    """The metric's score of a text. Raises ValueError for what is no number from 0 to 1: a metric may be a user's."""
    found: object = metric.score(text, prompt)
    try:
        score = float(found) if isinstance(found, SupportsFloat) else nan
    except (TypeError, ValueError):  # an array of several numbers
        score = nan
    if not 0 <= score <= 1:
        raise ValueError(
            f"{type(metric).__name__}.score returned {short_repr(found)} for the prompt {prompt.id!r}; a number from 0 "
            "to 1 is wanted"
        )
    return score


def check_metrics(metrics: object, where: str) -> None:
    """Raises ValueError, which names `where`, for what are no metrics, and for one that no run scores."""
    if not isinstance(metrics, tuple | list):
        raise ValueError(  # noqa: TRY004 - what a person wrote
            f"{where} is a {type(metrics).__name__}; a tuple with one metric or none is wanted: (ExactMatch(),) or ()"
        )
    for metric in metrics:
        if isinstance(metric, type) or not isinstance(metric, Metric):
            raise ValueError(  # noqa: TRY004 - what a person wrote
                f"{where} holds {short_repr(metric)}; an object with `name` and `score(text, prompt)` is wanted"
            )
    unscored = [type(metric).__name__ for metric in metrics[1:] if not isinstance(metric, Rouge1)]
    if unscored:
        raise ValueError(
            f"{where} has {type(metrics[0]).__name__} and {', '.join(unscored)}; a run scores its answers with the "
            "first metric, and with ROUGE-1 where a prompt has references: leave one, or make one metric of them"
        )


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
    """1 if the text satisfies the prompt's `match_rule`, case-sensitive.

    `equals`: the text is one of the references. `ends_with`: it ends with the answer, full stops aside. `contains`: it
    holds the answer as whole words.
    """

    name: str = "exact_match"

    def score(self, text: str, prompt: Prompt) -> float:
        return float(_MATCH_RULES[prompt.match_rule](prompt.extract_answer(text), prompt))


@dataclass(frozen=True)
class ChoiceAccuracy:
    """1 if `chosen_option` finds the right option in the text; 0 if it finds none.

    `lettered`: True if the options were shown with letters, so that a letter alone chooses one.
    """

    name: str = "accuracy"
    lettered: bool = True

    def score(self, text: str, prompt: Prompt) -> float:
        return float(chosen_option(prompt.extract_answer(text), prompt.choices, self.lettered) == prompt.answer)


def chosen_option(text: str, choices: tuple[str, ...], lettered: bool) -> str | None:
    """The option that a free text names, by the first rule that finds one.

    1. The first line starts with an option's letter: alone, in parentheses, before `.`, `:`, `,` or `)`, before that
       option's own text, or before "is correct" or "is right" ("B", "(B) the mall", "B. mall", "B mall", "B is
       correct"; but not "A mall", where A is an article).
    2. Anywhere: "answer is B", "Answer: (B)", "option is B", "choice: B" (again not "answer is A mall").
    3. Rules 1 and 2 without the text's `*` and `_`, which chat models set around a letter ("**B**", "Answer: **B**").
    4. The option with the text that comes first in the first line, as whole words and ignoring case; the longer one if
       two start at the same place ("department store" before "department").
    """
    for said in (text, _EMPHASIS.sub("", text)) if lettered else ():
        lettered_choice = _by_letter(_first_line(said), said, choices)
        if lettered_choice is not None:
            return lettered_choice
    return _by_words(_first_line(text), choices)


_EMPHASIS = re.compile(r"[*_]+")
_CORRECT = re.compile(r"is\s+(?:the\s+)?(?:correct|right)\b")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _by_letter(line: str, text: str, choices: tuple[str, ...]) -> str | None:
    letters = ascii_uppercase[: len(choices)]
    start = re.match(rf"\(?([{letters}])(?:[.:,)]|\s*$|\s+(?=(.*)))", line)
    if start:
        choice, rest = choices[letters.index(start[1])], start[2]
        if rest is None or rest.casefold().startswith(choice.strip().casefold()) or _CORRECT.match(rest):
            return choice
    stated = re.search(rf"(?i:(?:answer|option|choice)\s*(?:is\s*:?|:))\s*\(?([{letters}])(?!\w|(?<=A)\s+[a-z])", text)
    return choices[letters.index(stated[1])] if stated else None


def _by_words(line: str, choices: tuple[str, ...]) -> str | None:
    found = []
    for choice in choices:
        words = re.escape(choice.strip().rstrip(" ."))
        at = re.search(rf"(?<!\w){words}(?!\w)", line, re.IGNORECASE)
        if at:
            found.append((at.start(), -len(choice), choice))
    return min(found)[2] if found else None


_NUMBER = re.compile(r"(?:(?<!\d)[-+])?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)")
_ANSWER_MARK = re.compile(r"####|\\boxed\{|answer\s*(?:is|:)", re.IGNORECASE)


@dataclass(frozen=True)
class FinalNumber:
    """1 if the text's final number equals the answer's as a number: 2,125 = 2125.0, .5 = 0.50; ignores a leading $ and
    units.
    """

    name: str = "final_number"

    def score(self, text: str, prompt: Prompt) -> float:
        got = final_number(prompt.extract_answer(text))
        return float(got is not None and got == final_number(prompt.answer))


def final_number(text: str) -> Decimal | None:
    """The number after the last `####`, `\\boxed{` or "answer is"; without such a mark the last number."""
    marks = list(_ANSWER_MARK.finditer(text))
    after = _NUMBER.search(text, marks[-1].end()) if marks else None
    numbers = [after.group()] if after else _NUMBER.findall(text)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


@dataclass(frozen=True)
class Rouge1:
    """ROUGE-1 F against the best-matching reference (package rouge-score, with Porter stemming).

    Source: Lin, ROUGE: A Package for Automatic Evaluation of Summaries, 2004. Synera reports it times 100.
    """

    name: str = "rouge1"

    def score(self, text: str, prompt: Prompt) -> float:
        scored = _rouge().score_multi(prompt.references, prompt.extract_answer(text))
        return float(scored["rouge1"].fmeasure)


@cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge1"], use_stemmer=True)
