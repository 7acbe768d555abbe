"""Loads the models and tokenizer of a setup, and tokenizes its workload."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from serving.core.decoding import Decoding
from serving.deployment.engine_factory import EngineFactory, model_shape, num_threads
from serving.deployment.queries import UNAVAILABLE_ENGINE, LoadedModels, Query
from serving.deployment.setup import Setup
from serving.engines.models import Checkpoint, ModelConfig
from serving.hardware.executor import Engine
from serving.messages import Hop, Span
from serving.policy.policy import NO_REQUIREMENTS, EngineRequirements
from serving.policy.slots.placement import DEVICE_TIER
from serving.workload.workload import Workload

if TYPE_CHECKING:
    from serving.engines.remote.engine import RemoteEngine
    from serving.engines.tokenizer import Tokenizer
    from serving.engines.torch.model import DecomposedModel
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
    factory = EngineFactory(TensorStore(), vocab_size, requirements, tokenizer)
    _use_threads(max(num_threads(device), num_threads(cloud)))
    if isinstance(cloud, ModelConfig) and cloud.server:
        remote = factory.remote_engine(cloud, tokenizer, context_tokens, wait_for_server)
        return _load_beside_server(factory, device, cloud, remote, accelerator, tokenizer)
    if isinstance(cloud, ModelConfig) and cloud.tensor_parallel > 1:
        return _load_tensor_parallel(factory, device, cloud, accelerator, tokenizer)
    if isinstance(cloud, ModelConfig) and cloud.gguf_file:
        return _load_gguf_cloud(factory, device, cloud, accelerator, tokenizer)
    target = factory.target(cloud, accelerator)
    new_drafter = factory.drafter_engines(device, cloud, target, accelerator)
    new_engine = partial(factory.target_engine, target, factory.medusa_heads(target))
    return LoadedModels(
        new_drafter(),
        num_layers(device),
        new_engine(),
        len(target.layers),
        tokenizer,
        new_engine(),
        new_cloud_engine=new_engine,
        new_device_engine=new_drafter,
    )


def _load_beside_server(
    factory: EngineFactory,
    device: Checkpoint,
    cloud: ModelConfig,
    remote: "RemoteEngine",
    accelerator: str,
    tokenizer: "Tokenizer",
) -> LoadedModels:
    """As `load_models`, where a server holds the cloud's model."""
    new_drafter = factory.drafter_engines(device, cloud, None, accelerator)
    return LoadedModels(
        new_drafter(),
        num_layers(device),
        remote,
        num_layers(cloud),
        tokenizer,
        notes=remote.notes,
        stop=remote.stop,
        close=remote.close,
        new_device_engine=new_drafter,
    )


def _load_tensor_parallel(
    factory: EngineFactory, device: Checkpoint, cloud: ModelConfig, accelerator: str, tokenizer: "Tokenizer"
) -> LoadedModels:
    """As `load_models`. A draft model made of the cloud model's layers loads its own, since those here are sharded."""
    new_drafter = factory.drafter_engines(device, cloud, None, accelerator)
    (cloud_engine, device_target), close = factory.tensor_parallel_engines(cloud, accelerator, 2)
    return LoadedModels(
        new_drafter(),
        num_layers(device),
        cloud_engine,
        num_layers(cloud),
        tokenizer,
        device_target,
        close=close,
        new_device_engine=new_drafter,
    )


