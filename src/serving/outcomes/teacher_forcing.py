"""What models would write at each position of a text that is given: teacher forcing.

Wrong guesses on which a policy drafted ahead, so that a trace of it can say what the drafter wrote there.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch

from serving.core.scores import SCORES, UNTRAINED, Scorers
from serving.engines.torch.draft import Chunk, Reading, write_on
from serving.engines.torch.draft_heads import Proposer
from serving.engines.torch.model import Model
from serving.engines.torch.model_runner import Lot, Stack
from serving.engines.torch.sequence_cache import Slot
from serving.engines.torch.tensor_store import Blobs
from serving.hardware.latency import Load
from serving.hardware.timed_executor import Engine
from serving.messages import Drafted, Exit, Forward, Generate, Outcome, Stop
from serving.outcomes.lookup import Lookup
from serving.outcomes.trace import Recorded


class Continuation(NamedTuple):
    """What the drafter writes on from one position."""

    drafted: Drafted
    depths: list[int]
    """After how many layers each token was read off."""
    attention: list[float]
    """What the row that wrote the first token pays to itself, then per fed-back token what it pays to tokens 0..i."""


class Forced:
    """One model under teacher forcing.

    Args:
        model: from `open_model`.
        vocabulary: how many rows of its head are real tokens.
        rule: where it leaves early when it drafts, if it does.
        scorers: trained scores of its drafts, beside the others.
    """

    def __init__(self, model: Model, vocabulary: int, rule: Exit | None = None, scorers: Scorers = UNTRAINED) -> None:
        self._model, self._stack, self._blobs, self._scorers = model, Stack(model, vocabulary), Blobs(0), scorers
        self._depth, self._rule, self._reading = len(model.layers), rule, Reading(self._stack, rule)

    @torch.inference_mode()
    def choices(self, path: Sequence[int], first: int, rows: int = 256) -> list[int]:
        """The greedy token after path[:p] for p = first..len(path), at most `rows` rows a pass."""
        slot, found = Slot(self._model, 0, self._depth), []
        for at in range(0, len(path), rows):
            part = path[at : at + rows]
            hidden = self._stack.run(self._stack.embed(part), [Lot(slot, len(part))], 0, self._depth)
            if at + len(part) >= first:
                hidden = hidden[max(0, first - 1 - at) :]
                found += self._stack.logits(hidden).argmax(-1).tolist()
        return found

    @torch.inference_mode()
    def seen(self, path: Sequence[int], first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the head looks at after path[:p] for p = first..len(path), and its logits."""
        slot = Slot(self._model, 0, self._depth)
        hidden = self._stack.run(self._stack.embed(path), [Lot(slot, len(path))], 0, self._depth)
        normed = self._stack.normed(hidden[first - 1 :])
        return normed, self._stack.read_off(normed)

    @torch.inference_mode()
    def proposals(self, path: Sequence[int], first: int, heads: Proposer) -> list[tuple[int, ...]]:
        """What the heads propose beside each of those choices."""
        return [heads.propose(row)[0] for row in self.seen(path, first)[0]]

    @torch.inference_mode()
    def continuations(self, path: Sequence[int], first: int, depth: int, ends: tuple[int, ...]) -> list[Continuation]:
        """The greedy continuation of path[:p], `depth` tokens deep, for p = first..len(path)."""
        slot = Slot(self._model, 0, self._depth)
        found = []
        for at in range(first, len(path) + 1):
            slot.truncate(0 if at == first else at - 1, "recorded")
            feed, probes = tuple(path[slot.length : at]), (*SCORES, *self._scorers)
            work = Generate("", slot.length, feed, Stop(depth), ends, probes, exit=self._rule)
            found.append(self._continue(work, slot))
        return found

    def _continue(self, work: Generate, slot: Slot) -> Continuation:
        """As `serving.engines.torch.draft` writes, but the attention of every pass is kept."""
        chunk, seen = Chunk(work, self._blobs, self._scorers), self._reading.importance(frozenset(range(self._depth)))
        write_on(chunk, self._reading, self._stack, slot, seen)
        drafted = chunk.drafted(slot.length, None)
        depths = [round(share * self._depth) for share in drafted.depths or (1.0,) * len(drafted.tokens)]
        return Continuation(drafted, depths, _attention(seen.passes))


def _attention(passes: Sequence[torch.Tensor]) -> list[float]:
    found: list[float] = [float(passes[0][-1, -1])]
    for i, seen in enumerate(passes[1:]):
        own: list[float] = seen[-1, -(i + 1) :].tolist()
        found += [0.0] * (i + 1 - len(own)) + own  # a sliding window shows fewer columns
    return found


Aside = tuple[int, int, int]
"""(base, length, token), see `Recorded.asides`."""


class Overheard:
    """A drafter's engine, and by session the texts behind which it drafted ahead."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cached: dict[str, list[int]] = defaultdict(list)
        self.texts: dict[str, list[tuple[int, ...]]] = defaultdict(list)

    def execute(self, work: Generate | Forward) -> tuple[Outcome, tuple[Load, ...]]:
        outcome, loads = self._engine.execute(work)
        if isinstance(work, Generate) and isinstance(outcome, Drafted):
            cached = self._cached[work.session]
            del cached[work.start :]
            self.texts[work.session] += [(*cached, *branch) for branch in work.branches]
            cached += () if work.branches else (*work.feed, *outcome.tokens)
        return outcome, loads

    def drop(self, session: str, first: int | None) -> None:
        self._engine.drop(session, first)


def asides(lookup: Lookup, session: Recorded, texts: Sequence[tuple[int, ...]]) -> dict[Aside, tuple[int, ...]]:
    """Where these texts leave what was recorded of their session, and each text up to and with the token that does."""
    found: dict[Aside, tuple[int, ...]] = {}
    for text in texts:
        place, off = lookup.left(session, (0, 0), text)
        if off is not None:
            found.setdefault((*place, text[off]), text[: off + 1])
    return found
