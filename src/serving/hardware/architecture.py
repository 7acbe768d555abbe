"""The shape of a language model, and the parameters, bytes and FLOPs that follow from it."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["fp32", "fp16", "int8", "int4"]
"""Storage of weights. int8 and int4 are weight-only: activations, KV cache and arithmetic stay fp16."""

WEIGHT_BITS: dict[str, float] = {"fp32": 32, "fp16": 16, "int8": 8, "int4": 4.5}
"""4.5: four bits plus one fp16 scale per 32 weights (the Q4_0 layout of llama.cpp)."""

ACTIVATION_NBYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "int8": 2, "int4": 2}
"""Bytes of one activation or KV entry."""

Quantization: TypeAlias = Literal["none", "int8", "nf4"]
"""Storage of the linear layers of a checkpoint's blocks, if it differs from the rest."""

QUANTIZED_BITS: dict[str, float] = {"int8": 8, "nf4": 4.5}
"""Bits per weight in bitsandbytes. nf4: four bits plus an fp32 scale per 64 weights (QLoRA, section 3, without double
quantisation). int8: a byte; the fp32 scale per row of weights is not counted (LLM.int8(), section 3.1).
"""


@dataclass(frozen=True)
class Architecture:
    """A decoder-only transformer with rotary positions, as its published `config.json` states it."""

    name: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    published_parameters: int
    """Each tensor counted once: a head that shares the embedding's weights adds nothing."""
    source: str
    tied_embeddings: bool = False
    gated_mlp: bool = True
    """True: gate, up and down projections (Llama, Qwen, Phi-3, Yi); False: up and down only (Falcon)."""
    qkv_bias: bool = False
    qk_norm: bool = False
    norms_per_block: int = 2
    """1 if attention and MLP run in parallel on one norm (Falcon 7B)."""
    norm_bias: bool = False
    quantization: Quantization = "none"
    """Of the blocks' linear layers; see `quantized`."""
    attention_only_layers: int = 0
    """Number of layers without an MLP, such as HAT's adapter."""
    embedding: bool = True
    """False for a part of a split model without the embedding."""
    lm_head: bool = True
    """False for a part of a split model without last norm and head."""

    def __post_init__(self) -> None:
        for field in (
            "layers",
            "hidden_size",
            "heads",
            "kv_heads",
            "head_dim",
            "intermediate_size",
            "vocab_size",
            "norms_per_block",
        ):
            if getattr(self, field) < 1:
                raise ValueError(f"architecture {self.name}: {field}={getattr(self, field)} must be at least 1.")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"architecture {self.name}: heads={self.heads} is not a multiple of kv_heads={self.kv_heads}; "
                "each KV head serves a whole group of heads."
            )

    @property
    def block_matmul_parameters(self) -> int:
        """Weights of one block's attention projections and MLP, which multiply every token."""
        return self.hidden_size * self.head_dim * 2 * (self.heads + self.kv_heads) + self.mlp_parameters

    @property
    def mlp_parameters(self) -> int:
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size

    @property
    def matmul_parameters(self) -> int:
        """`block_matmul_parameters` summed over all blocks."""
        return self.layers * self.block_matmul_parameters - self.attention_only_layers * self.mlp_parameters

    @property
    def norm_parameters(self) -> int:
        return self.hidden_size * (2 if self.norm_bias else 1)

    @property
    def block_parameters(self) -> int:
        """Weights of one block, norms and biases included."""
        bias = (self.heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0
        qk_norm = 2 * self.head_dim if self.qk_norm else 0
        return self.block_matmul_parameters + self.norms_per_block * self.norm_parameters + bias + qk_norm

    @property
    def embedding_parameters(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """Weights of the LM head, whether shared with the embedding or not."""
        return self.vocab_size * self.hidden_size

    def parameters(self) -> int:
        """Weights of the whole model, shared weights counted once."""
        head = 0 if self.tied_embeddings and self.embedding else self.head_parameters
        outside = self.embedding_parameters if self.embedding else 0
        return self.blocks_parameters + outside + (self.norm_parameters + head if self.lm_head else 0)

    @property
    def blocks_parameters(self) -> int:
        missing = self.mlp_parameters + (self.norms_per_block - 1) * self.norm_parameters
        return self.layers * self.block_parameters - self.attention_only_layers * missing

    def part(self, layers: int, embedding: bool, lm_head: bool) -> "Architecture":
        """The part of a split model that one node holds: some layers, with or without embedding, last norm and head."""
        return replace(
            self, name=f"{layers} layers of {self.name}", layers=layers, embedding=embedding, lm_head=lm_head
        )

    def quantized(self, quantization: Quantization) -> "Architecture":
        """The same shape with its blocks' linear layers in fewer bits, under a name of its own.

        It changes stored and read bytes only; activations, KV cache and arithmetic stay the hardware's. Dequantisation
        takes no time, as in kernels that do it while reading. Raises ValueError if the shape is quantised otherwise.
        """
        if quantization == self.quantization:
            return self
        if self.quantization != "none":
            raise ValueError(f"architecture {self.name} is quantised to {self.quantization}, not to {quantization}.")
        return replace(self, name=f"{self.name}_{quantization}", quantization=quantization)

    def blocks_nbytes(self, precision: Precision) -> float:
        matmul, bits = self.matmul_parameters, WEIGHT_BITS[precision]
        matmul_bits = QUANTIZED_BITS.get(self.quantization, bits)
        return (matmul * matmul_bits + (self.blocks_parameters - matmul) * bits) / 8

    def head_nbytes(self, precision: Precision) -> float:
        """The LM head is never quantised."""
        return self.head_parameters * WEIGHT_BITS[precision] / 8

    def weights_nbytes(self, precision: Precision) -> int:
        """Stored weights of the whole model, shared weights counted once."""
        outside = self.parameters() - self.blocks_parameters
        return round(self.blocks_nbytes(precision) + outside * WEIGHT_BITS[precision] / 8)

    def kv_nbytes_per_token(self, precision: Precision) -> int:
        """Keys and values of one token, summed over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * ACTIVATION_NBYTES[precision]

    def activation_nbytes(self, num_tokens: int, precision: Precision, head_tokens: int = 1) -> int:
        """Estimated memory of one forward of `num_tokens` tokens, besides weights and KV cache.

        One block is live at a time (residual, normed input, attention output, q, k, v and the MLP's intermediates).
        Attention is tiled (no tokens x tokens matrix). Logits are fp32, for `head_tokens` tokens.
        """
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        per_token = 3 * self.hidden_size + attention + (3 if self.gated_mlp else 2) * self.intermediate_size
        return num_tokens * per_token * ACTIVATION_NBYTES[precision] + head_tokens * self.vocab_size * 4

    def flops_per_token(self) -> int:
        """Two FLOPs per weight, LM head included, attention scores excluded."""
        return 2 * (self.matmul_parameters + self.head_parameters)

    def flops_per_interaction(self) -> int:
        """FLOPs of one (query, key) pair, summed over all layers: a dot product and a weighted sum over head_dim, per
        head.
        """
        return 4 * self.layers * self.heads * self.head_dim


def pruned_architecture(target: Architecture, layers: int) -> Architecture:
    """The target with `layers` of its layers. Raises ValueError if that is not between 1 and one less than all."""
    if not 0 < layers < target.layers:
        raise ValueError(f"layers is {layers}; {target.name} has {target.layers} layers; keep 1 or more, not all")
    made = replace(target, name=f"{target.name}_{layers}_layers", layers=layers,
                   source=f"derived: {layers} layers of {target.name}")  # fmt: skip
    return replace(made, published_parameters=made.parameters())


def adapter_draft_architecture(target: Architecture, shallow_layers: int) -> Architecture:
    """HAT's draft model (section 3.4): the first `shallow_layers` layers of the target, one self-attention module, and
    the target's head.

    Raises ValueError if `shallow_layers` is not between 1 and one less than the target's layers.
    """
    if not 0 < shallow_layers < target.layers:
        raise ValueError(
            f"shallow_layers is {shallow_layers}; {target.name} has {target.layers} layers; keep 1 or more, not all"
        )
    made = replace(
        target, name=f"{target.name}_adapter_{shallow_layers}", layers=shallow_layers + 1, attention_only_layers=1,
        source=f"derived: {shallow_layers} layers of {target.name}, an attention module, its head (HAT, section 3.4)",
    )  # fmt: skip
    return replace(made, published_parameters=made.parameters())
