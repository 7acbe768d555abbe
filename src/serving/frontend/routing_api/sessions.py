"""Which KV cache serves a client's session: found by the tokens that this server itself ran, never by what is said."""

from collections import OrderedDict
from collections.abc import Callable

from serving.frontend.openai.conversations import Tokens, Turn, shared
from serving.frontend.openai.gateway import Conversation

Owner = tuple[str, str]
"""(client, its name for the session): nobody names another's."""


class Sessions:
    """At most `bound`; the one unused for longest is forgotten first. One question of a session at a time."""

    def __init__(self, bound: int, forget: Callable[[str], None]) -> None:
        self.bound, self._forget = bound, forget
        self._parked: OrderedDict[Owner, tuple[str, Turn]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return len(self._parked)

    def take(self, owner: Owner, prompt: Tokens) -> Conversation | None:
        """Its cache, as far as its tokens begin the prompt; a new one where they do not, None where none is kept."""
        if not self.bound:
            return None
        if found := self._parked.pop(owner, None):
            name, turn = found
            if n := shared(turn, prompt):
                return Conversation(name, n)
            self._forget(name)
        self._count += 1
        return Conversation(f"route-{self._count}", 0)

    def park(self, owner: Owner, conversation: Conversation | None, prompt: Tokens, answer: Tokens) -> None:
        if conversation is None:
            return
        if old := self._parked.pop(owner, None):
            self._forget(old[0])
        self._parked[owner] = conversation.name, Turn(len(prompt), prompt + answer)
        while len(self._parked) > self.bound:
            self._forget(self._parked.popitem(last=False)[1][0])

    def drop(self, conversation: Conversation | None) -> None:
        if conversation:
            self._forget(conversation.name)
