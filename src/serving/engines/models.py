"""A model pair: the checkpoints that write the tokens, and the architectures whose cost is charged."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from serving.engines.checkpoint_architecture import (
    CONFIG_FILE,
    check_checkpoint,
    checkpoint_architecture,
    num_parameters,
)
from serving.engines.remote.server import RemoteServer
from serving.engines.tensor_parallel.commands import check_divisible_heads
from serving.hardware.architecture import QUANTIZED_BITS, Architecture, Quantization, adapter_draft_architecture
from serving.learned import adapter

Dtype = Literal["fp32", "bf16", "fp16"]
Backend = Literal["torch", "onnx", "llama_cpp"]

QUANTIZATION_LIBRARIES = ("bitsandbytes", "accelerate")
"""Packages that `transformers` needs to load weights in 8 or 4 bits."""
ONNX_LIBRARIES = ("onnx", "onnxscript", "onnxruntime")
LLAMA_CPP_LIBRARIES = ("cyllama",)
GGUF_FILE = "model.gguf"
"""In the folder of a stage that writes a GGUF file."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A causal LM that `transformers` loads from a directory or from the Hub, where the name identifies it.

    Raises ValueError for a directory that holds no causal LM, and for a quantisation whose library is not installed or
    that the checkpoint already has.
    """

    path: Path | None = None
    hub: str | None = None
    dtype: Dtype = "fp32"
    """Of the computation on this machine. The named hardware computes in the fleet's `precision`."""
    quantization: Quantization = "none"
    """int8 or nf4: the blocks' linear layers in 8 or 4 bits, see `serving.engines.torch.model.quantization_kwargs`."""
    adapter: Path | None = None
    """HAT's trained adapter. The draft model is then this model's first layers, the adapter and the head."""

    def __post_init__(self) -> None:
        if not self.has_weights and not self._is_remote:
            raise ValueError(
                "model: neither path nor hub says where the checkpoint is; set model.device.path and model.cloud.path"
            )
        if self.path is not None and self.hub is not None:
            raise ValueError(f"model: both a path and hub={self.hub} are given; set path=null to take the Hub's")
        if self.quantization != "none":
            option = f"quantization={self.quantization}"
            _check_libraries(option, QUANTIZATION_LIBRARIES, "quantization", "quantization=none")
        if isinstance(self.path, Path):
            check_checkpoint(self.path, self.quantization)

    @property
    def has_weights(self) -> bool:
        """True if the weights are on this machine or on the Hub."""
        return self.path is not None or self.hub is not None

    @property
    def _is_remote(self) -> bool:
        """True if a server holds the weights."""
        return False

    @property
    def name_or_path(self) -> str:
        """The argument of `from_pretrained`."""
        return str(self.path or self.hub)

    @property
    def display_name(self) -> str:
        """The last two parts of the path (an artifact's stage and digest) or the Hub name, with the quantisation."""
        name = "/".join(self.path.parts[-2:]) if self.path else str(self.hub)
        name = f"{name} with {'/'.join(self.adapter.parts[-2:])}" if self.adapter else name
        return name if self.quantization == "none" else f"{name} ({self.quantization})"

    @property
    def onnx_graph(self) -> Path | None:
        """The folder of the exported graph that onnxruntime runs; None if it does not run the model."""
        return None

    @property
    def gguf_file(self) -> Path | None:
        """The file that llama.cpp runs; None if it does not run the model."""
        return None


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checkpoint):
    """A checkpoint that writes the tokens, and the architecture that decides seconds, bytes and memory.

    A quantised checkpoint stands for the quantised architecture. With a `server`, tokens come from there; path and hub
    are then optional, and only stages that profile the model load them. Raises ValueError for a checkpoint that
    `backend` cannot run, or whose library is not installed.
    """

    timed_architecture: Architecture
    backend: Backend = "torch"
    """torch; onnxruntime with the exported `graph`; llama.cpp with the weights of `gguf`."""
    graph: Path | None = None
    """The folder that the stage `device_graph` wrote."""
    server: RemoteServer | None = None
    tensor_parallel: int = 1
    """How many processes share each block, by DeepSpeed; one GPU each. For the cloud's model only."""
    threads: int = 1
    """CPU threads that compute it on this machine, in the process of its side. The named hardware has none."""
    gguf: Path | None = field(default=None, metadata={"omitted_at_default": True})
    """The GGUF file that llama.cpp runs, or a folder with model.gguf; the checkpoint gives tokenizer and shape."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads != 1:
            _check_threads(self)
        if self.tensor_parallel != 1:
            _check_tensor_parallel(self)
        if self.backend == "onnx":
            _check_onnx_graph(self)
        if self.backend == "llama_cpp":
            _check_gguf(self)
        if self.quantization != "none":
            object.__setattr__(self, "timed_architecture", self.timed_architecture.quantized(self.quantization))

    @property
    def artifacts(self) -> tuple[object, ...]:
        """Where its weights lie, whichever of them a backend reads."""
        return (self.path, self.adapter, self.graph, self.gguf)

    @property
    def is_there(self) -> bool:
        """False where the checkpoint is an artifact that was not built, since nothing reads it."""
        return self.path is None or isinstance(self.path, Path)

    @property
    def is_timed_as_itself(self) -> bool:
        """True if time, bytes and memory are those of a model of the same shape as the one that writes the tokens."""
        if not self.is_there:
            return False
        if self.path and not self.adapter and self.timed_architecture.source == str(self.path / CONFIG_FILE):
            return True
        timed, own = replace(self.timed_architecture, quantization="none"), self._own_architecture
        named = {name: getattr(timed, name) for name in ("name", "source", "published_parameters")}
        return own is not None and replace(own, **named) == timed

    @property
    def own_parameters(self) -> int | None:
        """Weights of the model that writes the tokens; None if its shape cannot be read, or is given by no path."""
        own = self._own_architecture
        return own.parameters() if own else None

    @property
    def _own_architecture(self) -> Architecture | None:
        """The checkpoint's shape, or that of the draft model which an adapter makes of its first layers."""
        try:
            own = checkpoint_architecture(self.path) if self.path and self.is_there else None
            if own is None or self.adapter is None:
                return own
            return adapter_draft_architecture(own, adapter.load(self.adapter).shallow_layers)
        except ValueError:
            return None

    @property
    def onnx_graph(self) -> Path | None:
        return self.graph if self.backend == "onnx" else None

    @property
    def gguf_file(self) -> Path | None:
        if self.backend != "llama_cpp" or self.gguf is None:
            return None
        return self.gguf / GGUF_FILE if self.gguf.is_dir() else self.gguf

    @property
    def _is_remote(self) -> bool:
        return self.server is not None

    @property
    def token_source(self) -> str:
        """The server or checkpoint that writes the tokens, for start-up messages."""
        return self.server.display_name if self.server else self.name_or_path

    @property
    def described(self) -> str:
        """The model that writes the tokens: its directory or name, and its parameters where they are known."""
        count = num_parameters(self.path) if self.path and not self.server else None
        return self.token_source if count is None else f"{self.display_name} ({count:,} parameters)"

    @property
    def server_note(self) -> str | None:
        """The report's note on a server's tokens."""
        if self.server is None:
            return None
        return f"the cloud's tokens come from a server: {self.server.display_name}"

    @property
    def tensor_parallel_note(self) -> str | None:
        """The report's note on a model that several processes share."""
        if self.tensor_parallel == 1:
            return None
        return (
            f"the cloud's model is shared by {self.tensor_parallel} processes here, which says nothing of the "
            "hardware: time is that of the hardware's tensor_parallel, or of this machine"
        )

    @property
    def quantization_note(self) -> str | None:
        """The report's note on a quantised model's seconds and bytes."""
        if self.quantization == "none":
            return None
        return (
            f"{self.timed_architecture.name}: the linear layers of the blocks are stored and read in "
            f"{QUANTIZED_BITS[self.quantization]:g} bits a weight, all else in the hardware's precision; "
            "arithmetic is the hardware's, and no time is charged for turning stored weights into numbers"
        )


