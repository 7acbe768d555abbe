"""Predicts a round of drafting and verifying on a chip that does both, at the load of now (`policy/draft=goodput`)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from serving.core.link_monitor import MovingAverage
from serving.hardware.latency import ForwardLoad, LatencyModel, batch_load, forward_load
from serving.messages import INF, DraftWork, ForwardWork, Outcome, Work, draft_works

_KEPT = 0.98
"""The share of the past that a pass leaves in the count of prompts and answers."""


@dataclass(frozen=True)
class ChipProfile:
    """What both models take on the chip, as profiled before (Liu et al. 2024, section 4), and what a pass may hold."""

    target: LatencyModel
    drafter: LatencyModel
    max_sessions: float = INF
    max_tokens: float = INF


class RoundTiming:
    """The profile's prediction for the sessions that run, times what recent jobs took over what was predicted.

    So it holds on a chip whose speed is not quite the profile's, such as this machine's. A pass also computes prompts,
    as many tokens of them for each token of an answer as of late; where a pass may not hold all of it, it holds fewer
    sessions. With the draft model `apart`, on chips of its own, half of the sessions draft while the others are
    verified: the slower of the two decides.

    Args:
        batch_drafts: True if one forward drafts a token of every session; False: one forward each.
    """

    def __init__(self, profile: ChipProfile, batch_drafts: bool, *, apart: bool = False) -> None:
        self._profile, self._batch_drafts, self._apart = profile, batch_drafts, apart
        self._target_error, self._drafter_error = MovingAverage(1.0), MovingAverage(1.0)
        self._sessions, self._cached_tokens = 0, 0.0
        self._prompt_tokens = self._answer_tokens = 0.0
        """That passes computed and wrote, of late."""
        self._rounds_s: dict[tuple[int, float], float] = {}
        """What was asked for since the last update."""

    def record(self, work: Work, outcome: Outcome, elapsed_s: float) -> None:
        """A job has taken so long."""
        if isinstance(work, ForwardWork) and isinstance(outcome, tuple):
            load, latency, error = forward_load(work), self._profile.target, self._target_error
            self._count_tokens(work, sum([1 + each.verdict.accepted for each in outcome if each.verdict]))
        else:
            load, latency, error = _drafting_load(draft_works(work)), self._profile.drafter, self._drafter_error
        expected_s = latency.seconds(load.with_layers(latency.layers))
        if expected_s > 0:
            error.update(elapsed_s / expected_s)

    def _count_tokens(self, work: ForwardWork, answer_tokens: int) -> None:
        prompt_tokens = sum([seq.num_tokens - (seq.num_drafts + 1 if seq.rule else 0) for seq in work.slices])
        self._prompt_tokens = _KEPT * self._prompt_tokens + prompt_tokens
        self._answer_tokens = _KEPT * self._answer_tokens + answer_tokens

    def update(self, lengths: Collection[int]) -> None:
        """The sessions that run have so many tokens."""
        self._sessions = len(lengths)
        self._cached_tokens = sum(lengths) / max(1, len(lengths))
        self._rounds_s.clear()

    def round_s(self, num_drafts: int, tokens: float) -> float:
        """A session's share of a round in which every session drafts `num_drafts` tokens and gets `tokens`: seconds."""
        known = self._rounds_s.get((num_drafts, tokens))
        if known is None:
            known = self._rounds_s[num_drafts, tokens] = self._predict(num_drafts, tokens)
        return known

    def _predict(self, num_drafts: int, tokens: float) -> float:
        profile, each = self._profile, num_drafts + 1
        prompt = tokens * self._prompt_tokens / self._answer_tokens if self._answer_tokens else 0.0
        takes_turns = self._apart and num_drafts > 0 and self._sessions > 1
        at_once = self._sessions / 2 if takes_turns else self._sessions
        sessions = max(1.0, min(at_once, profile.max_sessions, profile.max_tokens / (each + prompt)))
        pass_s = self._pass_s(profile.target, sessions, each, prompt) * (self._target_error.value or 1.0)
        together, forwards = (sessions, 1.0) if self._batch_drafts else (1.0, sessions)
        step_s = forwards * self._pass_s(profile.drafter, together, 1, 0.0) * (self._drafter_error.value or 1.0)
        if takes_turns:
            return max(num_drafts * step_s, pass_s) / sessions
        return (num_drafts * step_s + pass_s) / sessions

    def _pass_s(self, latency: LatencyModel, sessions: float, each: int, prompt: float) -> float:
        """A forward of `each` tokens and `prompt` tokens of prompts for each of these sessions."""
        cached, tokens, verified = self._cached_tokens, sessions * (each + prompt), sessions * each
        interactions = tokens * cached + verified * each
        further = max(0, round(sessions) - 1)
        return latency.seconds(
            ForwardLoad(latency.layers, tokens, interactions, sessions * cached, verified, extra_sessions=further)
        )


def _drafting_load(works: Sequence[DraftWork]) -> ForwardLoad:
    """One forward that writes a token of each."""
    return batch_load(0, [(work.start, work.num_inputs) for work in works], len(works))
