"""The cost of each block of a model: f_i and m_i (Hyperion, Eq. 2 and 3), computed from the architecture."""

from dataclasses import dataclass, replace

from serving.hardware.architecture import WEIGHT_BITS, Architecture, Precision
from serving.hardware.latency import ForwardLoad, batch_load


@dataclass(frozen=True)
class BlockCosts:
    """One entry for each block, in order. FLOPs are those of one request; bytes are those that a node holds."""

    prefill_flops: tuple[float, ...]
    decode_flops: tuple[float, ...]
    """FLOPs of all new tokens after the first, which the prefill yields."""
    weights_nbytes: tuple[float, ...]
    kv_nbytes: tuple[float, ...]
    """KV cache of all sessions at the end of their requests."""
    activation_nbytes: tuple[float, ...]
    """Activations of the larger pass: one session's prompt, or one token of every session. The paper charges them to
    every block (section III-A), although a node that runs its blocks in turn needs only the largest.
    """

    @property
    def flops(self) -> tuple[float, ...]:
        """f_i for a whole request."""
        return tuple(map(sum, zip(self.prefill_flops, self.decode_flops, strict=True)))

    @property
    def nbytes(self) -> tuple[float, ...]:
        """m_i: weights, KV cache (which the paper leaves out) and activations."""
        return tuple(map(sum, zip(self.weights_nbytes, self.kv_nbytes, self.activation_nbytes, strict=True)))


def block_costs(
    architecture: Architecture,
    precision: Precision,
    prompt_tokens: int,
    new_tokens: int,
    sessions: int = 1,
    include_embed_head: bool = True,
) -> BlockCosts:
    """The costs of requests with `prompt_tokens` in and `new_tokens` out, `sessions` at once.

    FLOPs are two for each weight and token, and the attention's for each query and key, as for latencies
    (`serving.hardware.latency.batch_load`). With `include_embed_head`, the embedding's bytes are charged to the first
    block, and the LM head's FLOPs, bytes (with the last norm's) and logits to the last one. Tied weights are charged to
    both, since any division puts them on different nodes. Raises ValueError for counts below 1.
    """
    counts = {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "sessions": sessions}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"partition: {name} is {value}; it must be at least 1")
    prefill = batch_load(1, [(0, prompt_tokens)], head_tokens=1)
    decode = batch_load(1, [(prompt_tokens + i, 1) for i in range(new_tokens - 1)], head_tokens=new_tokens - 1)
    blocks = _block_architectures(architecture)
    made = BlockCosts(
        prefill_flops=tuple(_flops(each, prefill) for each in blocks),
        decode_flops=tuple(_flops(each, decode) for each in blocks),
        weights_nbytes=tuple(each.blocks_nbytes(precision) for each in blocks),
        kv_nbytes=tuple(
            float(sessions * (prompt_tokens + new_tokens) * each.kv_nbytes_per_token(precision)) for each in blocks
        ),
        activation_nbytes=tuple(
            float(each.activation_nbytes(max(prompt_tokens, sessions), precision, head_tokens=0)) for each in blocks
        ),
    )
    return _with_embed_head(made, architecture, precision, prefill, decode, sessions) if include_embed_head else made


def _block_architectures(architecture: Architecture) -> list[Architecture]:
    """Each layer as a model of one layer. Layers without an MLP are the last ones, as in HAT's draft model."""
    whole = architecture.layers - architecture.attention_only_layers
    block = architecture.part(1, embedding=False, lm_head=False)
    return [replace(block, attention_only_layers=int(layer >= whole)) for layer in range(architecture.layers)]


def _flops(block: Architecture, load: ForwardLoad) -> float:
    return float(2 * block.matmul_parameters * load.num_tokens + block.flops_per_interaction() * load.interactions)


def _with_embed_head(
    costs: BlockCosts,
    architecture: Architecture,
    precision: Precision,
    prefill: ForwardLoad,
    decode: ForwardLoad,
    sessions: int,
) -> BlockCosts:
    bits, head_flops = WEIGHT_BITS[precision], 2 * architecture.head_parameters
    head_nbytes = architecture.head_nbytes(precision) + architecture.norm_parameters * bits / 8
    weights = _add_at(costs.weights_nbytes, 0, architecture.embedding_parameters * bits / 8)
    return replace(
        costs,
        prefill_flops=_add_at(costs.prefill_flops, -1, head_flops * prefill.head_tokens),
        decode_flops=_add_at(costs.decode_flops, -1, head_flops * decode.head_tokens),
        weights_nbytes=_add_at(weights, -1, head_nbytes),
        activation_nbytes=_add_at(
            costs.activation_nbytes, -1, architecture.activation_nbytes(0, precision, head_tokens=sessions)
        ),
    )


def _add_at(values: tuple[float, ...], index: int, amount: float) -> tuple[float, ...]:
    changed = list(values)
    changed[index] += amount
    return tuple(changed)
