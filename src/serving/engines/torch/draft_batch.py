"""A batch of drafts in one packed forward of the draft model, in which each session has its own cache.

Trees take one more forward for each further level.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from serving.core.scores import IMPORTANCE, Scorers
from serving.core.stop_strings import TokenText, no_token_text
from serving.engines.draft_batch import check_draft_batch
from serving.engines.torch.draft import DraftBuilder, StepOutput, chain_parents, read_off, run_all_layers
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import KVCacheManager, SequenceCache
from serving.engines.torch.tensor_store import TensorStore
from serving.engines.torch.tree_draft import TreeBuilder, grow_levels, tree_inputs
from serving.hardware.latency import ForwardLoad, batch_load
from serving.messages import DraftBatch, DraftBatchOutcome, DraftOutcome, DraftStopRule, DraftWork


@dataclass(frozen=True)
class _Member:
    """One session's part of the batch."""

    work: DraftWork
    cache: SequenceCache
    tokens: tuple[int, ...]
    """The tokens to run."""
    parents: tuple[int, ...] | None
    """Branches form a tree: each token's parent, -1 for none. None: a chain."""
    read_at: tuple[int, ...]
    """The indices of the tokens after which a token is chosen."""
    positions: tuple[int, ...]
    """The positions of the chosen tokens."""


def generate_batch(
    batch: DraftBatch,
    runner: ModelRunner,
    caches: KVCacheManager,
    tensor_store: TensorStore,
    scorers: Scorers,
    token_text: TokenText = no_token_text,
) -> tuple[DraftBatchOutcome, tuple[ForwardLoad, ...]]:
    """Runs the inputs of all works in one forward, and chooses the next token of each; trees grow in further forwards.

    Raises ValueError for works that one forward cannot do, and for a work that drafts without input tokens.
    """
    check_draft_batch(batch)
    members = [_member(work, runner, caches) for work in batch.works]
    loads = _loads(members, len(runner.model.layers))
    steps = iter(_run(members, runner))
    found: list[DraftOutcome | TreeBuilder] = []
    for member in members:
        if member.work.stop_rule.tree:
            tree = TreeBuilder(member.work, tensor_store, scorers, member.positions[0])
            tree.add_level([next(steps)])
            found.append(tree)
        else:
            found.append(_outcome(member, steps, tensor_store, scorers, token_text))
    trees = [(one, member.cache) for one, member in zip(found, members, strict=True) if isinstance(one, TreeBuilder)]
    loads += tuple(grow_levels(trees, runner))
    return DraftBatchOutcome(tuple(map(_grown, members, found))), loads


def _grown(member: _Member, found: DraftOutcome | TreeBuilder) -> DraftOutcome:
    """The outcome; a tree leaves only the input tokens in the cache."""
    if not isinstance(found, TreeBuilder):
        return found
    member.cache.truncate(member.work.start + len(member.work.input_tokens), member.work.session)
    return found.build(member.cache.length)


def _member(work: DraftWork, runner: ModelRunner, caches: KVCacheManager) -> _Member:
    if any(name.startswith(IMPORTANCE) for name in work.requested_scores):
        raise ValueError(f"session {work.session!r} asks for importance, which a batch of drafts does not collect")
    cache = caches.open(work.session, None, len(runner.model.layers), work.start)
    if work.stop_rule.tree:
        tokens = tree_inputs(work)
        return _Member(work, cache, tokens, None, (len(tokens) - 1,), (cache.length + len(tokens),))
    if work.branches:
        if not all(work.branches):
            raise ValueError(f"session {work.session!r} asks for a branch without tokens; a model needs a token")
        parents, ends = chain_parents([len(branch) for branch in work.branches])
        tokens = tuple(token for branch in work.branches for token in branch)
        positions = tuple(cache.length + len(branch) for branch in work.branches)
        return _Member(replace(work, stop_rule=DraftStopRule(1)), cache, tokens, parents, tuple(ends), positions)
    n = len(work.input_tokens)
    if work.stop_rule.max_tokens and not n:
        raise ValueError(f"session {work.session!r} asks for a token with nothing to feed; a model needs a token")
    drafts = bool(work.stop_rule.max_tokens)
    return _Member(
        work, cache, work.input_tokens, None, (n - 1,) if drafts else (), (cache.length + n,) if drafts else ()
    )


def _loads(members: Sequence[_Member], layers: int) -> tuple[ForwardLoad, ...]:
    """The load of the forward, counted before the caches grow."""
    spans = [(member.cache.length, len(member.tokens)) for member in members if member.tokens]
    head_tokens = float(sum(len(member.read_at) for member in members))
    return (batch_load(layers, spans, head_tokens),) if spans else ()


def _run(members: Sequence[_Member], runner: ModelRunner) -> list[StepOutput]:
    """The outputs at all tokens after which one is chosen, member by member."""
    fed = [member for member in members if member.tokens]
    if not fed:
        return []
    inputs = [RunnerInput(member.cache, len(member.tokens), member.parents) for member in fed]
    hidden = run_all_layers(runner, inputs, [token for member in fed for token in member.tokens])
    rows, at = list[int](), 0
    for member in fed:
        rows += [at + index for index in member.read_at]
        at += len(member.tokens)
    return read_off(hidden[rows], runner) if rows else []


def _outcome(
    member: _Member, steps: Iterator[StepOutput], tensor_store: TensorStore, scorers: Scorers, token_text: TokenText
) -> DraftOutcome:
    """The member's outcome; branches leave nothing in the cache."""
    stop_texts = no_token_text if member.work.branches else token_text
    builder = DraftBuilder(member.work, tensor_store, scorers, stop_texts)
    for position in member.positions:
        builder.add_token(next(steps), position)
    if member.work.branches:
        member.cache.truncate(member.work.start, member.work.session)
    return builder.build(member.cache.length, None)