_NEAR = 1.25
"""The factor by which two shares of weights may differ and count as the same."""


@dataclass(frozen=True)
class ModelPair:
    """The device's model and the cloud's, which must share a tokenizer.

    Raises ValueError if the tokenizer files differ, or if a side has options that only the other side supports.
    """

    device: ModelConfig
    cloud: ModelConfig
    embedded: bool = False
    """True for the pair that the project trains itself."""

    def __post_init__(self) -> None:
        if self.cloud.backend == "onnx":
            raise ValueError(
                "model.cloud.backend is onnx, and the cloud verifies many sessions in one forward, which a graph does "
                "not do; set model.cloud.backend=torch or llama_cpp"
            )
        if self.device.server:
            raise ValueError(
                "model.device.server is set, but the device's model runs here; servers stand for the cloud"
            )
        if self.device.tensor_parallel != 1:
            raise ValueError(
                f"model.device.tensor_parallel is {self.device.tensor_parallel}, and a device's model runs in one "
                "process; set model.device.tensor_parallel=1: model.cloud.tensor_parallel is for the cloud's"
            )
        if isinstance(self.device.path, Path) and isinstance(self.cloud.path, Path):
            from serving.engines.tokenizer import check_same_tokenizer

            check_same_tokenizer(self.device.path, self.cloud.path)

    @property
    def artifacts(self) -> tuple[object, ...]:
        """Where the weights of both models lie."""
        return (*self.device.artifacts, *self.cloud.artifacts)

    @property
    def hypothetical(self) -> str:
        """Says that a drafter's acceptance and its time are those of unlike pairs: its share of the target's weights is
        another. Empty if the shares are near each other or not known, and for the embedded pair, which always stands
        for other models.
        """
        own, target = self.device.own_parameters, self.cloud.own_parameters
        if self.embedded or not own or not target:
            return ""
        share = own / target
        timed = self.device.timed_architecture.parameters() / self.cloud.timed_architecture.parameters()
        if max(share, timed) <= _NEAR * min(share, timed):
            return ""
        return (
            f"hypothetical: the drafts are those of a model with {share:.3g} of its target's weights, and timed as of "
            f"one with {timed:.3g}"
        )


