"""The events that nodes handle, the commands that they return, and the messages that they exchange. Read this first.

Every participant is a `Node`: `handle(event, now) -> commands`. A node does no I/O and reads no clock. A driver
(`serving.drivers`) owns time, links and compute: it delivers events and carries out commands. Tensors stay in the
executors; a message holds a `TensorRef` (an id and a size) in their place.

The life of one request:
1. `RequestArrived` opens a session on a device. `StartWork(DraftWork)` runs the draft model, `WorkFinished` brings the
   draft.
2. The device sends a `Request` to the first node of the target's hops. Each worker runs its layers for a batch of
   sessions (`StartWork(ForwardWork)`) and forwards the request to the next hop.
3. The worker with the LM head verifies the drafts and sends a `Reply` with the `Verdict` to the device, which emits the
   tokens (`EmitTokens`) and drafts on.
4. `Release` frees the session's caches on all nodes.
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
    """A slotted dataclass, compared by value, that is immutable to the type checker.

    It is frozen at run time only with TANDEM_FROZEN=1, as in the tests: a frozen dataclass takes three to four times as
    long to create, and a simulation creates some twenty messages for each verification. Equality and hash do not
    differ.
    """
    if FROZEN:
        return dataclass(frozen=True, slots=True)(cls)
    return dataclass(slots=True, unsafe_hash=True)(cls)


INF = float("inf")

TokenIds: TypeAlias = tuple[int, ...]

DraftParents: TypeAlias = tuple[int, ...] | None
"""The shape of a draft: for each of its tokens the index of its parent, which stands before it; -1: the last committed
token. None: a chain.
"""

AcceptanceRule = Literal["", "greedy", "sample"]
"""How the target accepts drafts; "": no verdict is wanted (all chunks of a prompt but the last)."""

Origin = Literal["device", "offline", "accepted", "cloud_accepted", "corrected", "bonus", "cloud"]
"""Where an emitted token comes from.

device          the draft model, not verified because the policy keeps it local
offline         the draft model, not verified because the cloud is not reachable
accepted        the device's draft, accepted by the target
cloud_accepted  the cloud's own draft, accepted by the target
corrected       the target, in place of the first rejected draft
bonus           the target, after all drafts were accepted
cloud           the target, without any draft
"""

MEDUSA_TREE = "medusa"
"""A requested output: the target's Medusa heads propose the next tree of drafts with each verdict."""

LookaheadOutcome = Literal["", "missed", "position", "hit"]
"""How a verdict compares with the verdicts that were assumed while it was awaited.

""        none was assumed
missed    no assumed verdict accepts as many drafts
position  one accepts as many drafts, but continues with another token
hit       one equals the verdict
"""


@message
class Span:
    """The layers start_layer .. end_layer - 1 of a model, and whether its embedding and its LM head are included."""

    start_layer: int
    end_layer: int
    embedding: bool = False
    lm_head: bool = False


@message
class TensorRef:
    """A tensor in an executor's store. A transport copies it by id; a link is charged its bytes."""

    id: str
    nbytes: int


@message
class PathStats:
    """Load and bandwidth of a path of nodes, as its nodes last measured them (HAT, section 3.2).

    A request collects them on its way: each node adds its own batch time.
    """

    mean_batch_tokens: float
    """mu: tokens of a batch on the first node, which many devices share; a moving average."""
    base_s: float
    per_token_s: float
    """g(x) = base_s + per_token_s x: seconds that all nodes of the path together take for a batch of x tokens."""
    num_nodes: int
    """P: the pipeline's length."""
    uplink_mbps: float
    """Uplink of the device that sent the request; 0: not measured yet."""


@message
class SamplingParams:
    """How tokens are drawn. `seed` keys the random number of every (session, position, purpose)."""

    temperature: float
    top_k: int
    top_p: float
    seed: int


