"""Opens what a setup names: models, tokenizer, and the workload as tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from serving.core.decoding import Decoding
from serving.deployment.queries import UNAVAILABLE_ENGINE, LoadedModels, Query
from serving.deployment.setup import Setup
from serving.engines.models import Checkpoint, ModelConfig
from serving.messages import INF, GenerationRequest, Span
from serving.policy.policy import NO_REQUIREMENTS, EngineRequirements
from serving.policy.slots.placement import DEVICE_TIER
from serving.workload.workload import Workload

if TYPE_CHECKING:
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
    """Both models on `accelerator` (a torch device), sharing a store for what they exchange; one CPU thread serves.

    A draft model that is made of the large one's layers shares its weights, as does the part of the large model that a
    placement has devices run. A server in the large one's place is refused where it takes less than `context_tokens`, a
    prompt and its answer; on virtual time `wait_for_server` is true, and one that fails for a moment is waited for
    here.
    """
    from serving.engines.torch.tensor_store import TensorStore

    tokenizer, vocabulary = load_tokenizer(device, cloud)
    bench = _EngineFactory(TensorStore(), vocabulary, requirements)
    if isinstance(cloud, ModelConfig) and cloud.server:
        far = bench.remote_engine(cloud, tokenizer, context_tokens, wait_for_server)
        drafter = bench.drafter_engine(device, cloud, None, accelerator)
        return LoadedModels(drafter, num_layers(device), far, num_layers(cloud), tokenizer, notes=far.notes)
    if isinstance(cloud, ModelConfig) and cloud.tensor_parallel > 1:
        return _load_tensor_parallel(bench, device, cloud, accelerator, tokenizer)
    large = _load_model(cloud, accelerator)
    drafter = bench.drafter_engine(device, cloud, large, accelerator)
    layers, heads = len(large.layers), bench.medusa_heads(large)

    def another() -> "TorchEngine":
        return bench.torch_engine(large, heads)

    return LoadedModels(drafter, num_layers(device), another(), layers, tokenizer, another(), new_cloud_engine=another)


def _load_tensor_parallel(
    factory: "_EngineFactory", device: Checkpoint, cloud: ModelConfig, accelerator: str, tokenizer: "Tokenizer"
) -> LoadedModels:
    """A draft model that is made of the large one's layers has its own: those of a shared model are parts of them."""
    drafter = factory.drafter_engine(device, cloud, None, accelerator)
    (far, here), close = factory.tensor_parallel_engines(cloud, accelerator, 2)
    return LoadedModels(drafter, num_layers(device), far, num_layers(cloud), tokenizer, here, close=close)


def load_side(
    setup: Setup,
    side: Literal["device", "cloud"],
    tensor_store: "TensorStore",
    accelerator: str = "cpu",
    context_tokens: int | None = None,
    tier: str | None = None,
) -> LoadedModels:
    """One side's models; what the other one holds is in another process, or of a split model in another part of it.

    Of a `tier` only what runs there; absent: all that runs in the cloud. `context_tokens` are those that a service lets
    a conversation have; absent: the workload's.
    """
    pair, provision = setup.pair, setup.policy.engine_requirements
    tokenizer, vocabulary = load_tokenizer(pair.device, pair.cloud)
    small, layers = num_layers(pair.device), num_layers(pair.cloud)
    bench = _EngineFactory(tensor_store, vocabulary, provision)
    hops = setup.policy.placement.hops(layers, pair.cloud.timed_architecture.layers)
    if side == "cloud" and pair.cloud.server:
        far = bench.remote_engine(pair.cloud, tokenizer, context_tokens or setup.workload.context_tokens)
        return LoadedModels(UNAVAILABLE_ENGINE, small, far, layers, tokenizer, notes=far.notes)
    if side == "cloud":
        spans = [hop.span for hop in hops if hop.node != DEVICE_TIER and tier in (None, hop.node)]
        ends = Span(spans[0].start_layer, spans[-1].end_layer, spans[0].embedding, spans[-1].lm_head)
        if pair.cloud.tensor_parallel > 1:
            (led,), close = bench.tensor_parallel_engines(pair.cloud, accelerator, 1, ends)
            return LoadedModels(UNAVAILABLE_ENGINE, small, led, layers, tokenizer, close=close)
        held = _load_model(pair.cloud, accelerator).restricted_to(ends)
        return LoadedModels(
            UNAVAILABLE_ENGINE, small, bench.torch_engine(held, bench.medusa_heads(held)), layers, tokenizer
        )
    kept = max(
        (hop.span.end_layer for hop in hops if hop.node == DEVICE_TIER and hop.span.start_layer < hop.span.end_layer),
        default=0,
    )
    here = _load_model(pair.cloud, accelerator, kept) if kept else None
    drafts = setup.policy.draft.source == "model"
    drafter = bench.drafter_engine(pair.device, pair.cloud, here, accelerator) if drafts else UNAVAILABLE_ENGINE
    end = bench.torch_engine(here, bench.medusa_heads(here)) if here else UNAVAILABLE_ENGINE
    return LoadedModels(drafter, small, UNAVAILABLE_ENGINE, layers, tokenizer, end)


