"""The vocabulary: what nodes hear and say. Read this first.

No clock, no I/O, no tensors and no randomness: a driver owns time, transport and compute, and a tensor is known here
only by the id and the bytes of its `Blob`. Every participant is a `Node`: `handle(event, now) -> commands`.

The decorator of the vocabulary: immutable while it is being tested, cheap to make in a run.

A frozen dataclass sets each field through `object.__setattr__`, which costs three to four times what a plain one does,
and a simulated run makes some twenty messages a round. So nobody may write to a message, the type checker says so
everywhere, the tests run with it enforced (`TANDEM_FROZEN=1`), and a run trusts them. Equality and hash are the same.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal, Protocol, TypeAlias, TypeVar, dataclass_transform

T = TypeVar("T")

FROZEN = os.environ.get("TANDEM_FROZEN", "0") == "1"


@dataclass_transform(frozen_default=True)
def message(cls: type[T]) -> type[T]:
    """A slotted dataclass, by value; its fields are never written again."""
    if FROZEN:
        return dataclass(frozen=True, slots=True)(cls)
    return dataclass(slots=True, unsafe_hash=True)(cls)


INF = float("inf")

AcceptanceRule = Literal["", "greedy", "sample", "tree"]
"""How drafts are accepted; "" asks for no verdict (a part of a prefill)."""

Origin = Literal["device", "offline", "accepted", "corrected", "bonus", "cloud"]
"""Who wrote a token: the device alone (its own choice, or the cloud is gone); the device, accepted by the cloud; the
cloud in place of a rejected draft, after a fully accepted one, or without any draft.
"""

MEDUSA_TREE = "medusa"
"""A probe: the target's own heads are to propose the next tree of drafts beside each verdict."""

LookaheadOutcome = Literal["", "missed", "position", "hit"]
"""What became of a look-ahead: none was made; it prepared for another position; for the right one, but for another
token; for just this verdict.
"""


@message
class Span:
    """Layers first..last-1 of a model, with or without its embedding and its head."""

    start_layer: int
    end_layer: int
    embedding: bool = False
    lm_head: bool = False


@message
class TensorRef:
    """A tensor that stays in an executor's store; a transport moves it by id, a link charges its bytes."""

    id: str
    nbytes: int


@message
class PathStats:
    """How a route fares, as its nodes last saw it (HAT, section 3.2); they add up what they say along the way."""

    mean_batch_tokens: float
    """mu: rows of a batch, a moving average; the first node's that many devices share."""
    base_s: float
    per_token_s: float
    """g(x) = base_s + row_s x: how long a batch of x rows takes all nodes of the route together."""
    num_nodes: int
    """P, the pipeline's length: how many of them take turns."""
    uplink_mbps: float
    """Of the device whose request it was; 0: not known yet."""


@message
class SamplingParams:
    """How tokens are drawn; `seed` keys the luck of every (session, position, purpose). Absent: greedy."""

    temperature: float
    top_k: int
    top_p: float
    seed: int


@message
class SequenceSlice:
    """What one hop runs for one session: `num_tokens` rows behind a cache that is valid up to `start`."""

    session: str
    start: int
    num_tokens: int
    tokens: tuple[int, ...]
    """Ids, where the hop embeds or verifies; else empty."""
    num_drafts: int = 0
    """The last `num_drafts` rows are drafts to verify; 0 is a plain decode or a prefill."""
    rule: AcceptanceRule = ""
    sampling: SamplingParams | None = None
    parents: tuple[int, ...] | None = None
    """Trees: per draft the index of its parent among the drafts, -1 for the last committed row."""
    kept_tree_nodes: tuple[int, ...] | None = None
    """Trees: which drafts of this session's previous forward survive in the cache."""
    hidden_states: TensorRef | None = None
    """Hidden states of the rows, where they were embedded by an earlier hop."""
    draft_probs: tuple[TensorRef, ...] = ()
    """One distribution of the drafter per checked row, where sampling needs them."""
    hidden_offset: int = 0
    """How many rows of the blob come before these, where it is run in parts."""

    @property
    def nbytes(self) -> int:
        """Bytes of the payload: four a token id, and the hidden states."""
        return 4 * len(self.tokens) + (self.hidden_states.nbytes if self.hidden_states else 0)

    def narrow(self, begin: int, end: int) -> "SequenceSlice":
        """Rows a..b-1 of these; only the part with the last row keeps the question, and its drafts where the rows are
        hidden states.
        """
        if end - begin == self.num_tokens:
            return self
        last = end == self.num_tokens
        return SequenceSlice(
            session=self.session,
            start=self.start + begin,
            num_tokens=end - begin,
            tokens=self.tokens[begin:end] if not self.hidden_states else self.tokens if last else (),
            num_drafts=self.num_drafts if last else 0,
            rule=self.rule if last else "",
            sampling=self.sampling,
            parents=self.parents,
            kept_tree_nodes=self.kept_tree_nodes if begin == 0 else None,
            hidden_states=self.hidden_states,
            draft_probs=self.draft_probs if last else (),
            hidden_offset=self.hidden_offset + begin if self.hidden_states else 0,
        )