@message
class SequenceSlice:
    """Consecutive tokens of one session that one forward pass computes: positions start .. start + num_tokens - 1.

    The session's KV cache must be valid up to `start`.
    """

    session: str
    start: int
    num_tokens: int
    tokens: TokenIds
    """The token ids for a span that embeds; only the drafts' ids for a later span that verifies; else empty."""
    num_drafts: int = 0
    """The last `num_drafts` tokens are drafts to verify; 0: a prefill or a plain decode."""
    rule: AcceptanceRule = ""
    sampling: SamplingParams | None = None
    """None: greedy."""
    parents: DraftParents = None
    """The shape of the drafts."""
    kept_tree_nodes: tuple[int, ...] | None = None
    """For a tree: which drafts of the session's previous pass were accepted, and so stay in the cache."""
    hidden_states: TensorRef | None = None
    """The tokens' hidden states, from the previous hop."""
    draft_probs: tuple[TensorRef, ...] = ()
    """The draft model's distribution for each draft, where sampling needs it. Siblings of a tree have the same."""
    hidden_offset: int = 0
    """How many rows of `hidden_states` belong to earlier chunks of the same request."""

    @property
    def nbytes(self) -> int:
        """Bytes of the token ids, four each, of the hidden states, and of a tree's parents, one each."""
        hidden_nbytes = self.hidden_states.nbytes if self.hidden_states else 0
        return 4 * len(self.tokens) + hidden_nbytes + (len(self.parents) if self.parents else 0)

    @property
    def distinct_draft_probs(self) -> tuple[TensorRef, ...]:
        """The draft model's distributions, each once: siblings of a tree share one."""
        return tuple({ref.id: ref for ref in self.draft_probs}.values())

    def with_prefix(self, tokens: TokenIds) -> "SequenceSlice":
        """The same drafts at the end of `tokens`, the whole text: nothing is cached, no kept nodes of a tree either."""
        return SequenceSlice(
            session=self.session,
            start=0,
            num_tokens=len(tokens),
            tokens=tokens,
            num_drafts=self.num_drafts,
            rule=self.rule,
            sampling=self.sampling,
            parents=self.parents,
            hidden_states=self.hidden_states,
            draft_probs=self.draft_probs,
            hidden_offset=self.hidden_offset,
        )

    def narrow(self, begin: int, end: int) -> "SequenceSlice":
        """The chunk of tokens begin .. end - 1.

        Only the chunk with the last token keeps what belongs to verification: the drafts, their shape, their
        distributions and the rule.
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
            parents=self.parents if last else None,
            kept_tree_nodes=self.kept_tree_nodes if begin == 0 else None,
            hidden_states=self.hidden_states,
            draft_probs=self.draft_probs if last else (),
            hidden_offset=self.hidden_offset + begin if self.hidden_states else 0,
        )


# Work that a node starts on its chip.


@message
class TreeRule:
    """How a draft grows into a tree: level by level, where the drafter's path probability is highest (EAGLE-2, Li et
    al., 2024, section 4).
    """

    depth: int
    """Levels, each one forward of the draft model."""
    branching: int
    """Children of a node, and nodes of a level that get children."""
    shape: tuple[tuple[int, ...], ...] = ()
    """A fixed tree in place of the likeliest nodes: each node's path of ranks among its siblings (0: the likeliest)."""


@message
class DraftStopRule:
    """Ends a draft after `max_tokens` tokens, after a stop token, or at the first level below `threshold`.

    In a tree, a branch ends at such a token or score.
    """

    max_tokens: int
    score: str = ""
    threshold: float = 0.0
    keep_last: bool = True
    """True: keep the token whose score is below the threshold (HAT, Eq. 5). False: drop it (WISP, section 4.1)."""
    min_tokens: int = 0
    """This many tokens are drafted whatever their scores; the last of them ends the draft if its score is too low."""
    tree: TreeRule | None = None
    """The draft is a tree of `max_tokens` nodes; None: a chain."""
    product: bool = False
    """A chain's level at a token. True: the product of the scores up to it, the chance that all of them are right.
    False: its score.
    """

    def level(self, before: float, score: float) -> float:
        """The level at a token with this score; `before`: at the token before it, 1 at the first."""
        return before * score if self.product else score


@message
class EarlyExitRule:
    """Layer-wise early exit: a token is read off after the first checked layer at which its score is above `threshold`.

    The first check comes before the last `last_share` of the layers, then one before each remaining layer, `max_checks`
    in all (0: no limit).
    """

    score: str
    threshold: float
    last_share: float
    max_checks: int = 0

    def check_layers(self, num_layers: int) -> tuple[int, ...]:
        """How many of `num_layers` layers have run at each check. There is no check after the last layer."""
        first = max(1, ceil((1.0 - self.last_share) * num_layers - 1e-9))
        return tuple(range(first, min(num_layers, first + (self.max_checks or num_layers))))


@message
class StopText:
    """Strings that end an answer, and the end of the answer so far."""

    strings: tuple[str, ...]
    tail: str = ""
    """As many characters as the longest string has; empty before the answer's first word."""


