"""Turns shapes into engine work: work that fills the caches, and the work that is timed.

`DRAFT_GRID` has the configurations of a device, `FORWARD_GRID` those of a cloud's worker.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from serving.messages import DraftStopRule, DraftWork, ForwardWork, SequenceSlice, Span
from training.latency.grid import (
    COMPUTE_GRID,
    COMPUTE_RANDOM,
    MAX_CHUNK_TOKENS,
    MEMORY_GRID,
    MEMORY_RANDOM,
    MIXED,
    LogUniformSampler,
    SessionShape,
    WorkGrid,
    WorkShape,
)

TokenSource: TypeAlias = Callable[[int], tuple[int, ...]]
"""Returns so many random tokens."""

EngineWork: TypeAlias = DraftWork | ForwardWork

WorkBuilder: TypeAlias = Callable[[WorkShape, str, TokenSource], tuple[list[EngineWork], EngineWork]]
"""(shape, run name, token source) -> (work that fills the caches, work that is timed)."""


_PROMPTS = 25
_DRAFT_SESSION_SHARES, _INPUT_TOKENS, _DRAFT_TOKENS = (0.25, 0.5, 0.75, 1.0), (1, 2, 4), (1, 2, 4, 8)


def _prompt_grid(max_session_tokens: int) -> list[WorkShape]:
    """Prefills without drafting, up to the longest session."""
    sizes = [max(1, round(max_session_tokens * (i + 1) / _PROMPTS)) for i in range(_PROMPTS)]
    return [WorkShape(COMPUTE_GRID, "prompt", (SessionShape(0, size, 0),)) for size in sizes]


def _draft_grid(max_session_tokens: int) -> list[WorkShape]:
    """Drafts of 1 to 8 tokens, after 1 to 4 input tokens that are not cached."""
    return [
        WorkShape(
            MEMORY_GRID, "draft", (SessionShape(round(max_session_tokens * quarter) - fed - written, fed, written),)
        )
        for quarter in _DRAFT_SESSION_SHARES
        for fed in _INPUT_TOKENS
        for written in _DRAFT_TOKENS
    ]


DRAFT_GRID = WorkGrid(
    grids={COMPUTE_GRID: _prompt_grid, MEMORY_GRID: _draft_grid},
    samplers={
        COMPUTE_RANDOM: {"prompt": lambda s: (SessionShape(0, s.sample(1, s.max_session_tokens), 0),)},
        MEMORY_RANDOM: {
            "draft": lambda s: (SessionShape(s.cached_tokens(), s.sample(1, 4), s.num_drafts()),),
            "token": lambda s: (SessionShape(s.cached_tokens(), 1, 1),),
        },
        MIXED: {"first draft": lambda s: (SessionShape(0, s.sample(8, s.max_session_tokens), s.num_drafts()),)},
    },
)
"""The paper profiles no device. Its categories here are prompts, drafts, and prompts followed by a draft."""


def draft_work(shape: WorkShape, run: str, tokens: TokenSource) -> tuple[list[EngineWork], EngineWork]:
    """One session's greedy draft, without the scores that a policy may request."""
    (session,) = shape.sessions
    return _fill_cache(session.cached_tokens, run, tokens), DraftWork(
        run, session.cached_tokens, tokens(session.new_tokens), DraftStopRule(session.num_outputs)
    )


def _fill_cache(cached: int, run: str, tokens: TokenSource) -> list[EngineWork]:
    """Fills all but the last cached token, then that one, so that the cache has grown before the timed work."""
    starts = ((0, cached - 1), (cached - 1, cached))
    return [
        DraftWork(run, first, tokens(last - first), DraftStopRule(0)) for first, last in starts if last > first >= 0
    ]


