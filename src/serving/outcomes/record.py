"""Records a trace: runs the policy, or the target alone, then both models at every position of the text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.core.importance import NUM_PLANES
from serving.core.scores import LOGIT_SCORES, NO_SCORERS, NUM_TOP_CANDIDATES, Scorers, by_name
from serving.deployment.queries import LoadedModels, Query
from serving.learned.medusa import MedusaHeads
from serving.messages import DraftStopRule, EarlyExitRule
from serving.metrics.recorder import SessionRecord
from serving.outcomes import offline
from serving.outcomes.lookup import TraceLookup
from serving.outcomes.trace import (
    NO_NODE,
    OutcomeTrace,
    RecordedSession,
    TraceTables,
    join_traces,
    load_trace,
    save_trace,
    stack_tables,
    tree_shapes,
    triangle_size,
)
from serving.policy.policy import Policy
from serving.policy.slots.dispatch import RoundRobin
from serving.policy.slots.draft import NoDraft, TreeDraft
from serving.policy.slots.early_exit import NoEarlyExit
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.lookahead import NoLookahead
from serving.policy.slots.offload import FullOffload
from serving.policy.slots.payload import TokenPayload
from serving.policy.slots.placement import CloudPlacement
from serving.policy.slots.prefill import WholePrefill
from serving.policy.slots.scheduler import ContinuousBatch
from serving.policy.slots.verify import Lossless
from serving.progress import Progress, silent

if TYPE_CHECKING:
    from serving.outcomes.teacher_forcing import Continuation, GrownTree, TeacherForcedModel

TARGET_ORIGINS = frozenset({"accepted", "cloud_accepted", "corrected", "bonus", "cloud"})
"""Origins of tokens that the target wrote or accepted."""


def target_only() -> Policy:
    """The policy whose text the target writes alone; every lossless policy writes the same."""
    return Policy(
        name="target alone",
        draft=NoDraft(),
        offload=FullOffload(),
        lookahead=NoLookahead(),
        early_exit=NoEarlyExit(),
        verify=Lossless(),
        prefill=WholePrefill(),
        payload=TokenPayload(),
        kv_cache=PrefixCaching(),
        scheduler=ContinuousBatch(),
        placement=CloudPlacement(),
        dispatch=RoundRobin(),
        link_loss=LinkLoss("wait"),
    )


def target_answers(
    models: LoadedModels, queries: Sequence[Query], seed: int, progress: Progress, kept: Path | None = None
) -> list[tuple[int, ...]]:
    """The target's own answer to each query, as token ids; `kept` as in `run_untimed`."""
    records = offline.run_untimed(target_only(), models, queries, seed, progress, kept=kept)
    return [tuple(records[query.request.session].tokens) for query in queries]


