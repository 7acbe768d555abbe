"""Where drafting pays, as inequalities: the closed forms of Speculation at a Distance (Lyu, Irukulapati, Champati,
2026, arXiv 2606.25091). Of the paper the abstract's statements are known; the formulas are ours, of its quantities.

A round has n drafts; each is right with probability a, independently. Times are those of one session alone: a step of
the draft model on the device or on the cloud's chip, a pass of the target over n + 1 tokens, one over a single token,
and the way there and back.
"""

from dataclasses import dataclass

from serving.policy.by_condition import tokens_per_round


@dataclass(frozen=True)
class RoundTimes:
    """What the parts of a round take, in seconds.

    Args:
        device_draft_s: a step of the draft model on the device.
        cloud_draft_s: a step on the cloud's chip.
        verify_s: a pass of the target over a window and one token.
        decode_s: a pass over one token.
        other_s: of a message there and one back, beside the round trip.
        device_prompt_s: the draft model's pass over the prompt on the device, before its first draft. The paper's forms
            have no prompts; it counts where the length of answers is given.
    """

    device_draft_s: float
    cloud_draft_s: float
    verify_s: float
    decode_s: float
    other_s: float = 0.0
    device_prompt_s: float = 0.0

    def decoding_border_s(self, acceptance: float, window: int, answer_tokens: float | None = None) -> float:
        """The round trip below which a device that drafts is faster than a cloud that decodes; below 0: none is."""
        gained_s = tokens_per_round(acceptance, window) * self.decode_s - self.verify_s
        lost_s = window * self.device_draft_s + self.other_s
        return gained_s - lost_s - self._prompt_s_per_round(acceptance, window, answer_tokens)

    def colocated_border_s(self, acceptance: float, window: int, answer_tokens: float | None = None) -> float:
        """The round trip below which a device that drafts is faster than a cloud that drafts as far: where its window
        takes less time than the cloud's by more than that; below 0: none is.
        """
        gained_s = window * (self.cloud_draft_s - self.device_draft_s) - self.other_s
        return gained_s - self._prompt_s_per_round(acceptance, window, answer_tokens)

    def _prompt_s_per_round(self, acceptance: float, window: int, answer_tokens: float | None) -> float:
        if answer_tokens is None:
            return 0.0
        return self.device_prompt_s * tokens_per_round(acceptance, window) / answer_tokens


def capacity_factor(window: int, draft_s: float, verify_s: float) -> float:
    """How many times as many clients a saturated server carries at the same rate once it drafts no more: 1 + gamma t_d
    / t_v, with the server's times of a draft step and of a verification.
    """
    return 1 + window * draft_s / verify_s
