"""Opens what a setup names: models, tokenizer, and the workload as tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from serving.core.decoding import Decoding
from serving.deployment.queries import NOWHERE, Models, Query
from serving.deployment.setup import Setup
from serving.engines.models import Checkpoint, Model
from serving.messages import INF, Call, Span
from serving.policy.engine_requirements import PLAIN, Provision
from serving.policy.slots.placement import HERE
from serving.workload.workload import Workload

if TYPE_CHECKING:
    from serving.engines.onnx.engine import OnnxEngine
    from serving.engines.remote.engine import RemoteEngine
    from serving.engines.tokenizer import Tokenizer
    from serving.engines.torch.draft_heads import Proposer
    from serving.engines.torch.engine import Engine
    from serving.engines.torch.model import Model as TorchModel
    from serving.engines.torch.tensor_store import Blobs


def open_models(
    device: Checkpoint,
    cloud: Checkpoint,
    accelerator: str = "cpu",
    provision: Provision = PLAIN,
    context_tokens: int | None = None,
    waits: bool = False,
) -> Models:
    """Both models on `accelerator` (a torch device), sharing a store for what they exchange; one CPU thread serves.

    A draft model that is made of the large one's layers shares its weights, as does the part of the large model that a
    placement has devices run. A server in the large one's place is refused where it takes less than `context_tokens`,
    a prompt and its answer; on virtual time `waits` is true, and one that fails for a moment is waited for here.
    """
    from serving.engines.torch.tensor_store import Blobs

    tokenizer, vocabulary = spoken(device, cloud)
    bench = _Bench(Blobs(), vocabulary, provision)
    if isinstance(cloud, Model) and cloud.server:
        far = bench.remote(cloud, tokenizer, context_tokens, waits)
        drafter = bench.drafter(device, cloud, None, accelerator)
        return Models(drafter, depth(device), far, depth(cloud), tokenizer, notes=far.notes)
    if isinstance(cloud, Model) and cloud.ways > 1:
        return _open_shared(bench, device, cloud, accelerator, tokenizer)
    large = _model(cloud, accelerator)
    drafter = bench.drafter(device, cloud, large, accelerator)
    layers, heads = len(large.layers), bench.heads(large)

    def another() -> "Engine":
        return bench.engine(large, heads)

    return Models(drafter, depth(device), another(), layers, tokenizer, another(), another=another)


def _open_shared(bench: "_Bench", device: Checkpoint, cloud: Model, accelerator: str, tokenizer: "Tokenizer") -> Models:
    """A draft model that is made of the large one's layers has its own: those of a shared model are parts of them."""
    drafter = bench.drafter(device, cloud, None, accelerator)
    (far, here), close = bench.shared(cloud, accelerator, 2)
    return Models(drafter, depth(device), far, depth(cloud), tokenizer, here, close=close)


def open_side(
    setup: Setup,
    side: Literal["device", "cloud"],
    blobs: "Blobs",
    accelerator: str = "cpu",
    context_tokens: int | None = None,
    tier: str | None = None,
) -> Models:
    """One side's models; what the other one holds is in another process, or of a split model in another part of it.

    Of a `tier` only what runs there; absent: all that runs in the cloud. `context_tokens` are those that a service lets
    a conversation have; absent: the workload's.
    """
    pair, provision = setup.pair, setup.policy.provision
    tokenizer, vocabulary = spoken(pair.device, pair.cloud)
    small, layers = depth(pair.device), depth(pair.cloud)
    bench = _Bench(blobs, vocabulary, provision)
    hops = setup.policy.placement.route(layers, pair.cloud.timing.layers)
    if side == "cloud" and pair.cloud.server:
        far = bench.remote(pair.cloud, tokenizer, context_tokens or setup.workload.tokens)
        return Models(NOWHERE, small, far, layers, tokenizer, notes=far.notes)
    if side == "cloud":
        spans = [hop.span for hop in hops if hop.node != HERE and tier in (None, hop.node)]
        ends = Span(spans[0].first, spans[-1].last, spans[0].embed, spans[-1].head)
        if pair.cloud.ways > 1:
            (led,), close = bench.shared(pair.cloud, accelerator, 1, ends)
            return Models(NOWHERE, small, led, layers, tokenizer, close=close)
        held = _model(pair.cloud, accelerator).only(ends)
        return Models(NOWHERE, small, bench.engine(held, bench.heads(held)), layers, tokenizer)
    kept = max((hop.span.last for hop in hops if hop.node == HERE and hop.span.first < hop.span.last), default=0)
    here = _model(pair.cloud, accelerator, kept) if kept else None
    drafts = setup.policy.draft.source == "model"
    drafter = bench.drafter(pair.device, pair.cloud, here, accelerator) if drafts else NOWHERE
    end = bench.engine(here, bench.heads(here)) if here else NOWHERE
    return Models(drafter, small, NOWHERE, layers, tokenizer, end)


