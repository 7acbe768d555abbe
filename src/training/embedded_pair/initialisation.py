"""Initial weights of the pair: near to copying, which a short training does not find by itself.

With the usual small random weights the models memorise facts and never learn to copy from the prompt. Value and
output projections near a scaled identity follow Trockman and Kolter, Mimetic Initialization of Self-Attention Layers
(2023); first-layer heads that look a fixed number of tokens back give induction heads what they are made from
(Olsson et al., In-context Learning and Induction Heads, 2022).
"""

import math

import torch
from torch import Tensor

from training.embedded_pair.llama import DecoderLayer, Llama, rope_frequencies
from training.embedded_pair.model_config import InitConfig


@torch.no_grad()
def initialise(model: Llama, init: InitConfig, seed: int) -> None:
    """Fills `model` with random weights of `seed`. Raises ValueError if it has too few heads or layers for `init`."""
    _check_sizes(model.sizes.heads, model.sizes.layers, init)
    draw = torch.Generator().manual_seed(seed)
    d = model.sizes.hidden_size
    common = torch.randn(d, generator=draw)
    common /= common.norm()
    model.embedding.normal_(std=d**-0.5, generator=draw)
    model.embedding.add_(torch.outer(init.shared_norm - model.embedding @ common, common))
    for number, block in enumerate(model.layers()):
        _init_random(block, model.sizes.layers, draw)
        _init_copying(block, init.copy_scale * (init.deep_copy_factor if number > 1 else 1.0), common, draw)
    for head, distance in enumerate(init.look_back_offsets):
        _init_look_back_head(model, head, distance, common, init)
    if init.induction_score:
        _init_induction_heads(model, init)


def _check_sizes(heads: int, layers: int, init: InitConfig) -> None:
    if init.induction_score and layers < 2:
        raise ValueError("init.induction_score takes two layers, and the model has one; give 0")
    named = len(init.look_back_offsets)
    if named > heads:
        raise ValueError(f"init.look_back_offsets names {named} heads, a layer has {heads}; name fewer")
    if init.induction_score and 2 * named > heads:
        raise ValueError(
            f"init.induction_score takes as many heads again as look_back_offsets names (={named}), "
            f"a layer has {heads}; name fewer"
        )


def _init_random(block: DecoderLayer, layers: int, generator: torch.Generator) -> None:
    d, ff = block.out.shape[0], block.down.shape[1]
    block.qkv.normal_(std=0.6 * d**-0.5, generator=generator)
    block.out.normal_(std=(d * 2 * layers) ** -0.5, generator=generator)
    block.gate_up.normal_(std=0.6 * d**-0.5, generator=generator)
    block.down.normal_(std=(ff * 2 * layers) ** -0.5, generator=generator)


def _init_copying(block: DecoderLayer, scale: float, shared_direction: Tensor, generator: torch.Generator) -> None:
    """Output x value near the identity, except on the shared direction, which would drown the rest."""
    d = block.out.shape[0]
    turn = _project_out(_random_orthogonal(d, generator), shared_direction)
    block.qkv[2] = turn + 0.1 * d**-0.5 * torch.randn(d, d, generator=generator)
    block.out.mul_(0.3).add_(turn.T, alpha=scale)


def _init_look_back_head(model: Llama, head: int, offset: int, shared_direction: Tensor, init: InitConfig) -> None:
    """All keys equal, and queries turned back by `offset`: the score peaks there whatever the tokens are."""
    block, size = model.layers()[0], model.sizes.head_dim
    turns = rope_frequencies(model.sizes)
    # Fast turns tell neighbours apart, slow ones only add noise: weigh each by its speed.
    pair = turns.sqrt()
    cos, sin = (turns * offset).cos(), (turns * offset).sin()
    drop = 2 * (turns * (1 - turns.cos())).sum() / size**0.5
    seen = len(shared_direction) * init.shared_norm**2 / (1 + init.shared_norm**2)
    gain = math.sqrt(init.sharpness / (float(drop) * seen))
    rows = slice(head * size, (head + 1) * size)
    query, key = torch.cat((pair * (cos + sin), pair * (cos - sin))), torch.cat((pair, pair))
    block.qkv[0, rows] = 0.05 * block.qkv[0, rows] + gain * torch.outer(query, shared_direction)
    block.qkv[1, rows] = 0.05 * block.qkv[1, rows] + gain * torch.outer(key, shared_direction)


def _init_induction_heads(model: Llama, init: InitConfig) -> None:
    """First-layer heads write what they read into directions of their own, where second-layer keys look for it.

    Only the slowly turning half of a head's numbers compares: the others are turned away at a distance.
    """
    first, second = model.layers()[:2]
    size, tellers = model.sizes.head_dim, len(init.look_back_offsets)
    slow = torch.cat((torch.arange(size // 4, size // 2), torch.arange(3 * size // 4, size)))
    # The directions of as many other heads: at right angles to those that are read, so that neither drowns the other.
    read = first.qkv[2].clone()
    written = read.roll(-tellers * size, 0)
    first.out[:, : tellers * size] = init.copy_scale * written[: tellers * size].T
    gain = _induction_gain(init, size, model.sizes.hidden_size)
    for head in range(model.sizes.heads):
        turn, teller = divmod(head, tellers)
        told = teller * size + (turn % 2) * (size // 2) + torch.arange(size // 2)
        second.qkv[0, head * size + slow] = gain * read[told]
        second.qkv[1, head * size + slow] = gain * written[told]
    # What is found must outweigh the present token, which tied embeddings alone would predict again.
    second.out.mul_(2)


def _induction_gain(init: InitConfig, head_dim: int, hidden_size: int) -> float:
    """Scale of queries and keys at which a match scores about `init.induction_score`."""
    told = init.copy_scale * math.sqrt(hidden_size / (1 + init.shared_norm**2))
    norm = math.sqrt(
        hidden_size / (1 + init.shared_norm**2 + len(init.look_back_offsets) * told**2 * head_dim / hidden_size)
    )
    return math.sqrt(init.induction_score * math.sqrt(head_dim) / (norm**2 * told * head_dim / 2 / hidden_size))


def _project_out(matrix: Tensor, direction: Tensor) -> Tensor:
    return matrix - torch.outer(matrix @ direction, direction)


def _random_orthogonal(d: int, generator: torch.Generator) -> Tensor:
    turn: Tensor = torch.linalg.qr(torch.randn(d, d, generator=generator))[0]
    return turn