@message
class DraftWork:
    """One job of the draft model: feed the tokens that its cache lacks, then generate until the stop rule holds."""

    session: str
    start: int
    """The cache is truncated to this length before the input tokens are appended."""
    input_tokens: TokenIds
    stop_rule: DraftStopRule
    stop_tokens: TokenIds = ()
    """Tokens that end the answer."""
    requested_scores: tuple[str, ...] = ()
    """Scores to compute for each drafted token: untrained ones (`serving.core.scores`) or a trained scorer's name."""
    sampling: SamplingParams | None = None
    early_exit: EarlyExitRule | None = None
    branches: tuple[TokenIds, ...] = ()
    """If given: generate one token after each of these continuations instead, or grow a tree after the only one, and
    keep nothing in the cache.
    """
    num_adopted_drafts: int = 0
    """Drafts adopted from a branch, whose importance is still to be computed. They are the last input tokens; the last
    of them is left out if nothing is generated.
    """
    full_draft_probs: bool = False
    """True if the outcome must hold the full distributions of the drafts, even where verification needs less."""
    stop_text: StopText | None = None
    """The token that completes one of these strings ends the draft."""

    @property
    def num_inputs(self) -> int:
        """Tokens that the first forward runs; a tree runs more in the forwards of its further levels."""
        return sum(map(len, self.branches)) if self.branches else len(self.input_tokens)


@message
class ForwardWork:
    """One forward pass of a span of the target for a batch of sessions."""

    span: Span
    slices: tuple[SequenceSlice, ...]
    hidden_exports: tuple[str, ...]
    """For each slice, which hidden states leave a span without LM head: "all", "last" (and the drafts') or ""."""
    requested_outputs: tuple[str, ...] = ()
    """Outputs beside the verdict: `MEDUSA_TREE`, or none."""
    prefixes: tuple[str, ...] = ()
    """For each slice, the session to copy the cache of its first `start` tokens from; "", or no entry: no copy."""

    @property
    def copies(self) -> "list[tuple[SequenceSlice, str]]":
        """The slices that begin with a copy, and the sessions that it is of."""
        return [(seq, source) for seq, source in zip(self.slices, self.prefixes, strict=False) if source]


@message
class DraftBatch:
    """One forward of the draft model for several sessions: each writes one token, extends its branches by one, or fills
    its cache.
    """

    works: tuple[DraftWork, ...]
    """One of each session."""

    @property
    def session(self) -> str:
        """The first session, in whose power mode the chip runs the batch."""
        return self.works[0].session


Work: TypeAlias = DraftWork | DraftBatch | ForwardWork


@message
class DraftOutcome:
    """The outcome of a `DraftWork`. With branches: one token for each branch."""

    tokens: TokenIds
    scores: Mapping[str, tuple[float, ...]]
    top_candidates: tuple[TokenIds, ...]
    """For each token, the draft model's three likeliest candidates, best first."""
    stopped: bool
    """True if a score below the stop rule's threshold ended the draft."""
    cached_len: int
    """Length of the draft model's cache now, as the executor reports it."""
    draft_probs: tuple[TensorRef, ...] = ()
    """For each token, the distribution that it was drawn from; empty where neither sampling nor the work needs it."""
    probs_support: tuple[int, ...] = ()
    """For each distribution, how many tokens it lists; 0: the whole vocabulary."""
    exit_depths: tuple[float, ...] = ()
    """For each token, the share of the layers that had run when it was read off; empty without early exit."""
    parents: DraftParents = None
    """The shape of the tokens, where -1 stands for the last input token."""


@message
class DraftBatchOutcome:
    """The outcome of a `DraftBatch`."""

    outcomes: tuple[DraftOutcome, ...]
    """In the order of its works."""


@message
class DraftTree:
    """A proposed draft: its tokens and its shape."""

    tokens: TokenIds
    parents: DraftParents

    @property
    def nbytes(self) -> int:
        """Bytes of the token ids, four each, and of the parents, one each."""
        return 4 * len(self.tokens) + len(self.parents or ())


@message
class Verdict:
    """What the target says about the drafts of one request."""

    accepted: int
    """How many drafts it accepts."""
    next_token: int
    """The token that follows them: a correction, or a bonus token if all were accepted."""
    kept_tree_nodes: tuple[int, ...] | None = None
    """For a tree: the accepted drafts, from the root on."""
    next_tree: DraftTree | None = None
    """The tree that the Medusa heads propose next."""


@message
class SliceOutcome:
    """The outcome of one slice of a `ForwardWork`."""

    verdict: Verdict | None
    hidden_states: TensorRef | None


Outcome: TypeAlias = DraftOutcome | DraftBatchOutcome | tuple[SliceOutcome, ...]


