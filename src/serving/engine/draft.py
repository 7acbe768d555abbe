"""Draft work: one session's continuation on the small model, token by token, with the scores that stop rules read."""

from dataclasses import replace

import torch

from serving.engine.blobs import Blobs
from serving.engine.cache import Slot
from serving.engine.importance import Importance
from serving.engine.sampling import as_sent, distribution, draw
from serving.engine.stack import Lot, Stack
from serving.engine.statistics import check_scores, measure
from serving.latency import Load, load
from serving.luck import key, luck
from serving.messages import Blob, Drafted, Generate, Stop
from serving.scores import IMPORTANCE


class Chunk:
    """What one `Generate` has written so far."""

    def __init__(self, work: Generate, blobs: Blobs) -> None:
        self.work, self._blobs = work, blobs
        self.probes = tuple(name for name in work.probes if name != IMPORTANCE)
        self._names = tuple(dict.fromkeys((*self.probes, *((work.stop.score,) if work.stop.score else ()))))
        check_scores(self._names)
        self.tokens: list[int] = []
        self.tops: list[tuple[int, ...]] = []
        self.scores: dict[str, list[float]] = {name: [] for name in self.probes}
        self.odds: list[Blob] = []
        self.stopped = False

    def write(self, logits: torch.Tensor, position: int) -> bool:
        """Chooses the token at `position` from logits of shape (1, vocabulary); is there more to write?"""
        stop, found = self.work.stop, measure(logits, self._names)
        self.stopped = bool(stop.score) and found.scores[stop.score][0] < stop.below
        if self.stopped and not stop.keep:
            return False
        token = self._choose(logits, found.tokens[0], position)
        self.tokens.append(token)
        self.tops.append(tuple(found.tops[0]))
        for name, values in self.scores.items():
            values.append(found.scores[name][0])
        return not self.stopped and token not in self.work.ends

    def _choose(self, logits: torch.Tensor, likeliest: int, position: int) -> int:
        sampling = self.work.sampling
        if sampling is None:
            return likeliest
        sent = as_sent(distribution(logits[0], sampling)).cpu()
        self.odds.append(self._blobs.put(sent, f"odds/{self.work.session}", sent.nbytes))
        return draw(sent, luck(key(sampling.seed, self.work.session), position, "draft"))

    def drafted(self, cached: int, importance: tuple[float, ...] | None) -> Drafted:
        scores = {name: tuple(values) for name, values in self.scores.items()}
        if importance is not None:
            scores[IMPORTANCE] = importance
        return Drafted(tuple(self.tokens), scores, tuple(self.tops), self.stopped, cached, tuple(self.odds))


def generate(
    work: Generate, stack: Stack, slot: Slot, blobs: Blobs, probed: frozenset[int]
) -> tuple[Drafted, tuple[Load, ...]]:
    """Feeds what the cache lacks, then writes up to the stop rule; the last token written is not fed back.

    Scores and tops describe the model's own distribution, before temperature, top-k and top-p. Branches know no stop
    rule.

    Raises ValueError for an unknown score, for early exit, and when there is nothing to feed.
    """
    if work.exit is not None:
        raise ValueError("layer-wise early exit was asked of an engine that has none; leave `exit` empty")
    importance = Importance(probed) if IMPORTANCE in work.probes else None
    if work.branches:
        return _branches(Chunk(replace(work, stop=Stop(1)), blobs), stack, slot, importance)
    return _continue(Chunk(work, blobs), stack, slot, importance)


def _continue(
    chunk: Chunk, stack: Stack, slot: Slot, importance: Importance | None
) -> tuple[Drafted, tuple[Load, ...]]:
    session, feed, cap = chunk.work.session, chunk.work.feed, chunk.work.stop.cap
    if cap and not feed:
        raise ValueError(f"session {session!r} asks for {cap} tokens with nothing to feed; a model needs a row")
    loads = []
    while feed:
        hidden = _pass(stack, slot, feed, importance if cap else None)
        loads.append(load(len(stack.model.layers), [(slot.length - len(feed), len(feed))], float(cap > 0)))
        more = cap > 0 and chunk.write(stack.logits(hidden[-1:]), slot.length) and len(chunk.tokens) < cap
        feed = (chunk.tokens[-1],) if more else ()
    scores = importance.chunk(len(chunk.tokens)) if importance else None
    return chunk.drafted(slot.length, scores), tuple(loads)


def _pass(stack: Stack, slot: Slot, tokens: tuple[int, ...], importance: Importance | None) -> torch.Tensor:
    if importance is not None:
        importance.choose(None)
    return stack.run(stack.embed(tokens), [Lot(slot, len(tokens))], 0, len(stack.model.layers), importance)


def _branches(
    chunk: Chunk, stack: Stack, slot: Slot, importance: Importance | None
) -> tuple[Drafted, tuple[Load, ...]]:
    """One token after each branch, all branches in one pass: a forest whose roots follow the cache."""
    work, start = chunk.work, slot.length
    if not all(work.branches):
        raise ValueError(f"session {work.session!r} asks for a branch without tokens; a model needs a row")
    tokens = [token for branch in work.branches for token in branch]
    parents, ends = _chains([len(branch) for branch in work.branches])
    rows = torch.tensor(ends, device=stack.model.device)
    if importance is not None:
        importance.choose(rows)
    hidden = stack.run(stack.embed(tokens), [Lot(slot, len(tokens), parents)], 0, len(stack.model.layers), importance)
    slot.truncate(start, work.session)
    for logits, branch in zip(stack.logits(hidden.index_select(0, rows)), work.branches, strict=True):
        chunk.write(logits[None], start + len(branch))
    scores = importance.own([start + end for end in ends]) if importance else None
    return chunk.drafted(start, scores), (load(len(stack.model.layers), [(start, len(tokens))], len(ends)),)


def _chains(lengths: list[int]) -> tuple[tuple[int, ...], list[int]]:
    """Parents of rows that form chains laid end to end, and the last row of each chain."""
    parents: list[int] = []
    ends: list[int] = []
    for length in lengths:
        at = len(parents)
        parents += [-1, *range(at, at + length - 1)]
        ends.append(at + length - 1)
    return tuple(parents), ends