def spoken(device: Checkpoint, cloud: Checkpoint) -> tuple["Tokenizer", int]:
    """The pair's tokenizer, and how many of its tokens both models may write; the device's alone where the cloud's
    weights are elsewhere.
    """
    from serving.engines.tokenizer import Tokenizer, same_tokenizer

    held = [each for each in (cloud, device) if each.here]
    if len(held) == 2:
        same_tokenizer(device.where, cloud.where)
    tokenizer = Tokenizer(held[0].where)
    return tokenizer, min(len(tokenizer), *(_shape(each)[1] for each in held))


def depth(checkpoint: Checkpoint) -> int:
    """Layers of a causal LM, without loading it; the timed one's where its weights are elsewhere."""
    if isinstance(checkpoint, Model) and not checkpoint.here:
        return checkpoint.timing.layers
    return _shape(checkpoint)[0]


def queries(workload: Workload, decoding: Decoding, seed: int, devices: int, tokenizer: "Tokenizer") -> list[Query]:
    """The workload's requests as tokens; raises ValueError that names a prompt which does not fit."""
    sampling = decoding.sampling(seed)
    found = []
    for asked in workload.calls(devices):
        tokens = workload.encode(asked, tokenizer.hf).tokens
        rate = asked.slo.tokens_per_s if asked.slo else 0.0
        ttft_s = asked.slo.ttft_s if asked.slo and asked.slo.ttft_s else INF
        call = Call(f"r{asked.index:05d}", tokens, asked.max_new_tokens, tokenizer.ends, sampling, rate, ttft_s)
        found.append(Query(call, asked.prompt, asked.device, asked.at_s, asked.think_s, asked.slo))
    return found