def _check_threads(model: ModelConfig) -> None:
    """Raises ValueError for a number of threads below 1, and for what computes on one thread only."""
    found = f"model: threads is {model.threads}"
    if model.threads < 1:
        raise ValueError(f"{found}; it is a number of CPU threads, 1 or more")
    if model.backend == "onnx" or model.tensor_parallel > 1:
        own = "backend=onnx" if model.backend == "onnx" else f"tensor_parallel={model.tensor_parallel}"
        raise ValueError(f"{found}, and {own} computes on one thread a process; set threads=1")


def _check_tensor_parallel(model: ModelConfig) -> None:
    """Raises ValueError for a model that several processes cannot share. Loads nothing."""
    found = f"model.cloud.tensor_parallel is {model.tensor_parallel}"
    if model.tensor_parallel < 1:
        raise ValueError(f"{found}; it is a number of processes, 1 or more")
    if model.server:
        raise ValueError(
            f"{found}, and model.cloud.server runs the model elsewhere; set model.cloud.tensor_parallel=1, "
            "or server=null"
        )
    if model.quantization != "none":
        raise ValueError(
            f"{found}, and DeepSpeed parts no weights in {model.quantization}; set model.cloud.tensor_parallel=1, or "
            "quantization=none"
        )
    if isinstance(model.path, Path):
        config = json.loads((model.path / "config.json").read_text(encoding="utf-8"))  # `check_checkpoint` has read it
        check_divisible_heads(model.tensor_parallel, config, str(model.path))


def _check_libraries(option: str, libraries: Sequence[str], extra: str, instead: str) -> None:
    """Raises ValueError for a library that this Python lacks. Imports none."""
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"model: {option} needs {' and '.join(missing)}, which this Python does not have; "
            f"install tandem-llm[{extra}], or set {instead}"
        )


