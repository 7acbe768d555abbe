"""Prompts made of numbers that begin alike where a workload says so (`serving.workload.sharing`)."""

from serving.messages import TokenIds
from serving.outcomes.acceptance_draws import TOKENS_PER_POSITION
from serving.policy.policy import Policy
from serving.workload.sharing import PromptSharing
from serving.workload.workload import WorkloadRequest

_APART = 1 << 24
"""More than a position: tokens of two conversations are apart by it, and from what a target writes."""


def check_sharing(policy: Policy, sharing: PromptSharing | None, is_text: bool) -> None:
    """Raises ValueError where prompts are text and are told what to share, or are none and are not told although the
    policy reads it, and for conversations whose answers are not known beforehand.
    """
    if is_text:
        if sharing:
            raise ValueError(
                "workload.sharing says what prompts without text share, and these are text; leave it out, or choose "
                "runtime=simulated runtime/outcomes=fitted"
            )
        return
    if policy.kv_cache.idle_sessions is not None and sharing is None:
        raise ValueError(
            f"policy.kv_cache={type(policy.kv_cache).__name__} begins with what prompts share, and prompts without "
            "text do not say it; add +workload/sharing=system_prompt or conversation, or choose runtime/outcomes=trace"
        )
    if sharing and sharing.turns > 1 and not policy.lossless:
        raise ValueError(
            f"workload.sharing.turns is {sharing.turns}, and policy {policy.name} writes another text than the target, "
            "which a next turn's prompt would repeat; choose a lossless policy, or turns=1"
        )


def check_unshared(policy: Policy) -> None:
    """Raises ValueError for a policy that reads what prompts share, where a study makes prompts that do not say it."""
    if policy.kv_cache.idle_sessions is not None:
        raise ValueError(
            f"policy.kv_cache={type(policy.kv_cache).__name__} begins with what prompts share, and this study's "
            "prompts do not say it; choose policy/kv_cache=reuse"
        )


class SharedPrompts:
    """Makes the prompts of a workload's requests, in their order; answers are as long as their limits."""

    def __init__(self) -> None:
        self._texts: dict[tuple[int, int], TokenIds] = {}
        """(device, its conversation) -> prompt and answer of the last turn."""

    def prompt(self, request: WorkloadRequest, sharing: PromptSharing, num_tokens: int, answer_tokens: int) -> TokenIds:
        """The prompt of a request with `num_tokens` tokens of its own.

        Raises ValueError if it is longer than the request's limit.
        """
        conversation, turn = divmod(request.position, sharing.turns)
        place = request.device, conversation
        if not turn:
            self._texts[place] = tuple(TOKENS_PER_POSITION * at for at in range(sharing.shared_tokens))
        before = self._texts[place]
        apart = _APART * (request.index + 1)
        own = tuple(TOKENS_PER_POSITION * (at + apart) for at in range(len(before), len(before) + num_tokens))
        prompt = before + own
        if len(prompt) > request.max_prompt_tokens:
            raise ValueError(
                f"workload.sharing makes a prompt of {len(prompt)} tokens (turn {turn + 1} of {sharing.turns}), "
                f"and the limit is {request.max_prompt_tokens}; raise workload.max_prompt_tokens, or shorten "
                "runtime.outcomes.prompt_lengths, the answers or the conversations"
            )
        answer = range(len(prompt), len(prompt) + answer_tokens)
        self._texts[place] = (*prompt, *(TOKENS_PER_POSITION * at for at in answer))
        return prompt