def draft_works(work: Work) -> tuple[DraftWork, ...]:
    """The draft works of one job; none for a forward of the target."""
    if isinstance(work, DraftBatch):
        return work.works
    return (work,) if isinstance(work, DraftWork) else ()


def drafts_of(work: Work, outcome: Outcome) -> tuple[tuple[DraftWork, DraftOutcome], ...]:
    """The draft works of one job, each with its outcome; none for a forward of the target."""
    if isinstance(outcome, DraftBatchOutcome):
        return tuple(zip(draft_works(work), outcome.outcomes, strict=True))
    return ((work, outcome),) if isinstance(work, DraftWork) and isinstance(outcome, DraftOutcome) else ()


# Messages between nodes.


@message
class Hop:
    """One stage of the target: where it runs, its layers, and which hidden states it exports ("all" or "last")."""

    node: str
    """A node, or a tier: a node of the tier is chosen when the request gets there."""
    span: Span
    hidden_export: str = "last"


@message
class Request:
    """Asks the nodes of a path to run one slice of a session through all `hops`."""

    attempt: int
    """Numbers the tries of a session. All chunks of one try share it; a newer attempt voids the older ones."""
    slice: SequenceSlice
    hops: tuple[Hop, ...]
    hop_index: int
    path: tuple[str, ...]
    """The node of each hop, as far as chosen. These nodes hold the session's caches."""
    reply_to: str
    budget: int = 1
    """Tokens that the target may write before it waits for the device. Above 1, the last hop sends the request back to
    the first hop for the next token.
    """
    slack_s: float = INF
    """Seconds after its arrival by which the reply must leave to keep the SLO (WISP, Eq. 6). Relative: nodes share no
    clock.
    """
    expected_tokens: float = 1.0
    """Tokens that this request is expected to yield: accepted drafts (WISP, Eq. 5) plus the target's own."""
    requested_outputs: tuple[str, ...] = ()
    stop_tokens: TokenIds = ()
    slo_tokens_per_s: float = 0.0
    """The promised token rate, for tokens that the target writes within the budget; 0: none."""
    upstream_s: float = 0.0
    """Seconds that the request has spent on earlier hops."""
    sent_s: float | None = None
    """When it was sent, by its sender's clock; None where links are not monitored."""
    path_stats: PathStats | None = None
    """Statistics of the hops so far, where links are monitored."""
    stop_text: StopText | None = None
    """The token that completes one of these strings ends the budget; given with a budget above 1 only."""


@message
class Reply:
    """The verdict on one request."""

    session: str
    attempt: int
    committed_len: int
    """Tokens of the session that were committed before this verdict. If the device has fewer, a reply was lost."""
    verdict: Verdict
    path: tuple[str, ...]
    remaining_budget: int
    """Further tokens to expect without asking again."""
    path_latency_s: float = 0.0
    """Seconds that the request spent on the path; the rest of the round trip is the network's."""
    path_stats: PathStats | None = None
    written: TokenIds = ()
    """Where the cloud drafts: the tokens that it accepted itself, before the verdict's."""
    origins: tuple[Origin, ...] = ()
    """Where the cloud drafts: the origins of all these tokens."""


@message
class CacheMiss:
    """A node cannot run a request: its cache is shorter than the request needs, or a later node is lost. The device
    resends the whole sequence.
    """

    session: str
    attempt: int
    node: str


@message
class Release:
    """The session has ended: its caches may be freed."""

    session: str


@message
class LoadReport:
    """The load of one node, sent to the nodes that choose among its tier."""

    node: str
    queued_s: float
    """Seconds of compute that it has accepted and not done."""
    per_token_s: float
    """Seconds that one more token adds to a pass."""
    pass_s: float
    """Seconds of a pass of one token."""
    free_tokens: float
    """Cache tokens that are not reserved."""


HEADER_NBYTES = 16
"""The fixed part of a message: session, attempt, lengths. A link adds its own overhead."""
REPLY_NBYTES = HEADER_NBYTES + 4
"""A reply: the header and one token. Tokens that the cloud has written before it take more, and a tree it proposes."""

Message: TypeAlias = Request | Reply | CacheMiss | Release | LoadReport


def message_nbytes(message: Message) -> int:
    """Bytes of a received message, without what the policy's `payload` slot adds on the device's uplink."""
    if isinstance(message, Request):
        return HEADER_NBYTES + message.slice.nbytes
    return reply_nbytes(message) if isinstance(message, Reply) else HEADER_NBYTES


