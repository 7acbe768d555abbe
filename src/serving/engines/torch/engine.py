"""The torch engine: executes draft and forward work with one model on one chip."""

import torch

from serving.core.scores import NO_SCORERS, Scorers
from serving.core.stop_strings import TokenText, no_token_text
from serving.engines.torch.cuda_graph import CudaGraphs, can_capture
from serving.engines.torch.draft import generate
from serving.engines.torch.draft_batch import generate_batch
from serving.engines.torch.draft_heads import MedusaProposer
from serving.engines.torch.draft_pool import DraftPool, DraftRun
from serving.engines.torch.forward import ForwardContext, forward
from serving.engines.torch.model import DecomposedModel
from serving.engines.torch.model_runner import ModelRunner
from serving.engines.torch.sequence_cache import KVCacheManager
from serving.engines.torch.tensor_store import TensorStore
from serving.engines.torch.tree_draft import TreeBuilder, grow_trees, tree_inputs
from serving.hardware.latency import ForwardLoad
from serving.hardware.payload_size import HiddenDtype
from serving.messages import DraftBatch, DraftWork, ForwardWork, Outcome, Work


class TorchEngine:
    """Drafts, verifies and runs spans of layers. A session has one cache per span and one for drafting.

    Args:
        model: from `load_model`.
        tensor_store: shared by all engines of a process; default: its own.
        vocab_size: how many rows of the head are real tokens; the rest is padding, never chosen. Default: all.
        importance_layers: the layers whose attention gives "importance"; default: all.
        scorers: trained scores, by name.
        block_tokens: tokens per KV cache block; the node's KV accounting must use the same.
        budget_tokens: capacity of the KV cache over all sessions and spans; None: unlimited.
        hidden_dtype: the dtype of hidden states that other hops receive.
        proposer: Medusa heads that propose the next draft tree; None: none are requested.
        token_text: the tokenizer's, for drafts that a stop string ends.
        cuda_graphs: on a GPU, passes of few tokens are replayed, where the model can be captured.

    Raises ValueError for a vocabulary larger than the model's, or an importance layer that it does not have.
    """

    def __init__(
        self,
        model: DecomposedModel,
        *,
        tensor_store: TensorStore | None = None,
        vocab_size: int | None = None,
        importance_layers: frozenset[int] | None = None,
        scorers: Scorers = NO_SCORERS,
        block_tokens: int = 16,
        budget_tokens: float | None = None,
        hidden_dtype: HiddenDtype = "fp16",
        proposer: MedusaProposer | None = None,
        token_text: TokenText = no_token_text,
        cuda_graphs: bool = True,
    ) -> None:
        depth = len(model.layers)
        if vocab_size is not None and not 0 < vocab_size <= model.vocab_size:
            raise ValueError(f"vocabulary is {vocab_size}; the head of {model.name} has {model.vocab_size} rows")
        if importance_layers is not None and not (importance_layers and importance_layers <= frozenset(range(depth))):
            raise ValueError(f"probed layers are {sorted(importance_layers)}; {model.name} has layers 0 to {depth - 1}")
        self.model = model
        self.tensor_store = TensorStore() if tensor_store is None else tensor_store
        self.cache = self._new_cache(block_tokens, budget_tokens)
        self._scorers, self._token_text = scorers, token_text
        graphs = CudaGraphs(model) if cuda_graphs and can_capture(model) else None
        self._runner = self._new_runner(vocab_size or model.vocab_size, graphs)
        self._context = ForwardContext(self._runner, self.cache, self.tensor_store, hidden_dtype, proposer)
        self._importance_layers = frozenset(range(depth)) if importance_layers is None else importance_layers
        self._drafts = DraftPool(
            self._runner, self.cache, self.tensor_store, self._importance_layers, scorers, token_text
        )

    def _new_cache(self, block_tokens: int, budget_tokens: float | None) -> KVCacheManager:
        return KVCacheManager(self.model, block_tokens, budget_tokens)

    def _new_runner(self, vocab_size: int, graphs: CudaGraphs | None) -> ModelRunner:
        return ModelRunner(self.model, vocab_size, graphs)

    @torch.inference_mode()
    def execute(self, work: Work) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        """Returns the outcome of the work, and the load of each forward pass.

        Raises ValueError for incomplete work, CacheHoleError for work that begins after the end of a cache,
        CacheFullError beyond the budget.
        """
        if isinstance(work, ForwardWork):
            return forward(work, self._context)
        if isinstance(work, DraftBatch):
            return generate_batch(work, self._runner, self.cache, self.tensor_store, self._scorers, self._token_text)
        cache = self.cache.open(work.session, None, len(self.model.layers), work.start)
        if work.stop_rule.tree:
            builder = TreeBuilder(work, self.tensor_store, self._scorers, work.start + len(tree_inputs(work)))
            (drafted,), loads = grow_trees([(builder, cache)], self._runner)
            return drafted, loads
        return generate(
            work, self._runner, cache, self.tensor_store, self._importance_layers, self._scorers, self._token_text
        )

    def begin(self, work: DraftWork) -> DraftRun | None:
        """A draft that is written together with the others that have begun; None for one that `execute` writes.

        Tokens and loads are those of `execute`, to the rounding of other shapes. Raises ValueError as it does.
        """
        return self._drafts.begin(work)

    def drop(self, session: str, first: int | None) -> None:
        """Frees the cache of the span from layer `first`, or the drafter's (None) with a draft that has begun, and the
        drafts' distributions: with the target's cache only those that another process sent, which sends them again
        after a cache miss.
        """
        if first is None:
            self._drafts.forget(session)
        self.cache.drop(session, first)
        self.tensor_store.discard_owner(f"odds/{session}", received_only=first is not None)

    def move(self, session: str, to: str) -> None:
        """The drafter's cache of `session` becomes that of `to`. Drafts of either that have begun end."""
        for each in (session, to):
            self._drafts.forget(each)
        self.cache.move(session, to)
        self.tensor_store.discard_owner(f"odds/{session}")

    @torch.inference_mode()
    def copy(self, session: str, to: str, length: int) -> None:
        """The drafter's cache of `to` becomes the first `length` tokens of that of `session`.

        Raises CacheHoleError if that is shorter, CacheFullError beyond the budget.
        """
        self.cache.copy(session, to, None, len(self.model.layers), length)
