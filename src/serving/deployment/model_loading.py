"""Loads the models and tokenizer of a setup, and tokenizes its workload."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from serving.core.decoding import Decoding
from serving.core.scores import NO_SCORERS, Scorers
from serving.deployment.queries import UNAVAILABLE_ENGINE, LoadedModels, Query
from serving.deployment.setup import Setup
from serving.engines.models import Checkpoint, ModelConfig
from serving.hardware.executor import Engine
from serving.messages import INF, GenerationRequest, Span
from serving.policy.policy import NO_REQUIREMENTS, EngineRequirements
from serving.policy.slots.placement import DEVICE_TIER
from serving.workload.workload import Workload

if TYPE_CHECKING:
    from serving.engines.llama_cpp.engine import LlamaCppEngine
    from serving.engines.onnx.engine import OnnxEngine
    from serving.engines.remote.engine import RemoteEngine
    from serving.engines.tokenizer import Tokenizer
    from serving.engines.torch.draft_heads import MedusaProposer
    from serving.engines.torch.engine import TorchEngine
    from serving.engines.torch.model import DecomposedModel as TorchModel
    from serving.engines.torch.tensor_store import TensorStore


def load_models(
    device: Checkpoint,
    cloud: Checkpoint,
    accelerator: str = "cpu",
    requirements: EngineRequirements = NO_REQUIREMENTS,
    context_tokens: int | None = None,
    wait_for_server: bool = False,
) -> LoadedModels:
    """Both models on `accelerator` (a torch device), with one tensor store; torch gets the threads of the model that
    has more of them.

    A draft model made of the cloud model's layers shares its weights, as does the part of that model that devices run.
    Raises ValueError for a server whose context is shorter than `context_tokens` (prompt and answer). On virtual time,
    `wait_for_server` makes requests wait for the end of a cool-down.
    """
    from serving.engines.torch.tensor_store import TensorStore

    tokenizer, vocab_size = load_tokenizer(device, cloud)
    factory = _EngineFactory(TensorStore(), vocab_size, requirements, tokenizer)
    _use_threads(max(_threads(device), _threads(cloud)))
    if isinstance(cloud, ModelConfig) and cloud.server:
        remote = factory.remote_engine(cloud, tokenizer, context_tokens, wait_for_server)
        drafter = factory.drafter_engine(device, cloud, None, accelerator)
        return LoadedModels(drafter, num_layers(device), remote, num_layers(cloud), tokenizer, notes=remote.notes)
    if isinstance(cloud, ModelConfig) and cloud.tensor_parallel > 1:
        return _load_tensor_parallel(factory, device, cloud, accelerator, tokenizer)
    if isinstance(cloud, ModelConfig) and cloud.gguf_file:
        return _load_gguf_cloud(factory, device, cloud, accelerator, tokenizer)
    target = _load_model(cloud, accelerator, batch_invariant=requirements.batch_invariant)
    drafter = factory.drafter_engine(device, cloud, target, accelerator)
    layers, heads = len(target.layers), factory.medusa_heads(target)

    def new_engine() -> "TorchEngine":
        return factory.torch_engine(target, heads)

    return LoadedModels(
        drafter, num_layers(device), new_engine(), layers, tokenizer, new_engine(), new_cloud_engine=new_engine
    )


def _load_tensor_parallel(
    factory: "_EngineFactory", device: Checkpoint, cloud: ModelConfig, accelerator: str, tokenizer: "Tokenizer"
) -> LoadedModels:
    """As `load_models`. A draft model made of the cloud model's layers loads its own, since those here are sharded."""
    drafter = factory.drafter_engine(device, cloud, None, accelerator)
    (cloud_engine, device_target), close = factory.tensor_parallel_engines(cloud, accelerator, 2)
    return LoadedModels(
        drafter, num_layers(device), cloud_engine, num_layers(cloud), tokenizer, device_target, close=close
    )


def _load_gguf_cloud(
    factory: "_EngineFactory", device: Checkpoint, cloud: ModelConfig, accelerator: str, tokenizer: "Tokenizer"
) -> LoadedModels:
    """As `load_models`, with the cloud's model on llama.cpp: nodes share its weights, and each has its own texts."""
    new_engine = factory.llama_cpp_engines(cloud, batch_invariant=factory.requirements.batch_invariant)
    drafter = factory.drafter_engine(device, cloud, None, accelerator)
    return LoadedModels(
        drafter, num_layers(device), new_engine(), num_layers(cloud), tokenizer, new_cloud_engine=new_engine
    )


