"""A node's ledger and its chip's pool count the same blocks, whatever happened: the one never asks what the other has
not.
"""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.kv_accounting import KVAccounting, admit
from serving.core.queued_request import QueuedRequest
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.messages import ForwardWork, SequenceSlice, Span

WHOLE = Span(0, 1, embedding=True, lm_head=True)
CAPACITY = 100
"""Not a whole number of blocks."""
ASKS = st.lists(
    st.tuples(
        st.sampled_from("abcde"),
        st.integers(1, 30),
        st.integers(0, 5),
        st.integers(0, 9),
        st.sampled_from(("greedy", "tree", "superseded", "released")),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda asked: asked[0],
)
"""Session, new rows, drafts among them, tokens rolled back before, what becomes of it."""


class Chip:
    """A worker's book beside the engine that it stands for."""

    def __init__(self, model, block_tokens):
        self.ledger = KVAccounting(CAPACITY, True, block_tokens)
        self.engine = TorchEngine(model, block_tokens=block_tokens, budget_tokens=CAPACITY)
        self.kept = {}
        self.loose = set()
        """Sessions without a counted last verdict: the accounting may hold more than the chip."""

    def rows(self, session, n, check, back, kind):
        keep = self.kept.pop(session, None)
        length = int(self.ledger.valid_len(SequenceSlice(session, 0, 1, (), kept_tree_nodes=keep), WHOLE))
        start = length if keep is not None else max(0, length - back)
        parents = tuple(range(-1, check - 1)) if kind == "tree" else None
        tokens = tuple(3 if (start + i) % 4 == 0 else 0 for i in range(n + check))
        return SequenceSlice(
            session,
            start,
            n + check,
            tokens,
            check,
            "greedy",
            parents=parents,
            kept_tree_nodes=keep,
        )

    def batch(self, asks):
        kinds = {asked[0]: asked[-1] for asked in asks}
        for session in [s for s, kind in kinds.items() if kind == "released"]:
            self.drop(self.ledger.evict_session(session))
        items = [QueuedRequest(None, self.rows(*asked), WHOLE, 0.0, 0) for asked in asks if asked[-1] != "released"]
        picked = [
            (i, i.slice.num_tokens)
            for i in items
            if self.ledger.round_up_to_blocks(i.slice.start + i.slice.num_tokens) <= CAPACITY
        ]
        picked, gone = admit(picked, self.ledger, {i.slice.session: [i] for i, _ in picked})
        self.drop(gone)
        if picked:
            self.run([item.slice for item, _ in picked], kinds)

    def run(self, batch, kinds):
        for rows in batch:
            self.ledger.start_forward(rows, WHOLE)
        assert self.ledger.used_tokens <= CAPACITY
        results, _ = self.engine.execute(ForwardWork(WHOLE, tuple(batch), ("last",) * len(batch)))
        for rows, result in zip(batch, results, strict=True):
            verdict = result.verdict
            self.loose.discard(rows.session)
            if kinds[rows.session] == "superseded":
                self.loose.add(rows.session)
                continue
            self.kept.update({rows.session: verdict.kept_tree_nodes} if verdict.kept_tree_nodes is not None else {})
            self.ledger.finish_forward(
                rows, WHOLE, rows.num_drafts - verdict.accepted if verdict.kept_tree_nodes is None else 0
            )

    def drop(self, keys):
        for session, first in keys:
            self.engine.drop(session, first)
            self.kept.pop(session, None)
            self.loose.discard(session)

    def agrees(self):
        size, slots = self.ledger.block_tokens, self.engine.cache._caches
        for key in self.ledger.cached_lens:
            held, taken = self.ledger.allocated_tokens(key), slots[key].num_blocks * size if key in slots else 0
            assert held >= taken if key[0] in self.loose else held == taken
        assert self.ledger.used_tokens == sum(map(self.ledger.allocated_tokens, self.ledger.cached_lens))
        assert self.engine.cache.num_blocks * size <= self.ledger.used_tokens <= CAPACITY


@pytest.fixture(scope="module")
def model(causal):
    """A model that always writes token 0, so that a test decides which drafts are accepted."""
    model = decompose(copy.deepcopy(causal("llama", num_hidden_layers=1)))
    model.lm_head.weight.zero_()
    return model


@pytest.mark.parametrize("block_tokens", [1, 4, 16])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(history=st.lists(ASKS, max_size=25))
def test_kv_accounting_and_kv_pool_count_the_same_blocks(model, block_tokens, history):
    chip = Chip(model, block_tokens)
    for asks in history:
        chip.batch(asks)
        chip.agrees()