def load_tokenizer(device: Checkpoint, cloud: Checkpoint) -> tuple["Tokenizer", int]:
    """The pair's tokenizer, and how many of its tokens both models may write; the device's alone where the cloud's
    weights are elsewhere.
    """
    from serving.engines.tokenizer import Tokenizer, check_same_tokenizer

    held = [each for each in (cloud, device) if each.has_weights]
    if len(held) == 2:
        check_same_tokenizer(device.name_or_path, cloud.name_or_path)
    tokenizer = Tokenizer(held[0].name_or_path)
    return tokenizer, min(len(tokenizer), *(_model_shape(each)[1] for each in held))


def num_layers(checkpoint: Checkpoint) -> int:
    """Layers of a causal LM, without loading it; the timed one's where its weights are elsewhere."""
    if isinstance(checkpoint, ModelConfig) and not checkpoint.has_weights:
        return checkpoint.timed_architecture.layers
    return _model_shape(checkpoint)[0]


def make_queries(
    workload: Workload, decoding: Decoding, seed: int, num_devices: int, tokenizer: "Tokenizer"
) -> list[Query]:
    """The workload's requests as tokens; raises ValueError that names a prompt which does not fit."""
    sampling = decoding.sampling(seed)
    found = []
    for asked in workload.requests(num_devices):
        tokens = workload.encode(asked, tokenizer.hf).tokens
        rate = asked.slo.tokens_per_s if asked.slo else 0.0
        ttft_s = asked.slo.ttft_s if asked.slo and asked.slo.ttft_s else INF
        call = GenerationRequest(
            f"r{asked.index:05d}", tokens, asked.max_new_tokens, tokenizer.eos_token_ids, sampling, rate, ttft_s
        )
        found.append(Query(call, asked.prompt, asked.device, asked.at_s, asked.think_s, asked.slo))
    return found