def load_side(
    setup: Setup,
    side: Literal["device", "cloud"],
    tensor_store: "TensorStore",
    accelerator: str = "cpu",
    context_tokens: int | None = None,
    tier: str | None = None,
) -> LoadedModels:
    """The models of one side; the other side is in another process.

    With a `tier`, only the layers that run there; else all that run in the cloud. `context_tokens`: a service's limit
    of a conversation; default: the workload's.
    """
    pair, requirements = setup.pair, setup.engine_requirements
    exact = requirements.batch_invariant
    tokenizer, vocab_size = load_tokenizer(pair.device, pair.cloud)
    small, layers = num_layers(pair.device), num_layers(pair.cloud)
    factory = _EngineFactory(tensor_store, vocab_size, requirements, tokenizer)
    _use_threads(pair.cloud.threads if side == "cloud" else pair.device.threads)
    hops = setup.policy.placement.hops(layers, pair.cloud.timed_architecture.layers)
    if side == "cloud" and pair.cloud.server:
        remote = factory.remote_engine(pair.cloud, tokenizer, context_tokens or setup.workload.context_tokens)
        return LoadedModels(UNAVAILABLE_ENGINE, small, remote, layers, tokenizer, notes=remote.notes)
    if side == "cloud":
        spans = [hop.span for hop in hops if hop.node != DEVICE_TIER and tier in (None, hop.node)]
        ends = Span(spans[0].start_layer, spans[-1].end_layer, spans[0].embedding, spans[-1].lm_head)
        if pair.cloud.tensor_parallel > 1:
            (cloud_engine,), close = factory.tensor_parallel_engines(pair.cloud, accelerator, 1, ends)
            return LoadedModels(UNAVAILABLE_ENGINE, small, cloud_engine, layers, tokenizer, close=close)
        if pair.cloud.gguf_file:
            engine = factory.llama_cpp_engines(pair.cloud, batch_invariant=exact)()
            return LoadedModels(UNAVAILABLE_ENGINE, small, engine, layers, tokenizer)
        target = _load_model(pair.cloud, accelerator, batch_invariant=exact).restricted_to(ends)
        return LoadedModels(
            UNAVAILABLE_ENGINE, small, factory.torch_engine(target, factory.medusa_heads(target)), layers, tokenizer
        )
    num_held = max(
        (hop.span.end_layer for hop in hops if hop.node == DEVICE_TIER and hop.span.start_layer < hop.span.end_layer),
        default=0,
    )
    device_part = _load_model(pair.cloud, accelerator, num_held, exact) if num_held else None
    drafter = factory.drafter_engine(pair.device, pair.cloud, device_part, accelerator)
    device_target = (
        factory.torch_engine(device_part, factory.medusa_heads(device_part)) if device_part else UNAVAILABLE_ENGINE
    )
    return LoadedModels(drafter, small, UNAVAILABLE_ENGINE, layers, tokenizer, device_target)


def load_tokenizer(device: Checkpoint, cloud: Checkpoint) -> tuple["Tokenizer", int]:
    """The pair's tokenizer, and how many of its tokens both models may write (of those whose weights are here)."""
    from serving.engines.tokenizer import Tokenizer, check_same_tokenizer

    held = [each for each in (cloud, device) if each.has_weights]
    if len(held) == 2:
        check_same_tokenizer(device.name_or_path, cloud.name_or_path)
    tokenizer = Tokenizer(held[0].name_or_path)
    return tokenizer, min(len(tokenizer), *(_model_shape(each)[1] for each in held))


def num_layers(checkpoint: Checkpoint) -> int:
    """Layers of a causal LM, without loading it; those of the timed architecture if a server holds the weights."""
    if isinstance(checkpoint, ModelConfig) and not checkpoint.has_weights:
        return checkpoint.timed_architecture.layers
    return _model_shape(checkpoint)[0]


