"""Tokens from a server: what it writes behind a prompt, and what it thinks of drafts."""

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
"""Tokens to ask for instead, where fewer end in half a character."""


class RemoteGenerator:
    """
    Args:
        vocabulary: ids from here on are nobody's.
        as_text: prompts travel as text, to a server that refuses ids.
        context: tokens of prompt and answer together that the server takes; None where nobody knows.
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
        """At least one token behind the prompt; an end token only where the model ended the text, and last. No more are
        asked for than the context holds.

        Raises RemoteError.
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
        """Greedily: drafts stand while they are what the server would have written. Raises RemoteError.

        Where the likeliest token is named by its text alone, and that says something else, the server writes it.
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
        """The drafts that can be: the verdict's own token needs room behind them, and half a character is no text. A
        verdict on fewer is one, too.
        """
        found = drafts[: self._max_new_tokens(prompt) - 1]
        if self.prompts_as_text:
            half = (i for i, token in enumerate(found) if REPLACEMENT_CHAR in decode(self.tokenizer.hf, [token]))
            found = found[: next(half, len(found))]
        return found

    def _completion_choice(self, body: dict[str, Any]) -> dict[str, Any]:
        """The choice as if without its prompt, to be checked like any other."""
        choice = only_choice(body)
        return {"text": choice.get("text"), "finish_reason": choice.get("finish_reason")}

    def _resolve_token(self, token: int | None, prompt: Sequence[int]) -> int:
        """A token that is named only by its text, or not at all at a text's end, is asked for."""
        return self.generate(prompt, 1)[0] if token is None else self._check_token(token)

    def _complete(self, prompt: Sequence[int], max_tokens: int, sampling: RemoteSampling | None) -> RemoteCompletion:
        body = self.client.post(
            *self.dialect.completion_request(self.client.server, self._prompt_field(prompt), max_tokens, sampling)
        )
        return self.dialect.parse(body, max_tokens, self._expected_prompt_tokens(prompt))

    def _expected_prompt_tokens(self, prompt: Sequence[int]) -> int | None:
        """As many tokens must have been read; None for a text, which is cut there."""
        return None if self.prompts_as_text else len(prompt)

    def _max_new_tokens(self, prompt: Sequence[int]) -> int:
        """Behind the prompt; a prompt that leaves none is the server's to refuse."""
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
        """None, where the text so far is half a character."""
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
                f"the server wrote token {short_repr(token)}, and the pair's are 0 to {self.vocab_size - 1}; does it serve "
                "a model of another vocabulary?"
            )
        return token
