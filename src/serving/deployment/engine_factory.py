"""Makes the engines of a setup's models: torch, onnxruntime, llama.cpp, a remote server, several processes."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from native.machine import usable_cores
from serving.deployment.queries import UNAVAILABLE_ENGINE
from serving.engines.checkpoint_architecture import num_parameters
from serving.engines.models import Checkpoint, ModelConfig
from serving.hardware.executor import Engine
from serving.messages import Span
from serving.policy.policy import EngineRequirements

if TYPE_CHECKING:
    from serving.engines.llama_cpp.engine import LlamaCppEngine
    from serving.engines.onnx.engine import OnnxEngine
    from serving.engines.remote.engine import RemoteEngine
    from serving.engines.tokenizer import Tokenizer
    from serving.engines.torch.draft_heads import MedusaProposer
    from serving.engines.torch.engine import TorchEngine
    from serving.engines.torch.model import DecomposedModel as TorchModel
    from serving.engines.torch.tensor_store import TensorStore

MIN_PARAMETERS_OF_THREADS = 50_000_000
"""A forward of a smaller model is so short that waking a second thread takes what it saves."""


@dataclass(frozen=True)
class EngineFactory:
    """Makes engines that share a tensor store, vocabulary, requirements and tokenizer."""

    tensor_store: "TensorStore"
    vocab_size: int
    requirements: EngineRequirements
    tokenizer: "Tokenizer"

    def remote_engine(
        self, cloud: ModelConfig, tokenizer: "Tokenizer", context_tokens: int | None, wait_for_server: bool = False
    ) -> "RemoteEngine":
        """An engine whose tokens come from the cloud model's server."""
        from serving.engines.remote.opening import connect_remote

        assert cloud.server
        verifies = self.requirements.verifies_drafts
        return connect_remote(cloud.server, tokenizer, self.vocab_size, verifies, context_tokens, wait_for_server)

    def medusa_heads(self, target: "TorchModel") -> "MedusaProposer | None":
        """The Medusa heads, if the policy has them and `target` has the LM head."""
        from serving.engines.torch.draft_heads import load_medusa_heads
        from serving.engines.torch.model import MissingLayer

        medusa = self.requirements.medusa
        return (
            load_medusa_heads(target, medusa, self.vocab_size)
            if medusa and not isinstance(target.lm_head, MissingLayer)
            else None
        )

    def drafter_engine(
        self, device: Checkpoint, cloud: Checkpoint, target: "TorchModel | None", accelerator: str
    ) -> "Engine":
        """The drafting engine, if the policy has a drafter."""
        return self.drafter_engines(device, cloud, target, accelerator)()

    def drafter_engines(
        self, device: Checkpoint, cloud: Checkpoint, target: "TorchModel | None", accelerator: str
    ) -> "Callable[[], Engine]":
        """A function that makes drafting engines with texts of their own: torch on `accelerator` and llama.cpp with one
        copy of the weights, or onnxruntime on the CPU.
        """
        if not self.requirements.drafter:
            return lambda: UNAVAILABLE_ENGINE
        if device.onnx_graph:
            return partial(self._onnx_engine, device, device.onnx_graph)
        if device.gguf_file:
            return self._gguf_engines(device, scorers=self.requirements.scorers)
        model = load_drafter(device, cloud, target, accelerator)
        self._check_scorers(model)
        shared = device.adapter is not None  # with the large model: its passes have more rows
        needed = self.requirements
        return partial(self._torch_engine, model, needed.target_rows if shared else needed.drafter_rows)

    def _check_scorers(self, drafter: "TorchModel") -> None:
        for scorer in self.requirements.scorers.values():
            if scorer.feature_kind == "hidden" and scorer.num_features != drafter.hidden_size:
                raise ValueError(
                    f"{scorer!r} reads hidden states of {scorer.num_features} numbers, and those of {drafter.name} "
                    f"have {drafter.hidden_size}; train the scorer for this model, or choose the one that was"
                )

    def _onnx_engine(self, device: Checkpoint, folder: Path) -> "OnnxEngine":
        """Raises ValueError for a graph of other weights, or of a model of another shape."""
        from serving.engines.onnx import header
        from serving.engines.onnx.engine import OnnxEngine

        engine = OnnxEngine(
            folder,
            tensor_store=self.tensor_store,
            vocab_size=self.vocab_size,
            scorers=self.requirements.scorers,
            token_text=self.tokenizer.token_text,
        )
        found = engine.header.layers, engine.header.vocab_size
        exported = f"the graph at {folder} was exported from {engine.header.checkpoint_name}"
        if found != model_shape(device):
            raise ValueError(
                f"{exported} (layers, vocabulary {found}), and "
                f"the device's model is {device.display_name} ({model_shape(device)}); export again with "
                "force=[device_graph]"
            )
        if engine.header.weights_digest != header.weights_digest(device):
            raise ValueError(
                f"{exported}, whose weights are others than those of the device's model {device.display_name}; "
                "export again with force=[device_graph], or name the folder of its own graph in model.device.graph"
            )
        return engine

    def target(self, cloud: Checkpoint, accelerator: str, layers: int | None = None) -> "TorchModel":
        """The cloud's model, whole or its first `layers` layers, computing as the requirements say."""
        return _load_model(cloud, accelerator, layers, self.requirements.batch_invariant)

    def gguf_targets(self, cloud: ModelConfig) -> "Callable[[], LlamaCppEngine]":
        """A function that makes engines of the cloud's GGUF file: one copy of the weights, texts of their own."""
        return self._gguf_engines(cloud, batch_invariant=self.requirements.batch_invariant)

    def _gguf_engines(self, model: Checkpoint, **options: Any) -> "Callable[[], LlamaCppEngine]":
        """Raises ValueError for a file of another model than the checkpoint's."""
        from serving.engines.llama_cpp.context import LlamaModel
        from serving.engines.llama_cpp.engine import LlamaCppEngine

        file = model.gguf_file
        assert file is not None
        weights, shape = LlamaModel(file), model_shape(model)
        if weights.layers != shape[0] or weights.vocab_size < min(shape[1], len(self.tokenizer)):
            raise ValueError(
                f"{file} has {weights.layers} layers and {weights.vocab_size} tokens, and {model.display_name} has "
                f"{shape[0]} and {shape[1]}; give the GGUF file of this checkpoint"
            )
        return partial(
            LlamaCppEngine,
            weights,
            tensor_store=self.tensor_store,
            vocab_size=self.vocab_size,
            threads=num_threads(model),
            token_text=self.tokenizer.token_text,
            **options,
        )

    def target_engine(self, model: "TorchModel", medusa: "MedusaProposer | None" = None) -> "TorchEngine":
        """An engine of the large model, or of a part of it. Its weights can then not be read."""
        return self._torch_engine(model, self.requirements.target_rows, medusa)

    def _torch_engine(
        self, model: "TorchModel", rows: int | None, medusa: "MedusaProposer | None" = None
    ) -> "TorchEngine":
        """Packs the model's weights for passes of `rows` rows."""
        from serving.engines.torch.engine import TorchEngine
        from serving.engines.torch.packed_layers import pack_weights

        if self.requirements.packed_weights:
            pack_weights(model, rows)
        return TorchEngine(model, proposer=medusa, **self._engine_options())

    def tensor_parallel_engines(
        self, cloud: ModelConfig, accelerator: str, count: int, span: Span | None = None
    ) -> tuple[list["TorchEngine"], Callable[[], object]]:
        """`count` engines of one tensor-parallel model, and the function that stops its processes."""
        from serving.engines.tensor_parallel.engine import TPEngine
        from serving.engines.tensor_parallel.worker_group import load_tensor_parallel

        model, workers = load_tensor_parallel(
            cloud.name_or_path, cloud.tensor_parallel, dtype=cloud.dtype, accelerator=accelerator, span=span
        )
        try:
            heads = self.medusa_heads(model)
            options = self._engine_options()
            return [TPEngine(workers, i, model, proposer=heads, **options) for i in range(count)], workers.close
        except BaseException:
            workers.close()
            raise

    def _engine_options(self) -> dict[str, Any]:
        return {
            "tensor_store": self.tensor_store,
            "vocab_size": self.vocab_size,
            "scorers": self.requirements.scorers,
            "block_tokens": self.requirements.block_tokens,
            "hidden_dtype": self.requirements.hidden_dtype,
            "token_text": self.tokenizer.token_text,
            "cuda_graphs": self.requirements.cuda_graphs,
        }