@message
class DraftStopRule:
    """When a draft ends, as data: at `max_tokens` tokens, at an end token, or at the first score below `threshold`."""

    max_tokens: int
    score: str = ""
    threshold: float = 0.0
    keep_last: bool = True
    """Is the token whose score fell below drafted (HAT, Eq. 5) or dropped (WISP, section 4.1)?"""
    min_tokens: int = 0
    """So many tokens are drafted whatever their scores; the last of them ends the draft if its own fell below."""


@message
class EarlyExitRule:
    """Layer-wise early exit: stop after a layer at which a token's score is above the threshold.

    It is asked when all layers but the last share `last_share` have run, and then before each layer that is left;
    `max_checks` times at most (0: no limit).
    """

    score: str
    threshold: float
    last_share: float
    max_checks: int = 0

    def check_layers(self, num_layers: int) -> tuple[int, ...]:
        """How many layers have run at each check, for a model of `num_layers` layers; the last layer needs none."""
        first = max(1, ceil((1.0 - self.last_share) * num_layers - 1e-9))
        return tuple(range(first, min(num_layers, first + (self.max_checks or num_layers))))


@message
class DraftWork:
    """Draft work on the small model: feed what its cache lacks, then write until the stop rule says enough."""

    session: str
    start: int
    """The small model's cache is valid up to here: truncate to it, then append."""
    input_tokens: tuple[int, ...]
    stop_rule: DraftStopRule
    stop_tokens: tuple[int, ...] = ()
    """Tokens after which there is nothing to write."""
    requested_scores: tuple[str, ...] = ()
    """Scores wanted per drafted token: confidence, margin, entropy, logit_std, importance, or a trained predictor's
    name.
    """
    sampling: SamplingParams | None = None
    early_exit: EarlyExitRule | None = None
    branches: tuple[tuple[int, ...], ...] = ()
    """Instead of one continuation: one token after each of these; leaves no cache behind."""
    num_adopted_drafts: int = 0
    """This many drafts are written already, adopted from a branch, and their importance is wanted with that of the new
    ones; the last of what is fed are they (all of them, or all but the last where nothing is to be written).
    """
    full_draft_probs: bool = False
    """Are the distributions of the drafts wanted in full, whatever verification needs of them?"""


@message
class ForwardWork:
    """One hop for a batch of sessions."""

    span: Span
    slices: tuple[SequenceSlice, ...]
    hidden_exports: tuple[str, ...]
    """Per rows: are "all" or only the "last" (and checked) hidden states exported, where the span has no head, or none
    ("")?
    """
    requested_outputs: tuple[str, ...] = ()


Work: TypeAlias = DraftWork | ForwardWork


@message
class DraftOutcome:
    """What `DraftWork` yields; per branch one token where branches were asked for."""

    tokens: tuple[int, ...]
    scores: Mapping[str, tuple[float, ...]]
    top_candidates: tuple[tuple[int, ...], ...]
    """Per token the three likeliest candidates, best first."""
    stopped: bool
    """By the score, not by the cap."""
    cached_len: int
    """How long the small model's cache is now: the executor says it, nobody derives it."""
    draft_probs: tuple[TensorRef, ...] = ()
    """Per token the distribution it was drawn from, when sampling or where it is wanted in full."""
    probs_support: tuple[int, ...] = ()
    """Per distribution how many tokens it names; 0: all of the vocabulary."""
    exit_depths: tuple[float, ...] = ()
    """Per token the share of the layers that had run when it was read off; empty where no exit was asked for."""


@message
class Verdict:
    """How many drafts stand, and the token that follows them: a correction, or a bonus when all stand."""

    accepted: int
    next_token: int
    kept_tree_nodes: tuple[int, ...] | None = None
    """Trees: the surviving drafts in path order."""
    next_tree: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Heads that draft: (tokens, parents) of the next tree."""


@message
class SliceOutcome:
    """What one `Rows` of a `ForwardWork` yields."""

    verdict: Verdict | None
    hidden_states: TensorRef | None


Outcome: TypeAlias = DraftOutcome | tuple[SliceOutcome, ...]


@message
class Hop:
    """One stop of a route: a node or a tier (whose node is chosen on arrival), its span, and what it exports."""

    node: str
    span: Span
    hidden_export: str = "last"


@message
class Request:
    """Rows on their way along a route; `attempt` names an attempt, all parts of which live and die together."""

    attempt: int
    slice: SequenceSlice
    hops: tuple[Hop, ...]
    hop_index: int
    path: tuple[str, ...]
    """Nodes bound so far: they hold the caches."""
    reply_to: str
    budget: int = 1
    """Tokens the route may write before it asks again: more than one makes the last hop loop to the first."""
    slack_s: float = INF
    """How long after its arrival its answer may leave without breaking a promise (WISP, Eq. 6); no clock is shared."""
    expected_tokens: float = 1.0
    """Tokens expected from this request (WISP, Eq. 5, and the one that the target adds)."""
    requested_outputs: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    slo_tokens_per_s: float = 0.0
    """Tokens a second that were promised, for those that the route writes by itself; 0: none."""
    upstream_s: float = 0.0
    """How long earlier hops had it."""
    sent_s: float | None = None
    """When its sender sent it, by that one's clock; None: nobody asked."""
    path_stats: PathStats | None = None


