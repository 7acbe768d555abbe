"""Token bookkeeping of one session: what is agreed, drafted, sent, drafted ahead. The only place where it lives.

The rules of the machine:
1. `tokens` is agreed: the prompt and what the user has seen. Everything else is provisional.
2. `flight` is None unless a verdict is awaited; then it is the drafts that were sent, perhaps none.
3. The last correction travels again: after a verdict the route's caches are valid up to `len(tokens) - 1`.
4. A continuation drafted ahead survives only if it starts with what the target really wrote.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from serving.core.keyed_random import key, luck
from serving.core.link_monitor import Monitor
from serving.core.scores import IMPORTANCE
from serving.messages import Blob, Call, Drafted, Guess, Origin, Rows, Rule, Verdict

_BEFORE = 8
"""How many drafts what was expected counts for, once some were judged."""

Fell = Callable[[Mapping[str, Sequence[float]]], bool]
"""Do these scores end a draft?"""
Tokens = tuple[int, ...]
Origins = tuple[Origin, ...]


@dataclass(slots=True)
class Branch:
    """A continuation drafted while a verdict is awaited: it assumes `accepted` drafts and then `token`."""

    accepted: int
    token: int | None
    """None: whatever the target adds after full acceptance; the drafter's own guess stands in for it."""
    tokens: list[int] = field(default_factory=list)
    scores: dict[str, list[float]] = field(default_factory=dict)
    tops: list[tuple[int, ...]] = field(default_factory=list)
    odds: list[Blob] = field(default_factory=list)
    stopped: bool = False
    """By the draft's stop rule."""

    @property
    def own(self) -> Tokens:
        """What follows the accepted drafts, as far as it is known."""
        return tuple(self.tokens) if self.token is None else (self.token, *self.tokens)

    def drop_last(self) -> None:
        """The stop rule does not want it."""
        del self.tokens[-1:], self.tops[-1:], self.odds[-1:]
        for values in self.scores.values():
            del values[-1:]