@dataclass(frozen=True)
class TraceRecorder:
    """Records traces. With `policy` None or lossless it records the target's own text, else the policy's. Drafts exit
    early by `exit_rule` in both cases.
    """

    models: LoadedModels
    policy: Policy | None
    seed: int
    max_draft_len: int
    made_from: dict[str, str]
    exit_rule: EarlyExitRule | None = None
    medusa: MedusaHeads | None = None
    """Heads of the target; their proposals are recorded, too."""
    tree: TreeDraft | None = None
    """How the drafter's trees grow; None: no trees are recorded."""
    trees_ahead: bool = False
    """True if the trees are recorded that the drafter grows while one is verified."""
    scorers: Scorers = field(default_factory=lambda: NO_SCORERS)
    """Their scores of the drafts are recorded, too; they read hidden states, which are not."""
    timed_layers: int | None = None
    """Layers of the architecture that the target is timed as: placements split it by them; None: as many as it has."""

    def record(self, queries: Sequence[Query], work: Path, progress: Progress) -> OutcomeTrace:
        """The trace of all queries. Every few sessions are saved in `work`, so that an interrupted recording can be
        resumed.
        """
        size = offline.CONCURRENT_SESSIONS
        parts = [queries[i : i + size] for i in range(0, len(queries), size)]
        for i, part in enumerate(parts):

            def told(recorded: int, before: int = i * size) -> None:
                progress(before + recorded, len(queries), "sessions recorded")

            self._record_shard(work / f"part-{i:05d}", part, told)
            told(len(part))
        return join_traces([load_trace(work / f"part-{i:05d}") for i in range(len(parts))])

    def _record_shard(self, folder: Path, queries: Sequence[Query], told: Callable[[int], None]) -> None:
        if folder.is_dir():
            return
        partial = folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        save_trace(partial, self._record_sessions(queries, told))
        partial.rename(folder)

    def _record_sessions(self, queries: Sequence[Query], told: Callable[[int], None]) -> OutcomeTrace:
        """The trace of these; `told` gets the number of sessions after each: one of a real model takes many seconds."""
        lossy = self.policy if self.policy and not self.policy.lossless else None
        from serving.outcomes.teacher_forcing import LookaheadRecorder

        device, (small, large) = LookaheadRecorder(self.models.device), self._teacher_forced()
        models, played = replace(self.models, device=device), self.policy or target_only()
        records = offline.run_untimed(played, models, queries, self.seed, silent, self.timed_layers)
        sessions, tables, first = [], list[TraceTables](), 0
        for place, query in enumerate(queries):
            if place:
                told(place)
            record, call = records[query.request.session], query.request
            path = (*call.prompt, *record.tokens)
            session = RecordedSession(call.session, query.prompt, path, len(call.prompt), call.max_new_tokens, first)
            targets = _with_written_tokens(large.greedy_tokens(path, len(call.prompt)), record)
            session, rows = self._record_drafts(session, small, device.lookahead_texts[call.session], call.stop_tokens)
            sessions.append(session)
            targets += [0] * len(session.lookahead_branches)
            proposals, trees = self._proposals(session, large), self._trees(session, small, call.stop_tokens)
            tables.append(_build_tables(targets, rows, self.max_draft_len, proposals, trees, self._tree_rule))
            first += session.num_rows
        return OutcomeTrace(
            tuple(sessions),
            stack_tables(tables),
            lossy.name if lossy else None,
            self.seed,
            self.models.device_layers,
            self.models.cloud_layers,
            queries[0].request.stop_tokens,
            self.made_from,
            self.exit_rule,
            self.medusa.tree if self.medusa else (),
            self._tree_rule,
            self.trees_ahead,
            {name: scorer.digest for name, scorer in self.scorers.items()},
        )

    def _proposals(self, session: RecordedSession, large: "TeacherForcedModel") -> list[tuple[int, ...]]:
        """The proposals at each position; zeros at lookahead branches."""
        if self.medusa is None:
            return []
        from serving.engines.torch.draft_heads import load_medusa_heads

        model: Any = self.models.cloud
        heads = load_medusa_heads(model.model, self.medusa, len(self.models.tokenizer))
        found = large.proposals(session.token_ids, session.prompt_tokens, heads)
        return found + [(0,) * len(self.medusa.tree)] * len(session.lookahead_branches)

    def _trees(
        self, session: RecordedSession, small: "TeacherForcedModel", stop_tokens: tuple[int, ...]
    ) -> "list[tuple[GrownTree, ...]]":
        """The drafter's trees at each position; none at lookahead branches."""
        if self.tree is None:
            return []
        scorers = by_name([self.tree.scorer] if self.tree.scorer else [])
        return small.trees(
            session.token_ids, session.prompt_tokens, self.tree.stop_rule, stop_tokens, scorers, self.trees_ahead
        )

    @property
    def _tree_rule(self) -> DraftStopRule | None:
        return self.tree.stop_rule if self.tree else None

    def _record_drafts(
        self,
        session: RecordedSession,
        small: "TeacherForcedModel",
        lookahead_texts: Sequence[tuple[int, ...]],
        stop_tokens: tuple[int, ...],
    ) -> "tuple[RecordedSession, list[Continuation]]":
        """The drafter's continuations after each position and after each wrong guess of `lookahead_texts`, and the
        session with these guesses. After a guess they are as long as the policy looks ahead.
        """
        rows = small.continuations(session.token_ids, session.prompt_tokens, self.max_draft_len, stop_tokens)
        lookup = TraceLookup(_build_tables([0] * len(rows), rows, self.max_draft_len))
        from serving.outcomes.teacher_forcing import lookahead_branches

        found = lookahead_branches(lookup, replace(session, first_row=0), lookahead_texts)
        steps = min(self.max_draft_len, self.policy.lookahead.max_steps) if self.policy else 0
        for text in found.values():
            rows += small.continuations(text, len(text), steps, stop_tokens)
        return replace(session, lookahead_branches=tuple(found)), rows

    def _teacher_forced(self) -> "tuple[TeacherForcedModel, TeacherForcedModel]":
        from serving.outcomes.teacher_forcing import TeacherForcedModel

        small, large = (_torch_model(engine) for engine in (self.models.device, self.models.cloud))
        vocabulary = min(len(self.models.tokenizer), small.vocab_size, large.vocab_size)
        drafter = TeacherForcedModel(small, vocabulary, self.exit_rule, self.scorers)
        return drafter, TeacherForcedModel(large, vocabulary)