@dataclass(frozen=True)
class _EngineFactory:
    """Where engines are made that belong together."""

    tensor_store: "TensorStore"
    vocab_size: int
    requirements: EngineRequirements

    def remote_engine(
        self, cloud: ModelConfig, tokenizer: "Tokenizer", context_tokens: int | None, wait_for_server: bool = False
    ) -> "RemoteEngine":
        """A server in the place of the large model's engine."""
        from serving.engines.remote.opening import connect_remote

        assert cloud.server
        verifies = self.requirements.verifies_drafts
        return connect_remote(cloud.server, tokenizer, self.vocab_size, verifies, context_tokens, wait_for_server)

    def medusa_heads(self, target: "TorchModel") -> "MedusaProposer | None":
        """What proposes drafts beside the target's own head, on whatever end has that."""
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
    ) -> "TorchEngine | OnnxEngine":
        """What drafts: of torch, or of onnxruntime, on the CPU whatever the accelerator is."""
        if device.onnx_graph:
            return self._onnx_engine(device, device.onnx_graph)
        model = _load_drafter(device, cloud, target, accelerator)
        self._check_scorers(model)
        return self.torch_engine(model)

    def _check_scorers(self, drafter: "TorchModel") -> None:
        for scorer in self.requirements.scorers.values():
            if scorer.feature_kind == "hidden" and scorer.num_features != drafter.hidden_size:
                raise ValueError(
                    f"{scorer!r} reads hidden states of {scorer.num_features} numbers, and those of {drafter.name} have "
                    f"{drafter.hidden_size}; train the router for this model, or choose the one that was"
                )

    def _onnx_engine(self, device: Checkpoint, folder: Path) -> "OnnxEngine":
        """Raises ValueError for a graph of other weights, or of a model of another shape."""
        from serving.engines.onnx import header
        from serving.engines.onnx.engine import OnnxEngine

        _use_one_thread()
        engine = OnnxEngine(
            folder, tensor_store=self.tensor_store, vocab_size=self.vocab_size, scorers=self.requirements.scorers
        )
        found = engine.header.layers, engine.header.vocab_size
        if found != _model_shape(device):
            raise ValueError(
                f"the graph at {folder} was exported from {engine.header.checkpoint_name} (layers, vocabulary {found}), and "
                f"the device's model is {device.display_name} ({_model_shape(device)}); export again with force=[device_graph]"
            )
        if engine.header.weights_digest != header.weights_digest(device):
            raise ValueError(
                f"the graph at {folder} was exported from {engine.header.checkpoint_name}, whose weights are others than "
                f"those of the device's model {device.display_name}; export again with force=[device_graph], or name the "
                "folder of its own graph in model.device.graph"
            )
        return engine

    def torch_engine(self, model: "TorchModel", medusa: "MedusaProposer | None" = None) -> "TorchEngine":
        from serving.engines.torch.engine import TorchEngine

        return TorchEngine(model, proposer=medusa, **self._engine_options())

    def tensor_parallel_engines(
        self, cloud: ModelConfig, accelerator: str, count: int, span: Span | None = None
    ) -> tuple[list["TorchEngine"], Callable[[], object]]:
        """So many engines over one model that several processes share, and what ends these processes."""
        from serving.engines.tensor_parallel.engine import TPEngine
        from serving.engines.tensor_parallel.worker_group import load_tensor_parallel

        model, team = load_tensor_parallel(
            cloud.name_or_path, cloud.tensor_parallel, dtype=cloud.dtype, accelerator=accelerator, span=span
        )
        try:
            heads = self.medusa_heads(model)
            return [TPEngine(team, i, model, proposer=heads, **self._engine_options()) for i in range(count)], team.close
        except BaseException:
            team.close()
            raise

    def _engine_options(self) -> dict[str, Any]:
        p = self.requirements
        return {
            "tensor_store": self.tensor_store, "vocab_size": self.vocab_size, "scorers": p.scorers, "block_tokens": p.block_tokens,
            "hidden_dtype": p.hidden_dtype,
        }  # fmt: skip


def _load_model(checkpoint: Checkpoint, accelerator: str, layers: int | None = None) -> "TorchModel":
    """All of it, or its first layers and its ends."""
    from serving.engines.torch.model import load_model

    _use_one_thread()
    return load_model(
        checkpoint.name_or_path, dtype=checkpoint.dtype, device=accelerator, quantization=checkpoint.quantization,
        num_layers=layers,
    )  # fmt: skip


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _load_drafter(device: Checkpoint, cloud: Checkpoint, target: "TorchModel | None", accelerator: str) -> "TorchModel":
    """The small model; one that is made of the large one's first layers takes those that are open already."""
    if device.adapter is None:
        return _load_model(device, accelerator)
    from serving.engines.torch.draft_heads import load_adapter_drafter
    from serving.learned import adapter

    shallow = adapter.load(device.adapter).shallow_layers
    other = device.name_or_path != cloud.name_or_path or device.quantization != cloud.quantization
    if target is None or len(target.layers) < shallow or other:
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
