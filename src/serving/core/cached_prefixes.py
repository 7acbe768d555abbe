"""The texts in a worker's caches, block by block: the longest beginning of a new text that one of them has cached.

A path from the root of the tree is the text of the sessions that hold its blocks (as in vLLM's automatic prefix
caching, and in SGLang's RadixAttention, Zheng et al., 2024, section 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.messages import TokenIds


def shared_len(text: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    same = zip(text, other, strict=False)
    return next((i for i, (a, b) in enumerate(same) if a != b), min(len(text), len(other)))


@dataclass(slots=True, eq=False)
class _Block:
    """A block of tokens behind those of its parent, and the sessions that have it cached, the newest last."""

    tokens: TokenIds
    parent: "_Block | None"
    children: dict[TokenIds, "_Block"] = field(default_factory=dict)
    holders: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Text:
    """The cached text of one session: whole blocks, and the tokens behind them."""

    blocks: list[_Block] = field(default_factory=list)
    rest: TokenIds = ()


class CachedPrefixes:
    """
    Args:
        block_tokens: tokens of a block; a prefix is shared in whole blocks.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._root = _Block((), None)
        self._texts: dict[str, _Text] = {}

    def write(self, session: str, start: int, tokens: TokenIds) -> None:
        """The session's cache holds these tokens from `start` on, and none behind them.

        They are not noted if something before them is not known.
        """
        self.cut(session, start)
        text = self._texts.setdefault(session, _Text())
        if len(text.blocks) * self._block_tokens + len(text.rest) != start:
            return
        size, left = self._block_tokens, (*text.rest, *tokens)
        for at in range(0, len(left) - size + 1, size):
            self._append(session, text, left[at : at + size])
        text.rest = left[len(left) - len(left) % size :]

    def cut(self, session: str, length: int) -> None:
        """The session's cache holds its first `length` tokens, or fewer."""
        text = self._texts.get(session)
        if text is None:
            return
        whole, more = divmod(length, self._block_tokens)
        if len(text.blocks) <= whole:
            text.rest = text.rest[: max(0, length - len(text.blocks) * self._block_tokens)]
            return
        text.rest = text.blocks[whole].tokens[:more]
        while len(text.blocks) > whole:
            self._leave(session, text.blocks.pop())

    def drop(self, session: str) -> None:
        """The session's cache is gone."""
        self.cut(session, 0)
        self._texts.pop(session, None)

    def longest(self, tokens: Sequence[int], other_than: str = "") -> tuple[str, int]:
        """A session that has the most of the text's first tokens cached, the newest of several, and how many: whole
        blocks, and never all of the text. ("", 0) if there is none.
        """
        block, length, size = self._root, 0, self._block_tokens
        found = "", 0
        while length + size < len(tokens):
            child = block.children.get(tuple(tokens[length : length + size]))
            if child is None:
                break
            block, length = child, length + size
            newest = next((session for session in reversed(block.holders) if session != other_than), "")
            if not newest:
                break
            found = newest, length
        return found

    def has(self, session: str, length: int) -> bool:
        """True if the session's cache holds so many tokens."""
        text = self._texts.get(session)
        return text is not None and len(text.blocks) * self._block_tokens >= length

    def _append(self, session: str, text: _Text, tokens: TokenIds) -> None:
        parent = text.blocks[-1] if text.blocks else self._root
        block = parent.children.get(tokens)
        if block is None:
            block = parent.children[tokens] = _Block(tokens, parent)
        block.holders[session] = None
        text.blocks.append(block)

    def _leave(self, session: str, block: _Block) -> None:
        """The session does not hold the block any more; a block without a holder goes."""
        del block.holders[session]
        if not block.holders and block.parent is not None:
            del block.parent.children[block.tokens]
