"""Blocks that lie apart in memory: everything that reads, writes or moves a cache gives what it gives in one piece."""

import copy

import pytest
import torch

from serving.engines.torch.engine import Engine
from serving.engines.torch.model import take_apart
from serving.messages import Exit, Forward, Generate, Rows, Span, Stop

LAYERS = 4
WHOLE = Span(0, LAYERS, embed=True, head=True)


def _served(model, pool, prompts):
    """Drafts with exits and importance, then a tree, its survivors, and a check: all sessions in one batch."""
    engine = Engine(model)
    if pool is not None:
        engine.cache._pools[0, LAYERS] = pool
    exits = Exit("confidence", 0.3, 0.5)
    drafted = [
        engine.execute(Generate(str(i), 0, p, Stop(6), probes=("confidence", "importance"), exit=exits))[0]
        for i, p in enumerate(prompts)
    ]
    parents, keep = (-1, 0, 0, 1, -1, 4), (0, 2)
    trees = [Rows(str(i), 0, len(p) + 6, (*p, *d.tokens), 6, "tree", parents=parents) for i, (p, d) in enumerate(
        zip(prompts, drafted, strict=True))]  # fmt: skip
    verdicts = [engine.execute(Forward(WHOLE, tuple(trees), ("last",) * len(trees)))[0]]
    for at, kept in ((2, keep), (4, None)):
        rows = [Rows(str(i), len(p) + at, 4, p[:1] * 4, 2, "greedy", keep=kept) for i, p in enumerate(prompts)]
        verdicts.append(engine.execute(Forward(WHOLE, tuple(rows), ("last",) * len(rows)))[0])
    keys, values = engine.cache._slots["2", 0].views(0, len(prompts[2]))
    return drafted, verdicts, [keys[i] for i in range(LAYERS)], [values[i] for i in range(LAYERS)]


@pytest.mark.parametrize("variant", ["llama", "mistral"])
def test_drafts_scores_and_verdicts_are_the_same_to_the_bit(causal, scattered, variant, prompts):
    model = take_apart(copy.deepcopy(causal(variant)))
    apart, together = (_served(model, pool, prompts) for pool in (scattered(model, blocks=400), None))
    assert apart[:2] == together[:2]
    for ours, theirs in zip((*apart[2], *apart[3]), (*together[2], *together[3]), strict=True):
        assert torch.equal(ours, theirs)
