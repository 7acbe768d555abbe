"""Draft work: one session's continuation on the small model, token by token, with the scores that stop rules read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from serving.core.keyed_random import key, luck
from serving.core.scores import IMPORTANCE, SCORES, UNTRAINED, Scorers
from serving.engines.torch.early_exit_pass import Descent
from serving.engines.torch.importance import Importance
from serving.engines.torch.logit_stats import Statistics, check_scores, measure, needed
from serving.engines.torch.model_runner import Stack
from serving.engines.torch.sampling import as_sent, distribution, draw, kept, opened
from serving.engines.torch.sequence_cache import Slot
from serving.engines.torch.tensor_store import Blobs
from serving.hardware.exit_depths import read
from serving.hardware.latency import Load
from serving.messages import Blob, Drafted, Exit, Generate, Stop


@dataclass(frozen=True, slots=True)
class Seen:
    """What a token is written from."""

    logits: torch.Tensor
    """(1, vocabulary)"""
    hidden: torch.Tensor
    """(1, hidden) behind the model's last norm: what its head looked at, `hidden_states[-1]` of `transformers`."""
    depth: float
    """The share of the layers that had run."""
    told: Mapping[str, float] = field(default_factory=dict)
    """Trained scores that came along; the others are asked of their scorers."""


class Chunk:
    """What one `Generate` has written so far."""

    def __init__(self, work: Generate, blobs: Blobs, scorers: Scorers = UNTRAINED) -> None:
        self.work, self._blobs, self._scorers = work, blobs, scorers
        self.probes = tuple(name for name in work.probes if name != IMPORTANCE)
        self._names = tuple(dict.fromkeys((*self.probes, *((work.stop.score,) if work.stop.score else ()))))
        check_scores(self._names, scorers)
        self._measured = needed(self._names, scorers)
        self.tokens: list[int] = []
        self.tops: list[tuple[int, ...]] = []
        self.scores: dict[str, list[float]] = {name: [] for name in self.probes}
        self.odds: list[Blob] = []
        self.kept: list[int] = []
        self.depths: list[float] = []
        self.stopped = False

    def write(self, seen: Seen, position: int) -> bool:
        """Chooses the token at `position`; is there more to write?"""
        stop, found = self.work.stop, measure(seen.logits, self._measured)
        scores = self._scored(found, seen)
        self.stopped = bool(stop.score) and scores[stop.score] < stop.below
        if self.stopped and not stop.keep and len(self.tokens) >= stop.least:
            return False
        token = self._choose(seen.logits, found.tokens[0], position)
        self.tokens.append(token)
        self.tops.append(tuple(found.tops[0]))
        if self.work.exit:
            self.depths.append(seen.depth)
        for name, values in self.scores.items():
            values.append(scores[name])
        return not self.stopped and token not in self.work.ends

    def _scored(self, found: Statistics, seen: Seen) -> dict[str, float]:
        scores = {name: values[0] for name, values in found.scores.items()}
        for name in self._names:
            if name in seen.told:
                scores[name] = seen.told[name]
            elif scorer := self._scorers.get(name):
                of_hidden = scorer.reads == "hidden"
                features = seen.hidden[0].float().cpu().numpy() if of_hidden else [scores[e] for e in SCORES]
                scores[name] = scorer.chance(features)
        return scores

    def _choose(self, logits: torch.Tensor, likeliest: int, position: int) -> int:
        sampling, whole = self.work.sampling, self.work.whole
        if sampling is None and not whole:
            return likeliest
        odds = distribution(logits[0], sampling) if sampling else logits[0].softmax(-1)
        sent = as_sent(odds, whole).cpu()
        self.odds.append(self._blobs.put(sent, f"odds/{self.work.session}", sent.nbytes))
        cut = sampling is not None and (sampling.top_k > 0 or sampling.top_p < 1)
        self.kept.append(kept(sent) if cut else 0)  # uncut, it grows with the vocabulary of the timed model
        if sampling is None:
            return likeliest
        return draw(opened(sent, logits.shape[-1]), luck(key(sampling.seed, self.work.session), position, "draft"))

    def drafted(self, cached: int, importance: tuple[float, ...] | None) -> Drafted:
        scores = {name: tuple(values) for name, values in self.scores.items()}
        if importance is not None:
            scores[IMPORTANCE] = importance
        return Drafted(
            tuple(self.tokens), scores, tuple(self.tops), self.stopped, cached, tuple(self.odds), tuple(self.kept),
            tuple(self.depths),
        )  # fmt: skip


