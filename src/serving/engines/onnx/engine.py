"""The device's model on onnxruntime: executes `DraftWork` as `serving.engines.torch.engine.TorchEngine` does."""

from collections.abc import Sequence
from pathlib import Path

import torch

from serving.core.scores import NO_SCORERS, Scorers
from serving.core.stop_strings import TokenText, no_token_text
from serving.engines.onnx.session import OnnxCacheManager, OnnxOutput, OnnxScorer, OnnxSequenceCache, OnnxSession
from serving.engines.torch.draft import StepOutput
from serving.engines.torch.tensor_store import TensorStore
from serving.engines.whole_model import WholeModelDrafter
from serving.hardware.latency import ForwardLoad
from serving.learned.mlp import sigmoid
from serving.messages import DraftBatchOutcome, DraftOutcome, ForwardWork, Work


class OnnxEngine(WholeModelDrafter[OnnxSequenceCache]):
    """Drafts with an exported graph; every session has its own cache.

    Args:
        folder: written by the stage `device_graph`.
        tensor_store: shared by all engines of a process; default: its own.
        vocab_size: how many rows of the head are real tokens; the rest is padding, never chosen. Default: all.
        scorers: trained scores, by name. Those that were exported with the model run as graphs.
        threads: of onnxruntime.
        token_text: the tokenizer's, for drafts that a stop string ends.

    Raises ValueError for a vocabulary larger than the model's, or a folder without an export.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tensor_store: TensorStore | None = None,
        vocab_size: int | None = None,
        scorers: Scorers = NO_SCORERS,
        threads: int = 1,
        token_text: TokenText = no_token_text,
    ) -> None:
        self._session = OnnxSession(folder, threads)
        self.header = header = self._session.header
        if vocab_size is not None and not 0 < vocab_size <= header.vocab_size:
            raise ValueError(f"vocabulary is {vocab_size}; the head of {folder} has {header.vocab_size} rows")
        self.cache = OnnxCacheManager(self._session.empty_cache())
        self._vocab_size = vocab_size or header.vocab_size
        exported = [name for name, each in scorers.items() if header.scorer_digests.get(name) == each.digest]
        self._scores_of_graph = [name for name in exported if name in header.scores_of_graph]
        graphs = {name: OnnxScorer(folder, name, scorers[name].digest, threads) for name in exported}
        store = TensorStore() if tensor_store is None else tensor_store
        super().__init__("a graph of onnxruntime", header.layers, store, {**scorers, **graphs}, token_text)

    @torch.inference_mode()
    def execute(self, work: Work) -> tuple[DraftOutcome | DraftBatchOutcome, tuple[ForwardLoad, ...]]:
        """As `draft`. Raises TypeError for a `ForwardWork`."""
        if isinstance(work, ForwardWork):
            raise TypeError("a device's model on onnxruntime runs whole: it drafts, and has no spans of layers to run")
        return self.draft(work)

    def drop(self, session: str, first: int | None) -> None:
        """Frees the drafter's cache, and the drafts' distributions."""
        if first is None:
            self.cache.drop(session)
        self.tensor_store.discard_owner(f"odds/{session}")

    def move(self, session: str, to: str) -> None:
        """The cache of `session` becomes that of `to`."""
        self.cache.move(session, to)
        self.tensor_store.discard_owner(f"odds/{session}")

    def copy(self, session: str, to: str, length: int) -> None:  # noqa: ARG002
        """Raises TypeError: a plan refuses `policy/kv_cache=shared` where the cloud drafts on this engine."""
        raise TypeError("a draft model on onnxruntime copies no caches between sessions; choose policy/kv_cache=reuse")

    def _open(self, session: str, start: int) -> OnnxSequenceCache:
        return self.cache.open(session, start)

    def _feed(self, cache: OnnxSequenceCache, tokens: Sequence[int]) -> None:
        cache.update(self._session.run(tokens, (), cache.keys_values()).present)

    def _step(self, cache: OnnxSequenceCache, tokens: Sequence[int]) -> StepOutput:
        output = self._session.run(tokens, (len(tokens) - 1,), cache.keys_values())
        cache.update(output.present)
        return self._step_output(output)

    def _peek(self, cache: OnnxSequenceCache, tokens: Sequence[int]) -> StepOutput:
        return self._step_output(self._session.run(tokens, (len(tokens) - 1,), cache.keys_values()))

    def _step_output(self, output: OnnxOutput) -> StepOutput:
        given_scores = {name: sigmoid(float(output.score_logits[name][0])) for name in self._scores_of_graph}
        logits = torch.from_numpy(output.logits)[:, : self._vocab_size]
        return StepOutput(logits, torch.from_numpy(output.hidden_states), 1.0, given_scores)