def reply_nbytes(reply: Reply) -> int:
    """Bytes of a reply."""
    tree = reply.verdict.next_tree
    return REPLY_NBYTES + 4 * len(reply.written) + (tree.nbytes if tree else 0)


def session_of(message: Message) -> str:
    """The session that a message is about; a load report is about none."""
    if isinstance(message, Request):
        return message.slice.session
    return "" if isinstance(message, LoadReport) else message.session


# What a user asks for.


@message
class RoutingOptions:
    """One request's overrides of token routing."""

    threshold: float | None = None
    """Replaces the policy's threshold; None: the policy's own."""
    small_only: bool = False
    """True: the small model writes every token."""
    large_only: bool = False
    """True: the large model writes every token."""


@message
class GenerationRequest:
    """A user's request to a device. It opens a session, or continues one whose caches were kept."""

    session: str
    prompt: TokenIds
    max_new_tokens: int
    stop_tokens: TokenIds = ()
    """Tokens that end the answer."""
    sampling: SamplingParams | None = None
    """None: greedy."""
    slo_tokens_per_s: float = 0.0
    """The promised token rate; 0: none."""
    slo_ttft_s: float = INF
    """The promised time to first token."""
    keep_cache: bool = False
    """True: keep the caches for a later request of this session whose prompt extends this text."""
    seed: int | None = None
    """Keys the device's random decisions about this session. None: the sampling seed, else the device's."""
    routing: RoutingOptions | None = None
    stop_strings: tuple[str, ...] = ()
    """Strings that end the answer, with the token that completes one."""
    stop_tail: str = ""
    """Where the prompt ends with a part of the answer: that part's end, as in `StopText.tail`."""


# Events: what a driver tells a node.


@message
class RequestArrived:
    """A user's request has reached its device."""

    request: GenerationRequest


@message
class WorkFinished:
    """Started work is done."""

    job: int
    outcome: Outcome


@message
class WorkFailed:
    """Started work raised an error. It has no outcome, and the caches that it used are not reliable."""

    job: int


@message
class MessageReceived:
    message: Message


@message
class TimerFired:
    timer: int


LossCause: TypeAlias = Literal["node", "link"]
"""Why a peer is not reachable: it, or the connection to it, is gone; or the emulated link is out. A peer that is lost
for both causes is reachable again when both have ended."""


@message
class PeerLost:
    """A peer is not reachable."""

    peer: str
    cause: LossCause = "node"


@message
class PeerRestored:
    """A cause for which a peer was lost has ended. The peer's caches may be gone."""

    peer: str
    cause: LossCause = "node"


@message
class SessionCancelled:
    """The user has cancelled a session."""

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


# Commands: what a node tells its driver.


@message
class StartWork:
    """Run this work on the node's chip. The outcome comes back as `WorkFinished`. Work cannot be cancelled."""

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
    """Free a session's cache on the node's chip: that of the span at `start_layer`, or the draft model's (None)."""

    session: str
    start_layer: int | None


@message
class MoveCache:
    """Give the draft model's cache of an ended session to the session `to`, whose text begins alike."""

    session: str
    to: str


@message
class CopyCache:
    """Copy the first `length` tokens of an ended session's draft cache to the session `to`, which has none."""

    session: str
    to: str
    length: int


@message
class EmitTokens:
    """Show these tokens to the user. `ending` says how the session ended; "": it goes on."""

    session: str
    tokens: TokenIds
    origins: tuple[Origin, ...]
    ending: Literal["", "complete", "cancelled", "failed"] = ""


@message
class DraftDecision:
    """Reports what became of one draft. Only observers read it."""

    session: str
    position: int
    """Committed tokens before the draft."""
    tokens: TokenIds
    scores: Mapping[str, tuple[float, ...]]
    accepted: int | None
    """Drafts that the target accepted; None: the device kept the draft without verification."""
    lookahead_outcome: LookaheadOutcome = ""
    parents: DraftParents = None
    """The shape of the tokens."""
    replaced: bool = False
    """True if the target wrote in the draft's place: it was offloaded, but not sent and not judged (verify=replace)."""

    @property
    def num_judged(self) -> int:
        """Drafts that were sent and that the target judged: all of a verified draft, or none."""
        return 0 if self.accepted is None or self.replaced else len(self.tokens)


Command: TypeAlias = StartWork | SendMessage | SetTimer | DropCache | MoveCache | CopyCache | EmitTokens | DraftDecision
Commands: TypeAlias = list[Command]


class Node(Protocol):
    """A participant without I/O, clock or randomness of its own."""

    def handle(self, event: Event, now: float) -> Sequence[Command]: ...