def _load_gguf_cloud(
    factory: EngineFactory, device: Checkpoint, cloud: ModelConfig, accelerator: str, tokenizer: "Tokenizer"
) -> LoadedModels:
    """As `load_models`, with the cloud's model on llama.cpp: nodes share its weights, and each has its own texts."""
    new_engine = factory.gguf_targets(cloud)
    new_drafter = factory.drafter_engines(device, cloud, None, accelerator)
    return LoadedModels(
        new_drafter(),
        num_layers(device),
        new_engine(),
        num_layers(cloud),
        tokenizer,
        new_cloud_engine=new_engine,
        new_device_engine=new_drafter,
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
    pair, policy = setup.models, setup.policy
    drafts_here = policy.drafts_in_cloud if side == "cloud" else policy.drafts_on_device
    requirements = replace(setup.engine_requirements, drafter=drafts_here)
    tokenizer, vocab_size = load_tokenizer(pair.device, pair.cloud)
    factory = EngineFactory(tensor_store, vocab_size, requirements, tokenizer)
    _use_threads(pair.cloud.threads if side == "cloud" else pair.device.threads)
    if side == "device":
        return _load_device_side(factory, setup, accelerator, tokenizer)
    if pair.cloud.server:
        remote = factory.remote_engine(pair.cloud, tokenizer, context_tokens or setup.workload.context_tokens)
        return _load_beside_server(factory, pair.device, pair.cloud, remote, accelerator, tokenizer)
    return _load_cloud_side(factory, setup, accelerator, tokenizer, tier)


def _load_device_side(factory: EngineFactory, setup: Setup, accelerator: str, tokenizer: "Tokenizer") -> LoadedModels:
    """The draft model, and the first layers of the large one where a placement puts some on devices."""
    pair = setup.models
    held = [hop.span for hop in _hops(setup) if hop.node == DEVICE_TIER and hop.span.start_layer < hop.span.end_layer]
    part = factory.target(pair.cloud, accelerator, max(span.end_layer for span in held)) if held else None
    return LoadedModels(
        factory.drafter_engine(pair.device, pair.cloud, part, accelerator),
        num_layers(pair.device),
        UNAVAILABLE_ENGINE,
        num_layers(pair.cloud),
        tokenizer,
        factory.target_engine(part, factory.medusa_heads(part)) if part else UNAVAILABLE_ENGINE,
        hidden_size=hidden_size(pair.cloud),
    )


def _load_cloud_side(
    factory: EngineFactory, setup: Setup, accelerator: str, tokenizer: "Tokenizer", tier: str | None
) -> LoadedModels:
    """The layers of the large model that run on `tier`, or in the cloud, and a draft model where the cloud drafts."""
    device, cloud = setup.models.device, setup.models.cloud
    spans = [hop.span for hop in _hops(setup) if hop.node != DEVICE_TIER and tier in (None, hop.node)]
    ends = Span(spans[0].start_layer, spans[-1].end_layer, spans[0].embedding, spans[-1].lm_head)
    in_one_process = cloud.tensor_parallel == 1 and not cloud.gguf_file
    target = factory.target(cloud, accelerator).restricted_to(ends) if in_one_process else None
    drafter = factory.drafter_engine(device, cloud, target, accelerator)
    engine, close = _cloud_engine(factory, cloud, target, ends, accelerator)
    return LoadedModels(
        drafter,
        num_layers(device),
        engine,
        num_layers(cloud),
        tokenizer,
        hidden_size=hidden_size(cloud),
        close=close,
    )


def _cloud_engine(
    factory: EngineFactory, cloud: ModelConfig, target: "DecomposedModel | None", ends: Span, accelerator: str
) -> tuple[Engine, Callable[[], object]]:
    """The large model's engine, of `target` where torch runs it in this process, and what frees it."""
    if target is not None:
        return factory.target_engine(target, factory.medusa_heads(target)), tuple
    if cloud.gguf_file:
        return factory.gguf_targets(cloud)(), tuple
    (engine,), close = factory.tensor_parallel_engines(cloud, accelerator, 1, ends)
    return engine, close


def _hops(setup: Setup) -> tuple[Hop, ...]:
    cloud = setup.pair.cloud
    return setup.policy.placement.hops(num_layers(cloud), cloud.timed_architecture.layers)


def load_tokenizer(device: Checkpoint, cloud: Checkpoint) -> tuple["Tokenizer", int]:
    """The pair's tokenizer, and how many of its tokens both models may write (of those whose weights are here)."""
    from serving.engines.tokenizer import Tokenizer, check_same_tokenizer

    held = [each for each in (cloud, device) if each.has_weights]
    if len(held) == 2:
        check_same_tokenizer(device.name_or_path, cloud.name_or_path)
    tokenizer = Tokenizer(held[0].name_or_path)
    return tokenizer, min(len(tokenizer), *(model_shape(each)[1] for each in held))


def num_layers(checkpoint: Checkpoint) -> int:
    """Layers of a causal LM, without loading it; those of the timed architecture if a server holds the weights."""
    if isinstance(checkpoint, ModelConfig) and not checkpoint.has_weights:
        return checkpoint.timed_architecture.layers
    return model_shape(checkpoint)[0]


def hidden_size(checkpoint: Checkpoint) -> int | None:
    """Width of a causal LM's hidden states, without loading it; None if a server holds the weights."""
    from transformers import AutoConfig

    if isinstance(checkpoint, ModelConfig) and not checkpoint.has_weights:
        return None
    return int(AutoConfig.from_pretrained(checkpoint.name_or_path).hidden_size)


def make_queries(
    workload: Workload, decoding: Decoding, seed: int, num_devices: int, tokenizer: "Tokenizer"
) -> list[Query]:
    """The workload's requests as tokens. Raises ValueError that names a prompt which does not fit."""
    sampling = decoding.sampling(seed)
    found = []
    for asked in workload.requests(num_devices):
        encoded = workload.encode(asked, tokenizer.hf)
        found.append(
            Query.of(
                asked,
                encoded.tokens,
                asked.max_new_tokens,
                tokenizer.eos_token_ids,
                sampling,
                stop_strings=asked.prompt.stop,
                num_cut=encoded.num_dropped,
            )
        )
    return found


def _use_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)
