"""One model on one chip: executes the work that nodes start."""

import torch

from serving.core.scores import UNTRAINED, Scorers
from serving.engines.torch.draft import generate
from serving.engines.torch.draft_heads import Proposer
from serving.engines.torch.forward import Means, forward
from serving.engines.torch.model import Model
from serving.engines.torch.model_runner import Stack
from serving.engines.torch.sequence_cache import Cache
from serving.engines.torch.tensor_store import Blobs
from serving.hardware.latency import Load
from serving.hardware.payload_size import Number
from serving.messages import Forward, Generate, Outcome


class Engine:
    """Drafts, verifies and runs spans of layers; every session has its own caches, told apart by what uses them.

    Args:
        model: from `open_model`.
        blobs: the store shared by all engines of a process; its own where absent.
        vocabulary: how many rows of the head are real tokens; the rest is padding and never written. All where absent.
        probed: the layers whose attention gives "importance"; all where absent.
        scorers: trained scores, by name.
        block_tokens: tokens of a block of the KV cache; the node's ledger must count in the same.
        budget_tokens: the KV cache holds no more, over all sessions and spans; None: what memory holds.
        number: in which numbers hidden states leave.
        heads: what proposes trees of drafts beside verdicts; None: nobody asks for them.

    Raises ValueError for a vocabulary larger than the model's, or a probed layer that it does not have.
    """

    def __init__(
        self,
        model: Model,
        *,
        blobs: Blobs | None = None,
        vocabulary: int | None = None,
        probed: frozenset[int] | None = None,
        scorers: Scorers = UNTRAINED,
        block_tokens: int = 16,
        budget_tokens: float | None = None,
        number: Number = "fp16",
        heads: Proposer | None = None,
    ) -> None:
        depth = len(model.layers)
        if vocabulary is not None and not 0 < vocabulary <= model.vocabulary:
            raise ValueError(f"vocabulary is {vocabulary}; the head of {model.name} has {model.vocabulary} rows")
        if probed is not None and not (probed and probed <= frozenset(range(depth))):
            raise ValueError(f"probed layers are {sorted(probed)}; {model.name} has layers 0 to {depth - 1}")
        self.model = model
        self.blobs = Blobs() if blobs is None else blobs
        self.cache = self._new_cache(block_tokens, budget_tokens)
        self._scorers = scorers
        self._stack = self._new_stack(vocabulary or model.vocabulary)
        self._means = Means(self._stack, self.cache, self.blobs, number, heads)
        self._probed = frozenset(range(depth)) if probed is None else probed

    def _new_cache(self, block_tokens: int, budget_tokens: float | None) -> Cache:
        return Cache(self.model, block_tokens, budget_tokens)

    def _new_stack(self, vocabulary: int) -> Stack:
        return Stack(self.model, vocabulary)

    @torch.inference_mode()
    def execute(self, work: Generate | Forward) -> tuple[Outcome, tuple[Load, ...]]:
        """Runs the work; beside the outcome, what each forward pass did.

        Raises ValueError for work that says too little, CacheHoleError for work that begins behind the end of a
        cache, CacheFullError beyond the budget.
        """
        if isinstance(work, Forward):
            return forward(work, self._means)
        slot = self.cache.open(work.session, None, len(self.model.layers), work.start)
        return generate(work, self._stack, slot, self.blobs, self._probed, self._scorers)

    def drop(self, session: str, first: int | None) -> None:
        """Frees the cache of the span from layer `first`, or the drafter's (None), and what was drawn from."""
        self.cache.drop(session, first)
        self.blobs.forget(f"odds/{session}")