def _check_onnx_graph(model: ModelConfig) -> None:
    """Raises ValueError for a model without a graph, or with one that is not there. Loads nothing."""
    check_onnx_libraries()
    check_exportable(model)
    if model.graph is None:
        raise ValueError(
            "model: backend=onnx needs a graph, the folder that the stage device_graph makes: in a model's file "
            "graph: ${device_graph:${.backend}}, as in conf/model/tiny.yaml"
        )
    if isinstance(model.graph, Path) and not model.graph.is_dir():
        raise ValueError(
            f"model: graph is {model.graph}, and there is no such folder; give the one that the stage device_graph "
            "made, or set backend=torch"
        )


def check_onnx_libraries() -> None:
    """Raises ValueError for a missing library. Imports none."""
    _check_libraries("backend=onnx", ONNX_LIBRARIES, "onnx", "model.device.backend=torch")


def _check_gguf(model: ModelConfig) -> None:
    """Raises ValueError for a model without a GGUF file, or with one that is not there, and for options that only torch
    has. Loads nothing.
    """
    check_llama_cpp_libraries()
    if model.gguf is None:
        raise ValueError(
            "model: backend=llama_cpp needs gguf, a GGUF file or the folder of a stage that writes one; "
            "model=smollm2_llama_cpp and model=gguf have it"
        )
    if isinstance(model.gguf, Path):
        _check_gguf_path(model.gguf)
    runs = "model: backend=llama_cpp runs a GGUF file as it is, and"
    if model.adapter is not None:
        raise ValueError(
            f"{runs} policy/draft=adapter or tree_adapter (HAT) drafts with the large model's first layers and an "
            "adapter, which only torch runs; choose policy/draft=window with policy/placement=cloud and "
            "policy/payload=tokens, or set model.device.backend=torch and model.cloud.backend=torch"
        )
    if model.server is not None:
        raise ValueError(f"{runs} server={model.server.display_name} runs another; set server=null, or backend=torch")
    for option, allowed in (("quantization", "none"), ("tensor_parallel", 1)):
        if (found := getattr(model, option)) != allowed:
            raise ValueError(f"{runs} {option} is {found}; set {option}={allowed}, or backend=torch")


def _check_gguf_path(path: Path) -> None:
    """Raises ValueError for what is no GGUF file, and no folder with model.gguf."""
    if path.is_file() and path.suffix != ".gguf":
        raise ValueError(f"model: gguf is {path}; give a file that ends with .gguf")
    if not (path / GGUF_FILE if path.is_dir() else path).is_file():
        missing = f"which holds no {GGUF_FILE}" if path.is_dir() else "and there is no such file"
        raise ValueError(f"model: gguf is {path}, {missing}; give a GGUF file, or a folder with {GGUF_FILE}")


def check_llama_cpp_libraries() -> None:
    """Raises ValueError for a missing library. Imports none."""
    _check_libraries("backend=llama_cpp", LLAMA_CPP_LIBRARIES, "llama_cpp", "backend=torch")


def check_exportable(checkpoint: Checkpoint) -> None:
    """Raises ValueError for a checkpoint whose graph would compute something else than torch."""
    if checkpoint.dtype != "fp32":
        raise ValueError(
            f"model: backend=onnx computes in fp32, and dtype is {checkpoint.dtype}; set model.device.dtype=fp32 "
            "(model.stages.device_graph.int8=true stores a quarter of it), or model.device.backend=torch"
        )
    if checkpoint.quantization != "none":
        raise ValueError(
            f"model: backend=onnx cannot export quantization={checkpoint.quantization}, whose kernels are torch's; set "
            "model.device.quantization=none and, for bytes, model.stages.device_graph.int8=true; or "
            "model.device.backend=torch"
        )
    if checkpoint.adapter is not None:
        raise ValueError(
            "model: backend=onnx exports a whole causal LM, and this device drafts with an adapter behind the large "
            "model's first layers (policy/draft=adapter); set model.device.backend=torch, or choose another draft"
        )
