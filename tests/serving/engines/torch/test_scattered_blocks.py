"""Scattered blocks of the KV pool give the same results as contiguous ones."""

import copy

import pytest
import torch

from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.messages import DraftStopRule, DraftWork, EarlyExitRule, ForwardWork, SequenceSlice, Span

LAYERS = 4
WHOLE = Span(0, LAYERS, embedding=True, lm_head=True)


def _served(model, pool, prompts):
    """Drafts with exits and importance, then a tree, its survivors, and a check: all sessions in one batch."""
    engine = TorchEngine(model)
    if pool is not None:
        engine.cache._pools[0, LAYERS] = pool
    exits = EarlyExitRule("confidence", 0.3, 0.5)
    drafted = [
        engine.execute(
            DraftWork(str(i), 0, p, DraftStopRule(6), requested_scores=("confidence", "importance"), early_exit=exits)
        )[0]
        for i, p in enumerate(prompts)
    ]
    parents, keep = (-1, 0, 0, 1, -1, 4), (0, 2)
    trees = [
        SequenceSlice(str(i), 0, len(p) + 6, (*p, *d.tokens), 6, "greedy", parents=parents)
        for i, (p, d) in enumerate(zip(prompts, drafted, strict=True))
    ]
    verdicts = [engine.execute(ForwardWork(WHOLE, tuple(trees), ("last",) * len(trees)))[0]]
    for at, kept in ((2, keep), (4, None)):
        rows = [
            SequenceSlice(str(i), len(p) + at, 4, p[:1] * 4, 2, "greedy", kept_tree_nodes=kept)
            for i, p in enumerate(prompts)
        ]
        verdicts.append(engine.execute(ForwardWork(WHOLE, tuple(rows), ("last",) * len(rows)))[0])
    keys, values = engine.cache._caches["2", 0].read_views(0, len(prompts[2]))
    return drafted, verdicts, [keys[i] for i in range(LAYERS)], [values[i] for i in range(LAYERS)]


@pytest.mark.parametrize("variant", ["llama", "mistral"])
def test_scattered_blocks_change_no_bit_of_drafts_scores_and_verdicts(causal, scattered, variant, prompts):
    model = decompose(copy.deepcopy(causal(variant)))
    apart, together = (_served(model, pool, prompts) for pool in (scattered(model, blocks=400), None))
    assert apart[:2] == together[:2]
    for ours, theirs in zip((*apart[2], *apart[3]), (*together[2], *together[3]), strict=True):
        assert torch.equal(ours, theirs)