class Session:
    __slots__ = (
        "astray", "branches", "call", "draft", "ends", "flight", "full", "guessed", "home", "judged", "keep", "kv",
        "left", "monitor", "network_s", "odds", "offline", "parents", "path", "peer", "prompt", "round", "scores",
        "seen_s", "stood", "stopped", "stream", "tokens", "tops",
    )  # fmt: skip

    def __init__(self, call: Call, seed: int, monitor: Monitor | None = None) -> None:
        self.call = call
        self.monitor = monitor or Monitor()
        self.tokens = list(call.prompt)
        self.prompt = len(call.prompt)
        self.full = self.prompt + call.limit
        """How long it is when the limit is reached."""
        self.ends = frozenset(call.ends)
        own = call.sampling.seed if call.sampling else seed
        self.stream = key(own if call.seed is None else call.seed, call.session)
        self.peer = 0
        """Length up to which every cache on the route is valid."""
        self.kv = 0
        """Length up to which the drafter's cache is valid."""
        self.round = 0
        self.left = 0
        """Tokens that the route may still write in this round."""
        self.path: tuple[str, ...] = ()
        self.home: tuple[str, ...] = ()
        """The path before: its nodes know the session, and those that live keep it."""
        self.astray = False
        """May nodes know of this session that its path does not lead to, since there was another or a node was lost?"""
        self.keep: tuple[int, ...] | None = None
        self.flight: tuple[int, ...] | None = None
        self.branches: list[Branch] = []
        self.guessed = False
        self.offline = False
        self.seen_s = 0.0
        """When the user last saw a token."""
        self.judged = self.stood = 0
        """Drafts that were judged, and that stood."""
        self.network_s = 0.0
        """How long messages are on their way to the route and back, by the last round."""
        self._clear()

    def resume(self, old: "Session") -> None:
        """Goes on from an earlier call's caches, as far as its text and this prompt are the same."""
        n = min(len(old.tokens), len(self.tokens) - 1)  # the last one is asked in any case
        same = next((i for i in range(n) if old.tokens[i] != self.tokens[i]), n)
        self.kv, self.round = min(old.kv, same), old.round + 1
        self.peer, self.path, self.astray = min(old.peer, same), old.path, old.astray

    def _clear(self) -> None:
        self.draft: list[int] = []
        self.scores: dict[str, list[float]] = {}
        self.tops: list[tuple[int, ...]] = []
        self.odds: list[Blob] = []
        self.parents: tuple[int, ...] | None = None
        self.stopped = False

    # What slots may read.

    @property
    def written(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def remaining(self) -> int:
        return self.full - len(self.tokens)

    @property
    def ended(self) -> bool:
        """Did the user see all there is: the limit, or an end token?"""
        n = len(self.tokens)
        return n >= self.full or (self.tokens[-1] in self.ends and n > self.prompt)

    @property
    def draft_ended(self) -> bool:
        """Does the draft run into an end token, so that there is nothing to draft behind it?"""
        return bool(self.draft) and self.draft[-1] in self.ends

    @property
    def unscored(self) -> int:
        """How many drafts, adopted from a branch, have no importance yet: that of a draft is seen from later ones."""
        return len(self.draft) - len(self.scores.get(IMPORTANCE, ()))

    def worth(self, drafts: int, acceptance: float) -> float:
        """Tokens to expect of a verification (WISP, Eq. 5): the share of its drafts that stood so far in this session,
        beside the `acceptance` that was expected before, and the token that the target adds.
        """
        return 1.0 + drafts * (self.stood + _BEFORE * acceptance) / (self.judged + _BEFORE)

    def luck(self, purpose: str) -> float:
        """A number in [0, 1) for one decision at the current position; the same for every policy under one seed."""
        return luck(self.stream, len(self.tokens), purpose)

    # What happens.

    def drafted(self, outcome: Drafted) -> None:
        self.draft += outcome.tokens
        self.tops += outcome.tops
        self.stopped = outcome.stopped
        if outcome.odds:
            self.odds += outcome.odds
        for name, values in outcome.scores.items():
            self.scores.setdefault(name, []).extend(values)

    def growing(self, steps: int) -> list[Branch]:
        """The branches that want another token: shorter than `steps`, not at their end, with room in the answer."""
        return [b for b in self.branches if len(b.tokens) < steps and not (b.stopped or self._is_over(b))]

    def _is_over(self, branch: Branch) -> bool:
        last = ((self.flight or ())[: branch.accepted] + branch.own)[-1:]
        full = branch.accepted + 1 + len(branch.tokens) >= self.remaining
        return full or not self.ends.isdisjoint(last)

    def drafted_ahead(self, outcome: Drafted, grown: Sequence[Branch], fell: Fell, keep: bool) -> None:
        """One token more on every branch that was to grow; where the target's own token is guessed, that comes first.

        The one at which a draft would end ends it, and is dropped where it is not to `keep`, unless it is the first.
        """
        for i, branch in enumerate(grown):
            if branch.token is None:
                branch.token = outcome.tokens[i]
                continue
            branch.tokens.append(outcome.tokens[i])
            branch.tops.append(outcome.tops[i])
            branch.odds += outcome.odds[i : i + 1]
            for name, values in outcome.scores.items():
                branch.scores.setdefault(name, []).append(values[i])
            branch.stopped = fell(branch.scores)
            if branch.stopped and not keep and len(branch.tokens) > 1:
                branch.drop_last()

    def feed(self) -> tuple[int, tuple[int, ...]]:
        """What the drafter lacks to go on: from where its cache is to be filled, and with what; at least one token,
        because a model answers to a row.
        """
        base = len(self.tokens)
        start = base + len(self.draft) - 1
        if self.kv < start:
            start = self.kv
        feed = tuple(self.tokens[start:])
        if self.draft:
            feed += tuple(self.draft[max(0, start - base) :])
        return start, feed

    def feeds_ahead(self, branches: Sequence[Branch]) -> tuple[int, tuple[Tokens, ...]]:
        """The same for branches, from where they have all in common."""
        base = len(self.tokens)
        start = min(self.kv, base + min(b.accepted for b in branches) - 1)
        return start, tuple(self._feed_ahead(branch, start) for branch in branches)

    def _feed_ahead(self, branch: Branch, start: int) -> Tokens:
        flight = (self.flight or ())[max(0, start - len(self.tokens)) : branch.accepted]
        return (*self.tokens[start:], *flight, *branch.own)

    def ask(self, send_drafts: bool, rule: Rule) -> Rows:
        """Puts the draft in flight and says what the route lacks: uncached tokens, then the drafts to check."""
        new = tuple(self.tokens[self.peer :])
        draft = tuple(self.draft) if send_drafts else ()
        self.flight = draft
        self.branches, self.guessed = [], False
        odds = tuple(self.odds) if draft and self.odds else ()
        return Rows(
            self.call.session, self.peer, len(new) + len(draft), new + draft, len(draft), rule, self.call.sampling,
            self.parents, self.keep, None, odds,
        )  # fmt: skip

    def settle(self, verdict: Verdict) -> tuple[Tokens, Origins]:
        """Agrees on the accepted drafts and the target's token; keeps what was drafted ahead only if it starts with
        them.

        Returns the tokens that became agreed, and who wrote each.
        """
        flight, at, accepted = self.flight or (), len(self.tokens), verdict.accepted
        self.judged += len(flight)
        self.stood += accepted
        chosen = flight[:accepted] if verdict.keep is None else tuple([flight[i] for i in verdict.keep])
        last: Origin = "cloud" if not flight else "bonus" if accepted == len(flight) else "corrected"
        new = self._agree((*chosen, verdict.token), _writers(len(chosen), last))
        length = len(self.tokens)
        self.kv = min(self.kv, at + len(chosen), length)
        self.peer, self.keep = length - 1, verdict.keep
        branches, self.branches, self.flight = self.branches, [], None
        self._clear()
        if branches:
            self._adopt(branches, verdict)
        if verdict.proposal:
            self.draft, self.parents = list(verdict.proposal[0]), verdict.proposal[1]
        return new

    def foreseen(self, verdict: Verdict) -> Guess:
        """How the branches fit a verdict that is not settled yet."""
        if not self.branches:
            return ""
        there = [branch.token for branch in self.branches if branch.accepted == verdict.accepted]
        return "hit" if verdict.token in there else "position" if there else "missed"

    def _adopt(self, branches: Sequence[Branch], verdict: Verdict) -> None:
        for b in branches:
            if b.accepted == verdict.accepted and b.token == verdict.token:
                self.draft, self.scores, self.tops, self.odds = b.tokens, b.scores, b.tops, b.odds
                self.stopped = b.stopped

    def stand(self) -> tuple[Tokens, Origins]:
        """The device's own draft stands: not offloaded, or the cloud is gone."""
        origin: Origin = "offline" if self.offline else "device"
        new = self._agree(tuple(self.draft), (origin,) * len(self.draft))
        self.kv = min(self.kv, len(self.tokens))
        self.branches = []
        self._clear()
        return new

    def _agree(self, tokens: Tokens, origins: Origins) -> tuple[Tokens, Origins]:
        """Up to the limit, and up to and with the first end token."""
        n, room = len(tokens), self.full - len(self.tokens)
        if n > room:
            n = room
        if self.ends and not self.ends.isdisjoint(tokens):
            n = next((i + 1 for i in range(n) if tokens[i] in self.ends), n)
        if n < len(tokens):
            tokens, origins = tokens[:n], origins[:n]
        self.tokens += tokens
        return tokens, origins

    def forget_route(self) -> None:
        """The route's caches may be gone: a new attempt sends everything."""
        self.round += 1
        self.home, self.peer, self.path, self.keep = self.path or self.home, 0, (), None
        self.astray = True


@cache
def _writers(accepted: int, last: Origin) -> Origins:
    drafts: list[Origin] = ["accepted" for _ in range(accepted)]
    return (*drafts, last)