def make_queries(
    workload: Workload, decoding: Decoding, seed: int, num_devices: int, tokenizer: "Tokenizer"
) -> list[Query]:
    """The workload's requests as tokens. Raises ValueError that names a prompt which does not fit."""
    sampling = decoding.sampling(seed)
    found = []
    for asked in workload.requests(num_devices):
        tokens = workload.encode(asked, tokenizer.hf).tokens
        rate = asked.slo.tokens_per_s if asked.slo else 0.0
        ttft_s = asked.slo.ttft_s if asked.slo and asked.slo.ttft_s else INF
        call = GenerationRequest(
            f"r{asked.index:05d}",
            tokens,
            asked.max_new_tokens,
            tokenizer.eos_token_ids,
            sampling,
            rate,
            ttft_s,
            stop_strings=asked.prompt.stop,
        )
        found.append(Query(call, asked.prompt, asked.device, asked.at_s, asked.think_s, asked.slo))
    return found


@dataclass(frozen=True)
class _EngineFactory:
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
        """The drafting engine, if the policy has a drafter: torch on `accelerator`, or onnxruntime on the CPU."""
        if not self.requirements.drafter:
            return UNAVAILABLE_ENGINE
        if device.onnx_graph:
            return self._onnx_engine(device, device.onnx_graph)
        if isinstance(device, ModelConfig) and device.gguf_file:
            return self.llama_cpp_engines(device, self.requirements.scorers)()
        model = _load_drafter(device, cloud, target, accelerator)
        self._check_scorers(model)
        return self.torch_engine(model)

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
        if found != _model_shape(device):
            raise ValueError(
                f"{exported} (layers, vocabulary {found}), and "
                f"the device's model is {device.display_name} ({_model_shape(device)}); export again with "
                "force=[device_graph]"
            )
        if engine.header.weights_digest != header.weights_digest(device):
            raise ValueError(
                f"{exported}, whose weights are others than those of the device's model {device.display_name}; "
                "export again with force=[device_graph], or name the folder of its own graph in model.device.graph"
            )
        return engine

    def llama_cpp_engines(
        self, model: ModelConfig, scorers: Scorers = NO_SCORERS, batch_invariant: bool = False
    ) -> "Callable[[], LlamaCppEngine]":
        """A function that makes engines which share the weights of the model's GGUF file.

        Raises ValueError for a file of another model than the checkpoint's.
        """
        from serving.engines.llama_cpp.context import LlamaModel
        from serving.engines.llama_cpp.engine import LlamaCppEngine

        file = model.gguf_file
        assert file is not None
        weights, shape = LlamaModel(file), _model_shape(model)
        if weights.layers != shape[0] or weights.vocab_size < min(shape[1], len(self.tokenizer)):
            raise ValueError(
                f"{file} has {weights.layers} layers and {weights.vocab_size} tokens, and {model.display_name} has "
                f"{shape[0]} and {shape[1]}; give the GGUF file of this checkpoint"
            )

        def new_engine() -> "LlamaCppEngine":
            return LlamaCppEngine(
                weights,
                tensor_store=self.tensor_store,
                vocab_size=self.vocab_size,
                scorers=scorers,
                threads=model.threads,
                token_text=self.tokenizer.token_text,
                batch_invariant=batch_invariant,
            )

        return new_engine

    def torch_engine(self, model: "TorchModel", medusa: "MedusaProposer | None" = None) -> "TorchEngine":
        from serving.engines.torch.engine import TorchEngine

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


def _threads(checkpoint: Checkpoint) -> int:
    return checkpoint.threads if isinstance(checkpoint, ModelConfig) else 1


def _use_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


def _load_drafter(device: Checkpoint, cloud: Checkpoint, target: "TorchModel | None", accelerator: str) -> "TorchModel":
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


def _model_shape(checkpoint: Checkpoint) -> tuple[int, int]:
    """(layers, rows of the head), read from the configuration."""
    from transformers import AutoConfig

    from serving.engines.torch.model import check_checkpoint
    from serving.learned import adapter

    check_checkpoint(checkpoint.name_or_path)
    config = AutoConfig.from_pretrained(checkpoint.name_or_path)
    layers = (
        adapter.load(checkpoint.adapter).shallow_layers + 1 if checkpoint.adapter else int(config.num_hidden_layers)
    )
    return layers, int(config.vocab_size)
