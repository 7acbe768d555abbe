"""Tokens from a server: what it writes behind a prompt, and what it thinks of drafts."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from serving.engines.remote import prompt_logprobs
from serving.engines.remote.client import Client
from serving.engines.remote.dialect import Answer, Dialect, Draw, only_choice
from serving.engines.remote.errors import RemoteError, shown
from serving.engines.remote.prompt_logprobs import HALF, decode, encode, whole_part
from serving.messages import Verdict

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

_LONGER = (4, 16)
"""Tokens to ask for instead, where fewer end in half a character."""


class Writer:
    """
    Args:
        vocabulary: ids from here on are nobody's.
        as_text: prompts travel as text, to a server that refuses ids.
        context: tokens of prompt and answer together that the server takes; None where nobody knows.
    """

    def __init__(
        self,
        client: Client,
        dialect: Dialect,
        tokenizer: "Tokenizer",
        vocabulary: int,
        as_text: bool = False,
        context: int | None = None,
    ) -> None:
        self.client, self.dialect, self.tokenizer = client, dialect, tokenizer
        self.vocabulary, self.as_text, self.context = vocabulary, as_text, context

    def write(self, prompt: Sequence[int], n: int, draw: Draw | None = None) -> tuple[int, ...]:
        """At least one token behind the prompt; an end token only where the model ended the text, and last. No more are
        asked for than the context holds.

        Raises RemoteError.
        """
        room = self._room(prompt)
        for asked in dict.fromkeys(min(max(n, least), room) for least in (1, *_LONGER)):
            found = self._tokens(self._answer(prompt, asked, draw), prompt)
            if found:
                return found
        raise RemoteError(
            f"the server's next {asked} tokens are no text, and it gives no token ids; use one that does (llama.cpp, "
            "vLLM, SGLang)"
        )

    def judge(self, prompt: Sequence[int], drafts: Sequence[int]) -> Verdict:
        """Greedily: drafts stand while they are what the server would have written. Raises RemoteError.

        Where the likeliest token is named by its text alone, and that says something else, the server writes it.
        """
        drafts = self._judged(prompt, drafts)
        if not drafts:
            return Verdict(0, self.write(prompt, 1)[0])
        whole = (*prompt, *drafts)
        body = self.client.post(*self.dialect.judge(self.client.server, self._said(whole)))
        self.dialect.read(body | {"choices": [self._only_finish(body)]}, 1, self._counted(whole))
        hf = self.tokenizer.hf if self.as_text else None
        for accepted, opinion in enumerate(prompt_logprobs.opinions(body, whole, len(drafts), hf)):
            if not opinion.agrees:
                best = self._known(opinion.best, whole[: len(prompt) + accepted])
                if best != drafts[accepted]:
                    return Verdict(accepted, best)
        return Verdict(len(drafts), self._known(prompt_logprobs.added(body, len(whole)), whole))

    def _judged(self, prompt: Sequence[int], drafts: Sequence[int]) -> Sequence[int]:
        """The drafts that can be: the verdict's own token needs room behind them, and half a character is no text. A
        verdict on fewer is one, too.
        """
        found = drafts[: self._room(prompt) - 1]
        if self.as_text:
            half = (i for i, token in enumerate(found) if HALF in decode(self.tokenizer.hf, [token]))
            found = found[: next(half, len(found))]
        return found

    def _only_finish(self, body: dict[str, Any]) -> dict[str, Any]:
        """The choice as if without its prompt, to be checked like any other."""
        choice = only_choice(body)
        return {"text": choice.get("text"), "finish_reason": choice.get("finish_reason")}

    def _known(self, token: int | None, prompt: Sequence[int]) -> int:
        """A token that is named only by its text, or not at all at a text's end, is asked for."""
        return self.write(prompt, 1)[0] if token is None else self._own(token)

    def _answer(self, prompt: Sequence[int], n: int, draw: Draw | None) -> Answer:
        body = self.client.post(*self.dialect.write(self.client.server, self._said(prompt), n, draw))
        return self.dialect.read(body, n, self._counted(prompt))

    def _counted(self, prompt: Sequence[int]) -> int | None:
        """As many tokens must have been read; None for a text, which is cut there."""
        return None if self.as_text else len(prompt)

    def _room(self, prompt: Sequence[int]) -> int:
        """Behind the prompt; a prompt that leaves none is the server's to refuse."""
        return sys.maxsize if self.context is None else max(1, self.context - len(prompt))

    def _said(self, prompt: Sequence[int]) -> Sequence[int] | str:
        if not self.as_text:
            return prompt
        text = decode(self.tokenizer.hf, prompt)
        if text.endswith(HALF):
            raise RemoteError(
                "the text so far ends in half a character, and the server takes only text; use one that takes token "
                "ids (llama.cpp, vLLM, SGLang)"
            )
        return text

    def _tokens(self, answer: Answer, prompt: Sequence[int]) -> tuple[int, ...]:
        """None, where the text so far is half a character."""
        if answer.ids is None:
            found = encode(self.tokenizer.hf, prompt, whole_part(answer.text))
        else:
            found = tuple(self._own(token) for token in answer.ids)
        ends = self.tokenizer.ends
        over = next((i for i, token in enumerate(found) if token in ends), None)
        if over is not None:
            return found[: over + 1]
        return (*found, self._end(answer)) if answer.stopped else found

    def _end(self, answer: Answer) -> int:
        ends = self.tokenizer.ends
        if answer.end in ends:
            return answer.end
        if not ends:
            raise RemoteError("the server ended the text, and this tokenizer has no end token to say so")
        own = self.tokenizer.hf.eos_token_id
        return int(own) if own in ends else ends[0]

    def _own(self, token: int) -> int:
        if not 0 <= token < self.vocabulary:
            raise RemoteError(
                f"the server wrote token {shown(token)}, and the pair's are 0 to {self.vocabulary - 1}; does it serve "
                "a model of another vocabulary?"
            )
        return token