_PREFILL_SPLITS = {
    "single": (1.0,),
    "split-2": (0.5, 0.5),
    "split-4": (0.25, 0.25, 0.25, 0.25),
    "varied": (0.625, 0.375),
    "varied-4": (0.5, 0.25, 0.125, 0.125),
}
_PREFILL_SHARES = (0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of the longest session, like the paper's 1,200 to 2,000 of 2,000 tokens."""
_NEW_TOKENS, _SESSION_SHARES, _BATCHES = (1, 5, 10, 20, 50, 100), (0.25, 0.5, 0.75, 1.0), (1, 4)


def _prefill_grid(max_session_tokens: int) -> list[WorkShape]:
    """Uncached batches of 60 to 100 % of the longest session, whole or split."""
    return [
        WorkShape(
            COMPUTE_GRID,
            "prefill",
            tuple(SessionShape(0, max(1, round(max_session_tokens * total * share)), 1) for share in split),
        )
        for total in _PREFILL_SHARES
        for split in _PREFILL_SPLITS.values()
    ]


def _verification_grid(max_session_tokens: int) -> list[WorkShape]:
    """The paper's 48: 1 to 100 new tokens, totals up to the longest session.

    A total below 200 has fewer new tokens, so that most of it stays cached.
    """
    return [
        WorkShape(MEMORY_GRID, "verify", (_verification_session(round(max_session_tokens * quarter), new),) * batch)
        for quarter in _SESSION_SHARES
        for new in _NEW_TOKENS
        for batch in _BATCHES
    ]


def _verification_session(total: int, new: int) -> SessionShape:
    new = max(1, min(new, round(total / 200 * new)))
    return SessionShape(total - new, new, new)


def _prefill(sampler: LogUniformSampler) -> tuple[SessionShape, ...]:
    sharing = sampler.sample(1, 4)
    return tuple(SessionShape(0, sampler.sample(8, sampler.max_session_tokens // sharing), 1) for _ in range(sharing))


def _chunk(sampler: LogUniformSampler) -> tuple[SessionShape, ...]:
    """A part of a prompt without output."""
    return (SessionShape(sampler.cached_tokens(), sampler.sample(1, MAX_CHUNK_TOKENS), 0),)


def _decode(sampler: LogUniformSampler) -> tuple[SessionShape, ...]:
    return tuple(SessionShape(sampler.cached_tokens(), 1, 1) for _ in range(sampler.num_sessions()))


def _verify(sampler: LogUniformSampler) -> tuple[SessionShape, ...]:
    """Each session sends its last settled token and its drafts; all go through the head."""
    return tuple(
        SessionShape(sampler.cached_tokens(), 1 + k, 1 + k)
        for k in (sampler.num_drafts() for _ in range(sampler.num_sessions()))
    )


FORWARD_GRID = WorkGrid(
    grids={COMPUTE_GRID: _prefill_grid, MEMORY_GRID: _verification_grid},
    samplers={
        COMPUTE_RANDOM: {"prefill": _prefill},
        MEMORY_RANDOM: {"verify": _verify, "decode": _decode, "chunk": _chunk},
        MIXED: {
            "verify and prefill": lambda s: (*_verify(s), SessionShape(0, s.sample(8, s.max_session_tokens), 1)),
            "verify and chunk": lambda s: _verify(s) + _chunk(s),
        },
    },
)
"""Prefills alone or batched, chunks, decodes, verifications, and verifications batched with uncached requests."""


def forward_work_builder(layers: int) -> WorkBuilder:
    """Batches through all `layers` layers, with greedy verdicts for sessions that have outputs."""
    span = Span(0, layers, embedding=True, lm_head=True)

    def build(shape: WorkShape, run: str, tokens: TokenSource) -> tuple[list[EngineWork], EngineWork]:
        sessions = [(f"{run}/{i}", session) for i, session in enumerate(shape.sessions)]
        slices = [
            SequenceSlice(name, cached, new, tokens(new), max(0, outputs - 1), "greedy" if outputs else "")
            for name, (cached, new, outputs) in sessions
        ]
        return [_forward_work(span, each) for each in _fill_caches(sessions, tokens) if each], _forward_work(
            span, slices
        )

    return build


def _fill_caches(
    sessions: Sequence[tuple[str, SessionShape]], tokens: TokenSource
) -> tuple[list[SequenceSlice], list[SequenceSlice]]:
    """Fills all but the last cached token, then that one: a cache grows by doubling at most once in a session, and must
    not grow during the timed work.
    """
    prompts = [
        SequenceSlice(name, 0, part.cached_tokens - 1, tokens(part.cached_tokens - 1))
        for name, part in sessions
        if part.cached_tokens > 1
    ]
    return prompts, [
        SequenceSlice(name, part.cached_tokens - 1, 1, tokens(1)) for name, part in sessions if part.cached_tokens
    ]


def _forward_work(span: Span, slices: Sequence[SequenceSlice]) -> ForwardWork:
    return ForwardWork(span, tuple(slices), ("last",) * len(slices))