@message
class Reply:
    """A verdict; `committed_len` is how many tokens were agreed before it, so that a stream with a hole is noticed."""

    session: str
    attempt: int
    committed_len: int
    verdict: Verdict
    path: tuple[str, ...]
    remaining_budget: int
    """Tokens still to come in this round."""
    path_latency_s: float = 0.0
    """How long the route had it: the rest of a round trip is the network's."""
    path_stats: PathStats | None = None


@message
class CacheMiss:
    """A cache on the route is shorter than `start`, or a node of it is gone: send everything again."""

    session: str
    attempt: int
    node: str


@message
class Release:
    """The session is over: its caches may go."""

    session: str


@message
class LoadReport:
    """What a node of a tier says of itself to those who choose among its peers."""

    node: str
    queued_s: float
    """How long it will compute for what it has promised."""
    per_token_s: float
    """For one more row of a pass."""
    pass_s: float
    """For a pass, with its first row."""
    free_tokens: float
    """Cache tokens that are promised to nobody."""


HEADER_NBYTES = 16
"""The fixed part of a message: session, round, lengths. What a transport adds is the link's overhead."""
REPLY_NBYTES = HEADER_NBYTES + 4
"""With the one token that a verdict brings."""

Message: TypeAlias = Request | Reply | CacheMiss | Release | LoadReport


def message_nbytes(message: Message) -> int:
    """Of a message as it arrives; who sends one adds what its exchange says."""
    if isinstance(message, Request):
        return HEADER_NBYTES + message.slice.nbytes
    return REPLY_NBYTES if isinstance(message, Reply) else HEADER_NBYTES


@message
class RoutingOptions:
    """A user's own wish for one call, where the policy routes tokens."""

    threshold: float | None = None
    """In place of the policy's, with the same meaning; None: the policy's."""
    small_only: bool = False
    """Nothing is routed: the device writes all of it."""
    large_only: bool = False
    """All of it is routed, because who asks has decided already."""


@message
class GenerationRequest:
    """A user's question to a device: what opens a session."""

    session: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    """Tokens to write at most."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens after which there is nothing to write."""
    sampling: SamplingParams | None = None
    slo_tokens_per_s: float = 0.0
    """Tokens a second that the user was promised; 0: no promise."""
    slo_ttft_s: float = INF
    keep_cache: bool = False
    """May another call of this session follow, whose prompt goes on from here? Then caches stay until it is cancelled.
    """
    seed: int | None = None
    """Of the device's own decisions about this session; None: of its sampling, or else the device's."""
    routing: RoutingOptions | None = None


@message
class RequestArrived:
    """A call reaches its device."""

    request: GenerationRequest


@message
class WorkFinished:
    """Work that was started is done."""

    job: int
    outcome: Outcome


@message
class WorkFailed:
    """Work that was started raised an error: it has no outcome, and what it touched is not to be relied on."""

    job: int


@message
class MessageReceived:
    message: Message


@message
class TimerFired:
    timer: int


@message
class PeerLost:
    """A peer cannot be reached any more."""

    peer: str


@message
class PeerRestored:
    """A lost peer is back; its caches may be gone."""

    peer: str


@message
class SessionCancelled:
    """The user of a session left."""

    session: str


Event: TypeAlias = (
    RequestArrived
    | WorkFinished
    | WorkFailed
    | MessageReceived
    | TimerFired
    | PeerLost
    | PeerRestored
    | SessionCancelled
)


@message
class StartWork:
    """Run this on my chip; the outcome comes back as `WorkFinished` with the same job. Work is never cancelled."""

    job: int
    work: Work


@message
class SendMessage:
    to: str
    message: Message
    nbytes: int


@message
class SetTimer:
    due_s: float
    timer: int


@message
class DropCache:
    """A session's cache on my chip may go: of the span that begins at layer `start_layer`, or the drafter's (None)."""

    session: str
    start_layer: int | None


@message
class EmitTokens:
    """Tokens that the user sees now; `ending` says how the session ended, "" while it goes on."""

    session: str
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    ending: Literal["", "complete", "cancelled", "failed"] = ""


@message
class DraftDecision:
    """What was decided of a draft: it was judged (`accepted` of it stand), or kept unasked (`accepted` is None)."""

    session: str
    position: int
    tokens: tuple[int, ...]
    scores: Mapping[str, tuple[float, ...]]
    accepted: int | None
    lookahead_outcome: LookaheadOutcome = ""


Command: TypeAlias = StartWork | SendMessage | SetTimer | DropCache | EmitTokens | DraftDecision


class Node(Protocol):
    """A participant without I/O, clock or randomness of its own."""

    def handle(self, event: Event, now: float) -> Sequence[Command]: ...
