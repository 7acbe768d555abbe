"""The shape of a language model, and what follows from it: parameters, bytes, FLOPs."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["fp32", "fp16", "int8", "int4"]
"""How weights are stored. int8 and int4 are weight-only: activations, KV cache and arithmetic stay fp16."""

WEIGHT_BITS: dict[str, float] = {"fp32": 32, "fp16": 16, "int8": 8, "int4": 4.5}
"""4.5: four bits and one fp16 scale for every 32 weights (the Q4_0 layout of llama.cpp)."""

ACTIVATION_NBYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "int8": 2, "int4": 2}
"""Bytes of one activation or KV entry."""

Quantization: TypeAlias = Literal["none", "int8", "nf4"]
"""How a checkpoint keeps the linear layers of its blocks, where not in the precision of all the rest."""

QUANTIZED_BITS: dict[str, float] = {"int8": 8, "nf4": 4.5}
"""As bitsandbytes stores them. nf4: four bits, and an fp32 scale for every 64 weights (QLoRA, section 3, without double
quantisation). int8: a byte; its fp32 scale for every row of weights is not counted (LLM.int8(), section 3.1)."""


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
    """Counted once per tensor: a head that shares the embedding's weights is not counted again."""
    source: str
    tied_embeddings: bool = False
    gated_mlp: bool = True
    """Gate, up and down projections (Llama, Qwen, Phi-3, Yi); false: up and down only (Falcon)."""
    qkv_bias: bool = False
    qk_norm: bool = False
    norms_per_block: int = 2
    """Norms a block: 1 where attention and MLP run in parallel on one norm (Falcon 7B)."""
    norm_bias: bool = False
    quantization: Quantization = "none"
    """Of the blocks' linear layers, as the checkpoint that this stands for has it; see `quantized`."""
    attention_only_layers: int = 0
    """How many of the layers have no MLP: HAT's adapter is one."""
    embedding: bool = True
    """Is the embedding held, too? A part of a split model may be blocks alone."""
    lm_head: bool = True
    """Are the last norm and the head?"""

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
        """Weights of one block that every row is multiplied with: attention projections and MLP."""
        return self.hidden_size * self.head_dim * 2 * (self.heads + self.kv_heads) + self.mlp_parameters

    @property
    def mlp_parameters(self) -> int:
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size

    @property
    def matmul_parameters(self) -> int:
        """The same of all blocks."""
        return self.layers * self.block_matmul_parameters - self.attention_only_layers * self.mlp_parameters

    @property
    def norm_parameters(self) -> int:
        return self.hidden_size * (2 if self.norm_bias else 1)

    @property
    def block_parameters(self) -> int:
        """All weights of one block, norms and biases included."""
        bias = (self.heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0
        qk_norm = 2 * self.head_dim if self.qk_norm else 0
        return self.block_matmul_parameters + self.norms_per_block * self.norm_parameters + bias + qk_norm

    @property
    def embedding_parameters(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """Weights that the LM head multiplies with, whether stored apart or shared with the embedding."""
        return self.vocab_size * self.hidden_size

    def parameters(self) -> int:
        """Weights of the whole model, shared ones counted once."""
        head = 0 if self.tied_embeddings and self.embedding else self.head_parameters
        outside = self.embedding_parameters if self.embedding else 0
        return self.blocks_parameters + outside + (self.norm_parameters + head if self.lm_head else 0)

    @property
    def blocks_parameters(self) -> int:
        """All weights of all blocks."""
        missing = self.mlp_parameters + (self.norms_per_block - 1) * self.norm_parameters
        return self.layers * self.block_parameters - self.attention_only_layers * missing

    def part(self, layers: int, embedding: bool, lm_head: bool) -> "Architecture":
        """Some of the layers, with or without embedding, last norm and head: what one node of a split model holds."""
        return replace(
            self, name=f"{layers} layers of {self.name}", layers=layers, embedding=embedding, lm_head=lm_head
        )

    def quantized(self, quantization: Quantization) -> "Architecture":
        """The same shape with its blocks' linear layers in fewer bits, and a name that tells coefficients apart.

        Only bytes follow from it: weights are stored and read in fewer bits; activations, KV cache and arithmetic are
        the hardware's, and turning stored weights into numbers takes no time, as in kernels that do it while they read.
        Raises ValueError for a shape that is quantised otherwise.
        """
        if quantization == self.quantization:
            return self
        if self.quantization != "none":
            raise ValueError(f"architecture {self.name} is quantised to {self.quantization}, not to {quantization}.")
        return replace(self, name=f"{self.name}_{quantization}", quantization=quantization)

    def blocks_nbytes(self, precision: Precision) -> float:
        """Weights of all blocks as they are stored."""
        matmul, bits = self.matmul_parameters, WEIGHT_BITS[precision]
        matmul_bits = QUANTIZED_BITS.get(self.quantization, bits)
        return (matmul * matmul_bits + (self.blocks_parameters - matmul) * bits) / 8

    def head_nbytes(self, precision: Precision) -> float:
        """Weights of the LM head, which no quantisation touches."""
        return self.head_parameters * WEIGHT_BITS[precision] / 8

    def weights_nbytes(self, precision: Precision) -> int:
        """Weights of the whole model as they are stored, shared ones counted once."""
        outside = self.parameters() - self.blocks_parameters
        return round(self.blocks_nbytes(precision) + outside * WEIGHT_BITS[precision] / 8)

    def kv_nbytes_per_token(self, precision: Precision) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * ACTIVATION_NBYTES[precision]

    def activation_nbytes(self, num_tokens: int, precision: Precision, head_tokens: int = 1) -> int:
        """What one forward of `num_tokens` tokens holds besides weights and KV: an estimate.

        One block is alive at a time (residual, normed input, attention output, q, k, v, and the MLP's intermediates),
        attention is computed in tiles (no rows x rows matrix), logits are fp32 and made for `head_tokens` rows.
        """
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        a_row = 3 * self.hidden_size + attention + (3 if self.gated_mlp else 2) * self.intermediate_size
        return num_tokens * a_row * ACTIVATION_NBYTES[precision] + head_tokens * self.vocab_size * 4

    def flops_per_token(self) -> int:
        """Two FLOPs a weight that the token is multiplied with, LM head included, attention itself not."""
        return 2 * (self.matmul_parameters + self.head_parameters)

    def flops_per_interaction(self) -> int:
        """One (query, key) pair in all layers: a dot product and a weighted sum over head_dim, in every head."""
        return 4 * self.layers * self.heads * self.head_dim


def adapter_draft_architecture(target: Architecture, shallow_layers: int) -> Architecture:
    """HAT's draft model: the first `shallow_layers` layers of a target, one self-attention module, the target's head
    (section 3.4).

    Raises ValueError for a target with no more layers than that.
    """
    if not 0 < shallow_layers < target.layers:
        raise ValueError(
            f"shallow is {shallow_layers}; {target.name} has {target.layers} layers, keep at least 1 and fewer than all"
        )
    made = replace(
        target, name=f"{target.name}_adapter_{shallow_layers}", layers=shallow_layers + 1, attention_only_layers=1,
        source=f"derived: {shallow_layers} layers of {target.name}, an attention module, its head (HAT, section 3.4)",
    )  # fmt: skip
    return replace(made, published_parameters=made.parameters())
