"""The tokens of one session on its device: committed, drafted, awaiting a verdict, and drafted ahead.

Invariants:
1. `tokens` are committed: the prompt and the tokens that the user has seen. All others are provisional.
2. `in_flight_drafts` is None unless a verdict is awaited. Then it holds the drafts that were sent, perhaps none.
3. After a verdict the target's caches are valid up to `len(tokens) - 1`: the target's own token is sent with the next
   request.
4. A branch drafted ahead becomes the next draft only if the verdict is the one that it assumed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from serving.core import draft_tree
from serving.core.cached_prefixes import shared_len
from serving.core.importance import importance_scores
from serving.core.keyed_random import key, uniform
from serving.core.link_monitor import DeviceMonitor
from serving.core.stop_strings import TokenText, advance, no_token_text
from serving.messages import (
    AcceptanceRule,
    DraftOutcome,
    DraftParents,
    GenerationRequest,
    LookaheadOutcome,
    Origin,
    SequenceSlice,
    StopText,
    TensorRef,
    TokenIds,
    Verdict,
)

_PRIOR_DRAFTS = 8
"""Weight of the acceptance that was expected beforehand, in drafts."""

StopPredicate = Callable[[Mapping[str, Sequence[float]]], bool]
"""True if these scores end a draft."""
Origins = tuple[Origin, ...]


@dataclass(slots=True, eq=False)
class Branch:
    """A continuation drafted while a verdict is awaited. It assumes that `accepted` drafts and then `token` follow: the
    first ones of a chain, those of the first path of a tree.
    """

    accepted: int
    token: int | None
    """None: the target's bonus token after full acceptance, until the draft model's own token stands in for it."""
    tokens: list[int] = field(default_factory=list)
    scores: dict[str, list[float]] = field(default_factory=dict)
    top_candidates: list[tuple[int, ...]] = field(default_factory=list)
    draft_probs: list[TensorRef] = field(default_factory=list)
    parents: DraftParents = None
    """The shape of `tokens`."""
    stopped: bool = False
    """True if the stop rule has ended this branch, or its tree is grown."""
    steps: int = 0
    """Steps of the draft model that have extended it; the step that finds `token` counts."""

    @property
    def continuation(self) -> TokenIds:
        """The tokens after the accepted drafts, as far as known."""
        return tuple(self.tokens) if self.token is None else (self.token, *self.tokens)

    def add_tree(self, tree: DraftOutcome) -> None:
        """The whole draft that follows the assumed verdict."""
        self.tokens, self.parents, self.stopped = list(tree.tokens), tree.parents, True
        self.top_candidates, self.draft_probs = list(tree.top_candidates), list(tree.draft_probs)
        self.scores = {name: list(values) for name, values in tree.scores.items()}

    def drop_last(self) -> None:
        del self.tokens[-1:], self.top_candidates[-1:], self.draft_probs[-1:]
        for values in self.scores.values():
            del values[-1:]


class Session:
    __slots__ = (
        "adopted",
        "arrived_s",
        "attempt",
        "branches",
        "draft",
        "draft_cached_len",
        "draft_parents",
        "draft_probs",
        "drafts_accepted",
        "drafts_verified",
        "in_flight_drafts",
        "kept_tree_nodes",
        "last_emitted_s",
        "lookahead_started",
        "max_len",
        "may_have_stale_nodes",
        "monitor",
        "network_s",
        "offline",
        "path",
        "previous_path",
        "prompt_len",
        "random_stream",
        "remaining_budget",
        "request",
        "scores",
        "stop_string_found",
        "stop_text",
        "stop_tokens",
        "stopped",
        "target_cached_len",
        "token_text",
        "tokens",
        "top_candidates",
    )  # fmt: skip

    def __init__(
        self,
        request: GenerationRequest,
        seed: int,
        monitor: DeviceMonitor | None = None,
        token_text: TokenText = no_token_text,
        arrived_s: float = 0.0,
    ) -> None:
        self.request, self.arrived_s = request, arrived_s
        self.monitor = monitor or DeviceMonitor()
        self.tokens = list(request.prompt)
        self.prompt_len = len(request.prompt)
        self.max_len = self.prompt_len + request.max_new_tokens
        """Prompt and the longest answer."""
        self.stop_tokens = frozenset(request.stop_tokens)
        self.stop_text = StopText(request.stop_strings, request.stop_tail) if request.stop_strings else None
        self.stop_string_found, self.token_text = False, token_text
        own = request.sampling.seed if request.sampling else seed
        self.random_stream = key(own if request.seed is None else request.seed, request.session)
        self.target_cached_len = 0
        """Length up to which the target's cache is valid on every node of the path."""
        self.draft_cached_len = 0
        """Length up to which the draft model's cache is valid."""
        self.attempt = 0
        """Numbers the tries; a reply to an older attempt is ignored."""
        self.remaining_budget = 0
        """Tokens that the target may still write before it waits for the device."""
        self.path: tuple[str, ...] = ()
        self.previous_path: tuple[str, ...] = ()
        """The path before it was invalidated. The next path reuses its nodes that are reachable."""
        self.may_have_stale_nodes = False
        """True if nodes outside `path` may still hold this session's caches (after a new path or a lost node)."""
        self.kept_tree_nodes: tuple[int, ...] | None = None
        """Drafts of the last tree that the target accepted; its caches still hold the others."""
        self.in_flight_drafts: tuple[int, ...] | None = None
        self.branches: list[Branch] = []
        self.adopted: Branch | None = None
        """The branch that assumed the last verdict."""
        self.lookahead_started = False
        self.offline = False
        self.last_emitted_s = 0.0
        """When the user last received a token."""
        self.drafts_verified = self.drafts_accepted = 0
        """Drafts that the target has verified, and how many of them it accepted."""
        self.network_s = 0.0
        """Network time of the last round trip, in seconds."""
        self._clear_draft()

    def resume(self, old: "Session") -> None:
        """Reuses the caches of this session's previous request, up to the longest common prefix."""
        same = shared_len(old.tokens, self.tokens[:-1])  # at least one token must be computed
        self.draft_cached_len, self.attempt = min(old.draft_cached_len, same), old.attempt + 1
        # Behind the last tree's accepted drafts the target's caches may hold the whole tree.
        valid = max(0, old.target_cached_len - len(old.kept_tree_nodes or ()))
        self.target_cached_len, self.path = min(valid, same), old.path
        self.may_have_stale_nodes = old.may_have_stale_nodes

    def _clear_draft(self) -> None:
        self.draft: list[int] = []
        self.scores: dict[str, list[float]] = {}
        self.top_candidates: list[tuple[int, ...]] = []
        self.draft_probs: list[TensorRef] = []
        self.draft_parents: DraftParents = None
        self.stopped = False  # True if the stop rule ended the draft

    # State that the policy's slots read.

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def remaining_tokens(self) -> int:
        return self.max_len - len(self.tokens)

    @property
    def is_complete(self) -> bool:
        """True if the answer has reached its limit, a stop token or the end of a stop string."""
        n = len(self.tokens)
        return (
            n >= self.max_len or (self.tokens[-1] in self.stop_tokens and n > self.prompt_len) or self.stop_string_found
        )

    @property
    def draft_ends_answer(self) -> bool:
        """True if the draft ends with a stop token or a stop string, so that nothing can follow it."""
        return bool(self.draft) and self._ends_answer(self.draft)

    @property
    def stop_text_after_draft(self) -> StopText | None:
        """The stop strings, and the end of the answer with the draft."""
        return advance(self.stop_text, self.draft, self.token_text)[0] if self.stop_text else None

    @property
    def num_unscored(self) -> int:
        """How many drafts have no importance yet. A branch has none: importance depends on the tokens that follow."""
        return len(self.draft) - next((len(self.scores[name]) for name in importance_scores(tuple(self.scores))), 0)

    def expected_tokens(self, num_drafts: int, acceptance: float) -> float:
        """Tokens to expect from verifying `num_drafts` drafts (WISP, Eq. 5): those accepted, and the target's own.

        The acceptance rate is this session's so far, with `acceptance` as its prior.
        """
        return 1.0 + num_drafts * (self.drafts_accepted + _PRIOR_DRAFTS * acceptance) / (
            self.drafts_verified + _PRIOR_DRAFTS
        )

    def uniform(self, purpose: str) -> float:
        """A random number in [0, 1) for one decision at the current position, the same for all policies of a seed."""
        return uniform(self.random_stream, len(self.tokens), purpose)

    # State changes.

    def add_draft(self, outcome: DraftOutcome) -> None:
        """Appends the drafted tokens, which grow from the last draft so far, or from the last committed token."""
        shape, grown = self.draft_parents, outcome.parents
        if shape is not None or grown is not None:
            self.draft_parents = draft_tree.joined(shape, len(self.draft), grown, len(outcome.tokens))
        self.draft += outcome.tokens
        self.top_candidates += outcome.top_candidates
        self.stopped = outcome.stopped
        if outcome.draft_probs:
            self.draft_probs += outcome.draft_probs
        for name, values in outcome.scores.items():
            self.scores.setdefault(name, []).extend(values)

    def growing_branches(self, max_steps: int) -> list[Branch]:
        """The branches to extend: after fewer than `max_steps` steps, not stopped, and with room in the answer."""
        return [b for b in self.branches if b.steps < max_steps and not (b.stopped or self._is_branch_complete(b))]

    def _is_branch_complete(self, branch: Branch) -> bool:
        full = branch.accepted + 1 + len(branch.tokens) >= self.remaining_tokens
        return full or self._ends_answer(self._assumed_drafts(branch) + branch.continuation)

    def _assumed_drafts(self, branch: Branch) -> TokenIds:
        """The drafts that the branch assumes to be accepted."""
        flight = self.in_flight_drafts or ()
        path = draft_tree.first_path(self.draft_parents, len(flight))[: branch.accepted]
        return tuple([flight[i] for i in path])

    def _ends_answer(self, tokens: Sequence[int]) -> bool:
        """True if the last of these tokens after the committed ones is a stop token, or one ends a stop string."""
        if not self.stop_tokens.isdisjoint(tokens[-1:]):
            return True
        return self.stop_text is not None and advance(self.stop_text, tokens, self.token_text)[1] is not None

    def extend_branches(
        self, outcome: DraftOutcome, branches: Sequence[Branch], stops: StopPredicate, keep_last: bool
    ) -> None:
        """Appends one token to each of `branches`; the first one of a branch without `token` becomes its `token`.

        A token whose scores satisfy `stops` ends its branch. It is dropped unless `keep_last` is set or it is the
        branch's first.
        """
        for i, branch in enumerate(branches):
            branch.steps += 1
            if branch.token is None:
                branch.token = outcome.tokens[i]
                continue
            branch.tokens.append(outcome.tokens[i])
            branch.top_candidates.append(outcome.top_candidates[i])
            branch.draft_probs += outcome.draft_probs[i : i + 1]
            for name, values in outcome.scores.items():
                branch.scores.setdefault(name, []).append(values[i])
            branch.stopped = stops(branch.scores)
            if branch.stopped and not keep_last and len(branch.tokens) > 1:
                branch.drop_last()

    def draft_input(self) -> tuple[int, tuple[int, ...]]:
        """(start, tokens) that the draft model's cache lacks; at least one token, since a forward pass needs one.

        A chain follows the text; the nodes of a tree are no text, and are left out.
        """
        base, chain = len(self.tokens), self.draft if self.draft_parents is None else ()
        start = base + len(chain) - 1
        if self.draft_cached_len < start:
            start = self.draft_cached_len
        feed = tuple(self.tokens[start:])
        if chain:
            feed += tuple(chain[max(0, start - base) :])
        return start, feed

    def branch_inputs(self, branches: Sequence[Branch]) -> tuple[int, tuple[TokenIds, ...]]:
        """(start, tokens of each branch), from the end of the branches' common prefix or of the cache."""
        base = len(self.tokens)
        start = min(self.draft_cached_len, base + min(b.accepted for b in branches) - 1)
        return start, tuple(self._branch_input(branch, start) for branch in branches)

    def _branch_input(self, branch: Branch, start: int) -> TokenIds:
        drafts = self._assumed_drafts(branch)[max(0, start - len(self.tokens)) :]
        return (*self.tokens[start:], *drafts, *branch.continuation)

    def start_verification(self, send_drafts: bool, rule: AcceptanceRule) -> SequenceSlice:
        """Puts the draft in flight. Returns what the target must compute: the uncached tokens, then the drafts."""
        new = tuple(self.tokens[self.target_cached_len :])
        draft = tuple(self.draft) if send_drafts else ()
        self.in_flight_drafts = draft
        self.branches, self.lookahead_started = [], False
        probs = tuple(self.draft_probs) if draft and self.draft_probs else ()
        return SequenceSlice(
            self.request.session,
            self.target_cached_len,
            len(new) + len(draft),
            new + draft,
            len(draft),
            rule,
            self.request.sampling,
            self.draft_parents,
            self.kept_tree_nodes,
            draft_probs=probs,
        )

    def apply_verdict(
        self, verdict: Verdict, written: TokenIds = (), origins: Origins = ()
    ) -> tuple[TokenIds, Origins]:
        """Commits the accepted drafts and the target's token, and adopts the branch that assumed this verdict, if any.

        Returns the committed tokens and the origin of each.

        Args:
            written: tokens that the cloud has drafted and accepted itself.
            origins: of these and of the verdict's, where the cloud drafts.
        """
        flight, at, accepted = self.in_flight_drafts or (), len(self.tokens), verdict.accepted
        self.drafts_verified += len(flight)
        self.drafts_accepted += accepted
        if flight:
            self.monitor.record_verdict(accepted, len(flight))
        kept = verdict.kept_tree_nodes
        chosen = flight[:accepted] if kept is None else self._kept_drafts(kept)
        last: Origin = "cloud" if not flight else "bonus" if accepted == len(flight) else "corrected"
        new = self._commit((*written, *chosen, verdict.next_token), origins or _origins(len(chosen), last))
        length = len(self.tokens)
        self.draft_cached_len = min(self.draft_cached_len, at + len(chosen), length)
        self.target_cached_len, self.kept_tree_nodes = length - 1, kept
        assumed = [b for b in self.branches if b.token == verdict.next_token and self._assumes(b, verdict)]
        self.branches, self.in_flight_drafts = [], None
        self._clear_draft()
        self.adopted = assumed[-1] if assumed else None
        self.take_adopted()
        if verdict.next_tree:
            self.draft, self.draft_parents = list(verdict.next_tree.tokens), verdict.next_tree.parents
        return new

    def is_possible(self, verdict: Verdict) -> bool:
        """False if it accepts drafts that are not in flight, as only a faulty node says."""
        num_drafts, kept = len(self.in_flight_drafts or ()), verdict.kept_tree_nodes
        return verdict.accepted <= num_drafts and (not kept or max(kept) < num_drafts)

    def num_accepted_in_answer(self, verdict: Verdict) -> int:
        """How many accepted drafts become part of the answer: a tree, and a draft that is read off the text, may reach
        beyond the answer's end.
        """
        kept = verdict.kept_tree_nodes
        chain = (self.in_flight_drafts or ())[: verdict.accepted]
        return self._num_that_fit(chain if kept is None else self._kept_drafts(kept))

    def _kept_drafts(self, kept_tree_nodes: tuple[int, ...]) -> TokenIds:
        flight = self.in_flight_drafts or ()
        return tuple([flight[i] for i in kept_tree_nodes])

    def lookahead_outcome(self, verdict: Verdict, growing: Sequence[Branch]) -> LookaheadOutcome:
        """How the assumed verdicts compare with `verdict`, which is not applied yet.

        A branch is hit if it gives drafts: it has some, or is one of `growing`, to which the chip adds the next.
        """
        if not self.branches:
            return ""
        there = [branch for branch in self.branches if self._assumes(branch, verdict)]
        hit = any(b.token == verdict.next_token and (b.tokens or b in growing) for b in there)
        return "hit" if hit else "position" if there else "missed"

    def _assumes(self, branch: Branch, verdict: Verdict) -> bool:
        """True if the branch assumes that these drafts are accepted."""
        if verdict.kept_tree_nodes is None:
            return branch.accepted == verdict.accepted
        path = draft_tree.first_path(self.draft_parents, len(self.in_flight_drafts or ()))
        return verdict.kept_tree_nodes == path[: branch.accepted]

    def take_adopted(self) -> None:
        """The draft becomes that of the adopted branch, if there is one."""
        if (branch := self.adopted) is None:
            return
        self.draft, self.draft_parents = branch.tokens, branch.parents
        self.scores, self.top_candidates, self.draft_probs = branch.scores, branch.top_candidates, branch.draft_probs
        self.stopped = branch.stopped

    def accept_locally(self) -> tuple[TokenIds, Origins]:
        """Commits the draft without verification: the policy keeps it local, or the cloud is not reachable. Of a tree,
        the path of first children.
        """
        origin: Origin = "offline" if self.offline else "device"
        path = tuple([self.draft[i] for i in draft_tree.first_path(self.draft_parents, len(self.draft))])
        new = self._commit(path, (origin,) * len(path))
        self.draft_cached_len = min(self.draft_cached_len, len(self.tokens))
        self.branches = []
        self._clear_draft()
        return new

    def _commit(self, tokens: TokenIds, origins: Origins) -> tuple[TokenIds, Origins]:
        n = self._num_that_fit(tokens)
        if n < len(tokens):
            tokens, origins = tokens[:n], origins[:n]
        if self.stop_text:
            self.stop_text, end = advance(self.stop_text, tokens, self.token_text)
            self.stop_string_found = end is not None
        self.tokens += tokens
        return tokens, origins

    def _num_that_fit(self, tokens: TokenIds) -> int:
        """How many of `tokens` fit into the answer: up to its limit, the first stop token, the end of a stop string."""
        n, room = len(tokens), self.max_len - len(self.tokens)
        if n > room:
            n = room
        if self.stop_tokens and not self.stop_tokens.isdisjoint(tokens):
            n = next((i + 1 for i in range(n) if tokens[i] in self.stop_tokens), n)
        if self.stop_text and (end := advance(self.stop_text, tokens[:n], self.token_text)[1]) is not None:
            n = end + 1
        return n

    def invalidate_path(self) -> None:
        """The target's caches may be gone: the next attempt resends the whole sequence, on a new path."""
        self.attempt += 1
        self.previous_path, self.target_cached_len, self.path, self.kept_tree_nodes = (
            self.path or self.previous_path,
            0,
            (),
            None,
        )
        self.may_have_stale_nodes = True


@cache
def _origins(accepted: int, last: Origin) -> Origins:
    drafts: list[Origin] = ["accepted" for _ in range(accepted)]
    return (*drafts, last)
