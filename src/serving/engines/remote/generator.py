"""Tokens from a server: completions of a prompt, and verdicts on drafts."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from serving.engines.remote import prompt_logprobs
from serving.engines.remote.client import RemoteClient
from serving.engines.remote.dialect import Dialect, RemoteCompletion, RemoteSampling, only_choice
from serving.engines.remote.errors import RemoteError, short_repr
from serving.engines.remote.prompt_logprobs import REPLACEMENT_CHAR, decode, encode, strip_partial_char
from serving.messages import Verdict

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

_RETRY_LENGTHS = (4, 16)
"""Larger request lengths to try if a completion ends within a character."""


class RemoteGenerator:
    """
    Args:
        vocab_size: token ids must be below it.
        prompts_as_text: prompts are sent as text, to a server that rejects ids.
        context_tokens: the server's limit of prompt and completion together; None: unknown.
    """

    def __init__(
        self,
        client: RemoteClient,
        dialect: Dialect,
        tokenizer: "Tokenizer",
        vocab_size: int,
        prompts_as_text: bool = False,
        context_tokens: int | None = None,
    ) -> None:
        self.client, self.dialect, self.tokenizer = client, dialect, tokenizer
        self.vocab_size, self.prompts_as_text, self.context_tokens = vocab_size, prompts_as_text, context_tokens

    def generate(
        self, prompt: Sequence[int], max_tokens: int, sampling: RemoteSampling | None = None
    ) -> tuple[int, ...]:
        """At least one token after the prompt; the last is an end token if the model ended the text.

        Requests no more than the context holds. Raises RemoteError.
        """
        room = self._max_new_tokens(prompt)
        for asked in dict.fromkeys(min(max(max_tokens, least), room) for least in (1, *_RETRY_LENGTHS)):
            found = self._completion_tokens(self._complete(prompt, asked, sampling), prompt)
            if found:
                return found
        raise RemoteError(
            f"the server's next {asked} tokens are no text, and it gives no token ids; use one that does (llama.cpp, "
            "vLLM, SGLang)"
        )

    def verify(self, prompt: Sequence[int], drafts: Sequence[int]) -> Verdict:
        """Greedy verification of drafts by the log-probabilities of the prompt. Raises RemoteError.

        If the server names the correcting token only by its text, the token is requested as a completion.
        """
        drafts = self._verifiable_drafts(prompt, drafts)
        if not drafts:
            return Verdict(0, self.generate(prompt, 1)[0])
        whole = (*prompt, *drafts)
        body = self.client.post(*self.dialect.prompt_logprobs_request(self.client.server, self._prompt_field(whole)))
        self.dialect.parse(body | {"choices": [self._completion_choice(body)]}, 1, self._expected_prompt_tokens(whole))
        hf = self.tokenizer.hf if self.prompts_as_text else None
        for accepted, opinion in enumerate(prompt_logprobs.check_tokens(body, whole, len(drafts), hf)):
            if not opinion.is_argmax:
                best = self._resolve_token(opinion.argmax_token, whole[: len(prompt) + accepted])
                if best != drafts[accepted]:
                    return Verdict(accepted, best)
        return Verdict(len(drafts), self._resolve_token(prompt_logprobs.next_token(body, len(whole)), whole))

    def _verifiable_drafts(self, prompt: Sequence[int], drafts: Sequence[int]) -> Sequence[int]:
        """The leading drafts that the server can verify: the context must hold one more token, and a prompt sent as
        text cannot end within a character.
        """
        found = drafts[: self._max_new_tokens(prompt) - 1]
        if self.prompts_as_text:
            half = (i for i, token in enumerate(found) if REPLACEMENT_CHAR in decode(self.tokenizer.hf, [token]))
            found = found[: next(half, len(found))]
        return found

    def _completion_choice(self, body: dict[str, Any]) -> dict[str, Any]:
        """The choice without its echoed prompt, for the usual checks."""
        choice = only_choice(body)
        return {"text": choice.get("text"), "finish_reason": choice.get("finish_reason")}

    def _resolve_token(self, token: int | None, prompt: Sequence[int]) -> int:
        """The token itself, or a completion if the server named it only by text or not at all."""
        return self.generate(prompt, 1)[0] if token is None else self._check_token(token)

    def _complete(self, prompt: Sequence[int], max_tokens: int, sampling: RemoteSampling | None) -> RemoteCompletion:
        body = self.client.post(
            *self.dialect.completion_request(self.client.server, self._prompt_field(prompt), max_tokens, sampling)
        )
        return self.dialect.parse(body, max_tokens, self._expected_prompt_tokens(prompt))

    def _expected_prompt_tokens(self, prompt: Sequence[int]) -> int | None:
        """How many prompt tokens the server must report; None for a prompt sent as text."""
        return None if self.prompts_as_text else len(prompt)

    def _max_new_tokens(self, prompt: Sequence[int]) -> int:
        """Tokens that fit after the prompt, at least 1: the server rejects a prompt that is too long."""
        return sys.maxsize if self.context_tokens is None else max(1, self.context_tokens - len(prompt))

    def _prompt_field(self, prompt: Sequence[int]) -> Sequence[int] | str:
        if not self.prompts_as_text:
            return prompt
        text = decode(self.tokenizer.hf, prompt)
        if text.endswith(REPLACEMENT_CHAR):
            raise RemoteError(
                "the text so far ends in half a character, and the server takes only text; use one that takes token "
                "ids (llama.cpp, vLLM, SGLang)"
            )
        return text

    def _completion_tokens(self, completion: RemoteCompletion, prompt: Sequence[int]) -> tuple[int, ...]:
        """The checked tokens; empty if the text ends within its first character."""
        if completion.token_ids is None:
            found = encode(self.tokenizer.hf, prompt, strip_partial_char(completion.text))
        else:
            found = tuple(self._check_token(token) for token in completion.token_ids)
        ends = self.tokenizer.eos_token_ids
        over = next((i for i, token in enumerate(found) if token in ends), None)
        if over is not None:
            return found[: over + 1]
        return (*found, self._stop_token(completion)) if completion.stopped else found

    def _stop_token(self, completion: RemoteCompletion) -> int:
        ends = self.tokenizer.eos_token_ids
        if completion.stop_token in ends:
            return completion.stop_token
        if not ends:
            raise RemoteError("the server ended the text, and this tokenizer has no end token to say so")
        own = self.tokenizer.hf.eos_token_id
        return int(own) if own in ends else ends[0]

    def _check_token(self, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            raise RemoteError(
                f"the server wrote token {short_repr(token)}, and the pair's are 0 to {self.vocab_size - 1}; does it "
                "serve a model of another vocabulary?"
            )
        return token