def _torch_model(engine: Any) -> Any:
    return engine.model


def _with_written_tokens(targets: list[int], record: SessionRecord) -> list[int]:
    """Replaces the target's choices by the tokens that it wrote or accepted: batched rows may round differently."""
    for i, (token, origin) in enumerate(zip(record.tokens, record.origins, strict=True)):
        if origin in TARGET_ORIGINS:
            targets[i] = token
    return targets


def _build_tables(
    targets: Sequence[int],
    rows: "Sequence[Continuation]",
    max_draft_len: int,
    proposals: Sequence[tuple[int, ...]] = (),
    trees: "Sequence[tuple[GrownTree, ...]]" = (),
    tree_rule: DraftStopRule | None = None,
) -> TraceTables:
    import numpy as np

    n = len(rows)
    counts = np.array([len(row.drafted.tokens) for row in rows], np.int32)
    drafts, tops = np.zeros((n, max_draft_len), np.int32), np.zeros((n, max_draft_len, NUM_TOP_CANDIDATES), np.int32)
    attention = np.zeros((n, NUM_PLANES, triangle_size(max_draft_len)), np.float32)
    dtypes = {name: np.float32 if name in LOGIT_SCORES else np.float64 for row in rows for name in row.drafted.scores}
    scores = {name: np.zeros((n, max_draft_len), dtype) for name, dtype in dtypes.items()}
    depths = np.zeros((n, max_draft_len), np.uint8)
    for i, row in enumerate(rows):
        count = counts[i]
        drafts[i, :count], tops[i, :count], depths[i, :count] = (
            row.drafted.tokens,
            row.drafted.top_candidates,
            row.exit_layers,
        )
        attention[i, :, : len(row.attention[0])] = row.attention
        for name, column in scores.items():
            column[i, :count] = row.drafted.scores[name]
    proposed = np.array(proposals, np.int32) if proposals else np.zeros((n, 0), np.int32)
    return TraceTables(
        np.array(targets, np.int32), counts, drafts, tops, scores, depths, attention, proposed,
        *_tree_tables(n, trees, tree_rule),
    )  # fmt: skip


def _tree_tables(rows: int, trees: "Sequence[tuple[GrownTree, ...]]", rule: DraftStopRule | None) -> "tuple[Any, Any]":
    """`TraceTables.trees` and `tree_levels`."""
    import numpy as np

    shapes = tree_shapes(rows, rule)
    nodes, levels = np.full(shapes["trees"], NO_NODE, np.int32), np.zeros(shapes["tree_levels"], np.int32)
    for row, pair in enumerate(trees):
        for which, (drafted, widths) in enumerate(pair):
            if drafted.tokens:
                nodes[row, which, : len(drafted.tokens)] = np.array([drafted.tokens, drafted.parents], np.int32).T
            levels[row, which, : len(widths)] = widths
    return nodes, levels
