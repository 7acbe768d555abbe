"""Prompts made of numbers that begin alike where a workload says so (`serving.workload.sharing`)."""

from serving.messages import TokenIds
from serving.outcomes.acceptance_draws import TOKENS_PER_POSITION
from serving.workload.sharing import PromptSharing
from serving.workload.workload import WorkloadRequest

_APART = 1 << 24
"""More than a position: tokens of two conversations are apart by it, and from what a target writes."""


class SharedPrompts:
    """Makes the prompts of a workload's requests, in their order; answers are as long as their limits."""

    def __init__(self, sharing: PromptSharing) -> None:
        self._sharing = sharing
        self._texts: dict[tuple[int, int], TokenIds] = {}
        """(device, its conversation) -> prompt and answer of the last turn."""

    def prompt(self, request: WorkloadRequest, num_tokens: int, answer_tokens: int) -> TokenIds:
        """The prompt of a request with `num_tokens` tokens of its own.

        Raises ValueError if it is longer than the request's limit.
        """
        conversation, turn = divmod(request.position, self._sharing.turns)
        place = request.device, conversation
        if not turn:
            self._texts[place] = tuple(TOKENS_PER_POSITION * at for at in range(self._sharing.shared_tokens))
        before = self._texts[place]
        apart = _APART * (request.index + 1)
        own = tuple(TOKENS_PER_POSITION * (at + apart) for at in range(len(before), len(before) + num_tokens))
        prompt = before + own
        if len(prompt) > request.max_prompt_tokens:
            raise ValueError(
                f"workload.sharing makes a prompt of {len(prompt)} tokens (turn {turn + 1} of {self._sharing.turns}), "
                f"and the limit is {request.max_prompt_tokens}; raise workload.max_prompt_tokens, or shorten "
                "runtime.outcomes.prompt_lengths, the answers or the conversations"
            )
        answer = range(len(prompt), len(prompt) + answer_tokens)
        self._texts[place] = (*prompt, *(TOKENS_PER_POSITION * at for at in answer))
        return prompt
