"""Records a trace: plays the policy, or the target alone, then asks both models at every position of the text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.core.scores import ROUTE, SCORES, UNTRAINED
from serving.deployment.queries import Models, Query
from serving.learned.medusa import Medusa
from serving.messages import Exit
from serving.metrics.recorder import Record
from serving.outcomes import offline, store
from serving.outcomes.lookup import Lookup
from serving.outcomes.teacher_forcing import Overheard, asides
from serving.outcomes.trace import TOPS, Recorded, Tables, Trace, triangle
from serving.policy.policy import Policy
from serving.policy.slots.dispatch import RoundRobin
from serving.policy.slots.draft import NoDraft
from serving.policy.slots.early_exit import NoExit
from serving.policy.slots.kv_cache import Reuse
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.lookahead import Idle
from serving.policy.slots.offload import Handover
from serving.policy.slots.payload import Tokens
from serving.policy.slots.placement import Cloud
from serving.policy.slots.prefill import Whole
from serving.policy.slots.routed_offload import Router
from serving.policy.slots.scheduler import Continuous
from serving.policy.slots.verify import Lossless
from serving.progress import Progress, silent

if TYPE_CHECKING:
    from serving.outcomes.teacher_forcing import Continuation, Forced

TARGETS_OWN = frozenset({"accepted", "corrected", "bonus", "cloud"})
"""Origins of tokens that the target wrote or agreed to."""


def target_alone() -> Policy:
    """The target writes all of it: what every lossless policy writes, too."""
    return Policy(
        name="target alone", draft=NoDraft(), offload=Handover(), waiting=Idle(), early_exit=NoExit(),
        verify=Lossless(), prefill=Whole(), exchange=Tokens(), kv_cache=Reuse(), scheduler=Continuous(),
        placement=Cloud(), dispatch=RoundRobin(), link_loss=LinkLoss("wait"),
    )  # fmt: skip


@dataclass(frozen=True)
class TraceRecording:
    """How a trace is taken; `policy` None or lossless records the target's own text. Drafts leave layers early by the
    `rule`, whoever wrote the text.
    """

    models: Models
    policy: Policy | None
    seed: int
    depth: int
    made_from: dict[str, str]
    rule: Exit | None = None
    medusa: Medusa | None = None
    """Heads of the target, whose proposals are recorded, too."""
    router: Router | None = None
    """Whose scores of the drafts are recorded, too."""

    def take(self, queries: Sequence[Query], work: Path, progress: Progress) -> Trace:
        """The trace of all queries; a few sessions at a time, each time kept in `work`, where an interrupted recording
        goes on.
        """
        size = offline.CONCURRENT
        parts = [queries[i : i + size] for i in range(0, len(queries), size)]
        done = 0
        for i, part in enumerate(parts):
            self._shard(work / f"part-{i:05d}", part)
            done += len(part)
            progress(done, len(queries), "sessions recorded")
        return store.joined([store.load(work / f"part-{i:05d}") for i in range(len(parts))])

    def _shard(self, folder: Path, queries: Sequence[Query]) -> None:
        if folder.is_dir():
            return
        partial = folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        store.save(partial, self._part(queries))
        partial.rename(folder)

    def _part(self, queries: Sequence[Query]) -> Trace:
        lossy = self.policy if self.policy and not self.policy.lossless else None
        played = self.policy if self.policy and (self.policy.waiting.steps or not self.policy.lossless) else None
        heard, (small, large) = Overheard(self.models.device), self._forced()
        records = offline.play(played or target_alone(), replace(self.models, device=heard), queries, self.seed, silent)
        sessions, tables, first = [], list[Tables](), 0
        for query in queries:
            record, call = records[query.call.session], query.call
            path = (*call.prompt, *record.tokens)
            session = Recorded(call.session, query.prompt, path, len(call.prompt), call.limit, first)
            targets = _as_written(large.choices(path, len(call.prompt)), record)
            session, rows = self._drafts(session, small, heard.texts[call.session], call.ends)
            sessions.append(session)
            targets += [0] * len(session.asides)
            tables.append(_tables(targets, rows, self.depth, self._proposals(session, large)))
            first += session.rows
        return Trace(
            tuple(sessions), store.stacked(tables), lossy.name if lossy else None, self.seed,
            self.models.device_layers, self.models.cloud_layers, queries[0].call.ends, self.made_from, self.rule,
            self.medusa.tree if self.medusa else (), self.router.digest if self.router else "",
        )  # fmt: skip

    def _proposals(self, session: Recorded, large: "Forced") -> list[tuple[int, ...]]:
        """Per position; behind asides nobody is asked."""
        if self.medusa is None:
            return []
        from serving.engines.torch.draft_heads import open_heads

        model: Any = self.models.cloud
        heads = open_heads(model.model, self.medusa, len(self.models.tokenizer))
        found = large.proposals(session.path, session.prompt_tokens, heads)
        return found + [(0,) * len(self.medusa.tree)] * len(session.asides)

    def _drafts(
        self, session: Recorded, small: "Forced", ahead: Sequence[tuple[int, ...]], ends: tuple[int, ...]
    ) -> "tuple[Recorded, list[Continuation]]":
        """What the drafter writes behind each position, and then behind each wrong guess it drafted `ahead` on, as far
        as the policy looks; the session with those guesses.
        """
        rows = small.continuations(session.path, session.prompt_tokens, self.depth, ends)
        lookup = Lookup(_tables([0] * len(rows), rows, self.depth))
        found = asides(lookup, replace(session, first=0), ahead)
        steps = min(self.depth, self.policy.waiting.steps) if self.policy else 0
        for text in found.values():
            rows += small.continuations(text, len(text), steps, ends)
        return replace(session, asides=tuple(found)), rows

    def _forced(self) -> "tuple[Forced, Forced]":
        from serving.outcomes.teacher_forcing import Forced

        small, large = (_model(engine) for engine in (self.models.device, self.models.cloud))
        vocabulary = min(len(self.models.tokenizer), small.vocabulary, large.vocabulary)
        scorers = {ROUTE: self.router} if self.router else UNTRAINED
        return Forced(small, vocabulary, self.rule, scorers), Forced(large, vocabulary)


def _model(engine: Any) -> Any:
    return engine.model


def _as_written(targets: list[int], record: Record) -> list[int]:
    """Where the target wrote or agreed to a token, that is its choice: rows computed together may round otherwise."""
    for i, (token, origin) in enumerate(zip(record.tokens, record.origins, strict=True)):
        if origin in TARGETS_OWN:
            targets[i] = token
    return targets


def _tables(
    targets: Sequence[int], rows: "Sequence[Continuation]", depth: int, proposals: Sequence[tuple[int, ...]] = ()
) -> Tables:
    import numpy as np

    n = len(rows)
    counts = np.array([len(row.drafted.tokens) for row in rows], np.int32)
    drafts, tops = np.zeros((n, depth), np.int32), np.zeros((n, depth, TOPS), np.int32)
    scores, attention = np.zeros((len(SCORES), n, depth), np.float32), np.zeros((n, triangle(depth)), np.float32)
    depths = np.zeros((n, depth), np.uint8)
    for i, row in enumerate(rows):
        count = counts[i]
        drafts[i, :count], tops[i, :count], depths[i, :count] = row.drafted.tokens, row.drafted.tops, row.depths
        attention[i, : len(row.attention)] = row.attention
        for j, name in enumerate(SCORES):
            scores[j, i, :count] = row.drafted.scores[name]
    trees = np.array(proposals, np.int32) if proposals else np.zeros((n, 0), np.int32)
    routes = np.zeros((n, depth if any(ROUTE in row.drafted.scores for row in rows) else 0), np.float64)
    for i, row in enumerate(rows if routes.size else ()):
        routes[i, : counts[i]] = row.drafted.scores[ROUTE]
    return Tables(np.array(targets, np.int32), counts, drafts, tops, scores, depths, attention, trees, routes)