def _load_model(
    checkpoint: Checkpoint, accelerator: str, layers: int | None = None, batch_invariant: bool = False
) -> "TorchModel":
    """The whole model, or its first `layers` layers."""
    from serving.engines.torch.model import load_model

    return load_model(
        checkpoint.name_or_path, dtype=checkpoint.dtype, device=accelerator, quantization=checkpoint.quantization,
        num_layers=layers, batch_invariant=batch_invariant,
    )  # fmt: skip


def num_threads(checkpoint: Checkpoint) -> int:
    """CPU threads that compute it: those of its configuration; a stage's checkpoint, which has none, is computed on all
    cores of this process if it has `MIN_PARAMETERS_OF_THREADS` or more, else on one.
    """
    if isinstance(checkpoint, ModelConfig):
        return checkpoint.threads
    parameters = num_parameters(checkpoint.path) if checkpoint.path else None
    return _available_threads() if parameters is None or parameters >= MIN_PARAMETERS_OF_THREADS else 1


def _available_threads() -> int:
    """The cores of this process, or OMP_NUM_THREADS where it is set, as in a sweep's workers."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdigit() and int(limit) else usable_cores()


def load_drafter(device: Checkpoint, cloud: Checkpoint, target: "TorchModel | None", accelerator: str) -> "TorchModel":
    """The draft model; HAT's takes its first layers from `target` if they are the same and loaded."""
    if device.adapter is None:
        return _load_model(device, accelerator)
    from serving.engines.torch.draft_heads import load_adapter_drafter
    from serving.learned import adapter

    shallow = adapter.load(device.adapter).shallow_layers
    differs = device.name_or_path != cloud.name_or_path or device.quantization != cloud.quantization
    if target is None or len(target.layers) < shallow or differs:
        target = _load_model(device, accelerator, shallow)
    return load_adapter_drafter(target, shallow, device.adapter / adapter.WEIGHTS)


def model_shape(checkpoint: Checkpoint) -> tuple[int, int]:
    """(layers, rows of the head), read from the configuration."""
    from transformers import AutoConfig

    from serving.engines.torch.model import check_loadable
    from serving.learned import adapter

    check_loadable(checkpoint.name_or_path)
    config = AutoConfig.from_pretrained(checkpoint.name_or_path)
    layers = (
        adapter.load(checkpoint.adapter).shallow_layers + 1 if checkpoint.adapter else int(config.num_hidden_layers)
    )
    return layers, int(config.vocab_size)