class Reading:
    """Runs rows down until their tokens can be read off: after the last layer, or at an exit that is sure enough."""

    def __init__(self, stack: Stack, rule: Exit | None) -> None:
        self._stack, self._rule, self._layers = stack, rule, len(stack.model.layers)
        self.exits = rule.layers(self._layers) if rule else ()
        if rule:
            check_scores((rule.score,))

    def read(self, descent: Descent, rows: Sequence[int]) -> tuple[list[Seen], tuple[Load, ...]]:
        """What the token behind each row is written from; what all of it did.

        The pass goes on until the last of the rows is read off; each check asks the head about all of them.
        """
        found: dict[int, Seen] = {}
        vain = -1
        for layer in (*self.exits, self._layers):
            vain += 1
            normed = self._stack.normed(descent.to(layer)[list(rows)])
            logits = self._stack.read_off(normed)
            sure = self._sure(logits) if layer < self._layers else [True] * len(rows)
            for i in range(len(rows)):
                if sure[i] and i not in found:
                    found[i] = Seen(logits[i : i + 1], normed[i : i + 1], layer / self._layers)
            if len(found) == len(rows):
                break
        return [found[i] for i in range(len(rows))], read(descent.leave(), len(rows), vain)

    def importance(self, probed: frozenset[int]) -> Importance:
        """Of the probed layers that always run, so that it depends on the text and not on who left where."""
        always = range(self.exits[0] if self.exits else self._layers)
        return Importance(probed & frozenset(always) or frozenset(always[-1:]))

    def _sure(self, logits: torch.Tensor) -> list[bool]:
        rule = self._rule
        return [value > rule.above for value in measure(logits, (rule.score,)).scores[rule.score]] if rule else []


def generate(
    work: Generate, stack: Stack, slot: Slot, blobs: Blobs, probed: frozenset[int], scorers: Scorers
) -> tuple[Drafted, tuple[Load, ...]]:
    """Feeds what the cache lacks, then writes up to the stop rule; the last token written is not fed back.

    Scores and tops describe the model's own distribution, before temperature, top-k and top-p. Branches know no stop
    rule and no importance, which is seen from later rows. With exits, importance is that of the layers that always run.

    Raises ValueError for an unknown score, and when there is nothing to feed.
    """
    reading = Reading(stack, work.exit)
    if work.branches:
        return _branches(Chunk(replace(work, stop=Stop(1)), blobs, scorers), reading, stack, slot)
    importance = reading.importance(probed) if IMPORTANCE in work.probes else None
    chunk = Chunk(work, blobs, scorers)
    if not work.stop.cap:
        loads = _fill(work, stack, slot, importance if work.again else None)
    else:
        loads = write_on(chunk, reading, stack, slot, importance)
    return chunk.drafted(slot.length, importance.chunk(work.again, len(chunk.tokens)) if importance else None), loads


def _fill(work: Generate, stack: Stack, slot: Slot, importance: Importance | None) -> tuple[Load, ...]:
    """Nothing is written: the cache is filled, and the importance of drafts that were written before is seen."""
    if not work.feed:
        return ()
    if importance:
        importance.choose(max(1, work.again - 1))
    descent = Descent(stack, slot, work.feed, importance=importance)
    descent.to(len(stack.model.layers))
    return descent.leave()


def write_on(
    chunk: Chunk, reading: Reading, stack: Stack, slot: Slot, importance: Importance | None
) -> tuple[Load, ...]:
    """Writes the chunk, token by token; what the passes did. Raises ValueError when there is nothing to feed."""
    work, feed, loads = chunk.work, chunk.work.feed, list[Load]()
    if not feed:
        raise ValueError(
            f"session {work.session!r} asks for {work.stop.cap} tokens with nothing to feed; a model needs a row"
        )
    while feed:
        if importance:
            importance.choose(1 if loads else max(1, work.again))
        (seen,), done = reading.read(Descent(stack, slot, feed, importance=importance), [-1])
        loads += done
        more = chunk.write(seen, slot.length) and len(chunk.tokens) < work.stop.cap
        feed = (chunk.tokens[-1],) if more else ()
    return tuple(loads)


def _branches(chunk: Chunk, reading: Reading, stack: Stack, slot: Slot) -> tuple[Drafted, tuple[Load, ...]]:
    """One token after each branch, all branches in one pass: a forest whose roots follow the cache."""
    work, start = chunk.work, slot.length
    if not all(work.branches):
        raise ValueError(f"session {work.session!r} asks for a branch without tokens; a model needs a row")
    tokens = [token for branch in work.branches for token in branch]
    parents, ends = _chains([len(branch) for branch in work.branches])
    found, loads = reading.read(Descent(stack, slot, tokens, parents), ends)
    slot.truncate(start, work.session)
    for seen, branch in zip(found, work.branches, strict=True):
        chunk.write(seen, start + len(branch))
    return chunk.drafted(start, None), loads


def _chains(lengths: list[int]) -> tuple[tuple[int, ...], list[int]]:
    """Parents of rows that form chains laid end to end, and the last row of each chain."""
    parents: list[int] = []
    ends: list[int] = []
    for length in lengths:
        at = len(parents)
        parents += [-1, *range(at, at + length - 1)]
        ends.append(at + length - 1)
    return tuple(parents), ends