@dataclass(frozen=True)
class _Bench:
    """Where engines are made that belong together."""

    blobs: "Blobs"
    vocabulary: int
    provision: Provision

    def remote(
        self, cloud: Model, tokenizer: "Tokenizer", context_tokens: int | None, waits: bool = False
    ) -> "RemoteEngine":
        """A server in the place of the large model's engine."""
        from serving.engines.remote.opening import open_remote

        assert cloud.server
        verifies = self.provision.verifies
        return open_remote(cloud.server, tokenizer, self.vocabulary, verifies, context_tokens, waits)

    def heads(self, target: "TorchModel") -> "Proposer | None":
        """What proposes drafts beside the target's own head, on whatever end has that."""
        from serving.engines.torch.draft_heads import open_heads
        from serving.engines.torch.model import Absent

        medusa = self.provision.medusa
        return open_heads(target, medusa, self.vocabulary) if medusa and not isinstance(target.head, Absent) else None

    def drafter(
        self, device: Checkpoint, cloud: Checkpoint, large: "TorchModel | None", accelerator: str
    ) -> "Engine | OnnxEngine":
        """What drafts: of torch, or of onnxruntime, on the CPU whatever the accelerator is."""
        if device.onnx:
            return self._exported(device, device.onnx)
        model = _drafter(device, cloud, large, accelerator)
        self._check_scorers(model)
        return self.engine(model)

    def _check_scorers(self, drafter: "TorchModel") -> None:
        for scorer in self.provision.scorers.values():
            if scorer.reads == "hidden" and scorer.inputs != drafter.hidden:
                raise ValueError(
                    f"{scorer!r} reads hidden states of {scorer.inputs} numbers, and those of {drafter.name} have "
                    f"{drafter.hidden}; train the router for this model, or choose the one that was"
                )

    def _exported(self, device: Checkpoint, folder: Path) -> "OnnxEngine":
        """Raises ValueError for a graph of other weights, or of a model of another shape."""
        from serving.engines.onnx import header
        from serving.engines.onnx.engine import OnnxEngine

        _one_thread()
        engine = OnnxEngine(folder, blobs=self.blobs, vocabulary=self.vocabulary, scorers=self.provision.scorers)
        found = engine.header.layers, engine.header.vocabulary
        if found != _shape(device):
            raise ValueError(
                f"the graph at {folder} was exported from {engine.header.made_from} (layers, vocabulary {found}), and "
                f"the device's model is {device.named} ({_shape(device)}); export again with force=[device_graph]"
            )
        if engine.header.weights != header.weights_digest(device):
            raise ValueError(
                f"the graph at {folder} was exported from {engine.header.made_from}, whose weights are others than "
                f"those of the device's model {device.named}; export again with force=[device_graph], or name the "
                "folder of its own graph in model.device.graph"
            )
        return engine

    def engine(self, model: "TorchModel", heads: "Proposer | None" = None) -> "Engine":
        from serving.engines.torch.engine import Engine

        return Engine(model, heads=heads, **self._options())

    def shared(
        self, cloud: Model, accelerator: str, count: int, span: Span | None = None
    ) -> tuple[list["Engine"], Callable[[], object]]:
        """So many engines over one model that several processes share, and what ends these processes."""
        from serving.engines.tensor_parallel.engine import Leader
        from serving.engines.tensor_parallel.worker_group import open_shared

        model, team = open_shared(cloud.where, cloud.ways, dtype=cloud.dtype, accelerator=accelerator, span=span)
        try:
            heads = self.heads(model)
            return [Leader(team, i, model, heads=heads, **self._options()) for i in range(count)], team.close
        except BaseException:
            team.close()
            raise

    def _options(self) -> dict[str, Any]:
        p = self.provision
        return {
            "blobs": self.blobs, "vocabulary": self.vocabulary, "scorers": p.scorers, "block_tokens": p.block_tokens,
            "number": p.number,
        }  # fmt: skip


def _model(checkpoint: Checkpoint, accelerator: str, layers: int | None = None) -> "TorchModel":
    """All of it, or its first layers and its ends."""
    from serving.engines.torch.model import open_model

    _one_thread()
    return open_model(
        checkpoint.where, dtype=checkpoint.dtype, device=accelerator, quantization=checkpoint.quantization,
        layers=layers,
    )  # fmt: skip


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _drafter(device: Checkpoint, cloud: Checkpoint, large: "TorchModel | None", accelerator: str) -> "TorchModel":
    """The small model; one that is made of the large one's first layers takes those that are open already."""
    if device.adapter is None:
        return _model(device, accelerator)
    from serving.engines.torch.draft_heads import drafter
    from serving.learned import adapter

    shallow = adapter.load(device.adapter).shallow
    other = device.where != cloud.where or device.quantization != cloud.quantization
    if large is None or len(large.layers) < shallow or other:
        large = _model(device, accelerator, shallow)
    return drafter(large, shallow, device.adapter / adapter.WEIGHTS)


def _shape(checkpoint: Checkpoint) -> tuple[int, int]:
    """(layers, rows of the head), read from the configuration."""
    from transformers import AutoConfig

    from serving.engines.torch.model import check_checkpoint
    from serving.learned import adapter

    check_checkpoint(checkpoint.where)
    config = AutoConfig.from_pretrained(checkpoint.where)
    layers = adapter.load(checkpoint.adapter).shallow + 1 if checkpoint.adapter else int(config.num_hidden_layers)
    return layers, int(config.vocab_size)
