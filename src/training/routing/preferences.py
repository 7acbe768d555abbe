"""Whose token is preferred in a state: CITER's shortcut (token routing, section 2.1), as tables can test it."""

from __future__ import annotations

from collections.abc import Sequence

from training.routing.states import By


def reason(small: int, large: int, truth: int | None) -> By:
    """The small model is preferred if it writes the true token, else the large one if it does. Only if both fail are
    whole continuations compared, which would be one and the same where both write the same token.
    """
    if small == truth:
        return "small"
    if large == truth:
        return "large"
    return "alike" if small == large else "compared"


def truths(text: Sequence[int], reference: Sequence[int]) -> list[int | None]:
    """The true token at each position of a text: the reference's, as long as the text is the reference so far."""
    found: list[int | None] = []
    for i in range(len(text)):
        on = len(reference) > i and list(text[:i]) == list(reference[:i])
        found.append(reference[i] if on else None)
    return found


def small_is_better(small: tuple[float, ...], large: tuple[float, ...]) -> bool:
    """By the qualities of both continuations, the first that differs; the small model's is cheaper and wins a tie."""
    return small >= large
