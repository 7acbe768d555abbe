"""How the pair's weights begin: near to copying, because that is what a short training does not find by itself.

With the usual small random weights the models memorise facts and never learn to copy from the prompt. Value and
output projections near a scaled identity follow Trockman and Kolter, Mimetic Initialization of Self-Attention Layers
(2023); first-layer heads that look a fixed number of tokens back give induction heads what they are made from
(Olsson et al., In-context Learning and Induction Heads, 2022).

Where the weights of a model begin; `training.embedded_pair.initialisation` makes them so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from training.embedded_pair.llama import Block, Llama, frequencies


@dataclass(frozen=True)
class Start:
    """Where the weights begin; the defaults copy and nothing more."""

    copying: float = 0.5
    """Scale of the identity that output x value is near to."""
    deeper: float = 1.0
    """Factor on `copying` after the second layer: there it adds every token to every other, which drowns induction."""
    shared: float = 1.0
    """Length of a direction that all embeddings have in common; an embedding itself has length 1."""
    look_back: tuple[int, ...] = ()
    """How many tokens back head i of the first layer begins by looking; heads not named look nowhere."""
    sharpness: float = 3.0
    """How much higher the score of that token begins than those of its neighbours."""
    induction: float = 0.0
    """Score that the second layer's heads begin by giving to a token which follows an earlier copy of the present one
    (by as many places as a first-layer head looks back); 0: none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "look_back", tuple(self.look_back))
        if min(self.look_back, default=1) < 1:
            raise ValueError(f"start.look_back must be whole numbers of 1 or more, got {list(self.look_back)}")
        if self.look_back and not self.shared:
            raise ValueError("start.look_back needs start.shared above 0: such heads see only what all tokens share")
        if self.induction and not (self.look_back and self.copying):
            raise ValueError("start.induction needs start.look_back and start.copying: it finds what they brought")
        if min(self.copying, self.deeper, self.shared, self.sharpness, self.induction) < 0:
            raise ValueError(f"start's scales must be 0 or more, got {self}")


COPYING = Start()


@torch.no_grad()
def initialise(model: Llama, start: Start, seed: int) -> None:
    """Fill `model` with weights drawn from `seed`; raises ValueError when it has too few heads for `start`."""
    _check_heads(model.sizes.heads, start)
    draw = torch.Generator().manual_seed(seed)
    d = model.sizes.hidden_size
    common = torch.randn(d, generator=draw)
    common /= common.norm()
    model.embedding.normal_(std=d**-0.5, generator=draw)
    model.embedding.add_(torch.outer(start.shared - model.embedding @ common, common))
    for number, block in enumerate(model.layers()):
        _small(block, model.sizes.layers, draw)
        _copy(block, start.copying * (start.deeper if number > 1 else 1.0), common, draw)
    for head, distance in enumerate(start.look_back):
        _look_back(model, head, distance, common, start)
    if start.induction:
        _induce(model, start)


def _check_heads(heads: int, start: Start) -> None:
    named = len(start.look_back)
    if named > heads:
        raise ValueError(f"start.look_back names {named} heads, a layer has {heads}; name fewer")
    if start.induction and 2 * named > heads:
        raise ValueError(
            f"start.induction takes as many heads again as look_back names (={named}), a layer has {heads}; name fewer"
        )


def _small(block: Block, layers: int, draw: torch.Generator) -> None:
    d, ff = block.out.shape[0], block.down.shape[1]
    block.qkv.normal_(std=0.6 * d**-0.5, generator=draw)
    block.out.normal_(std=(d * 2 * layers) ** -0.5, generator=draw)
    block.gate_up.normal_(std=0.6 * d**-0.5, generator=draw)
    block.down.normal_(std=(ff * 2 * layers) ** -0.5, generator=draw)


def _copy(block: Block, scale: float, common: Tensor, draw: torch.Generator) -> None:
    """Output x value near the identity, except on the shared direction, which would drown the rest."""
    d = block.out.shape[0]
    turn = _blind(_orthogonal(d, draw), common)
    block.qkv[2] = turn + 0.1 * d**-0.5 * torch.randn(d, d, generator=draw)
    block.out.mul_(0.3).add_(turn.T, alpha=scale)


def _look_back(model: Llama, head: int, distance: int, common: Tensor, start: Start) -> None:
    """Keys all alike and queries the same turned back by `distance`: the score peaks there whatever the tokens are."""
    block, size = model.layers()[0], model.sizes.head_size
    turns = frequencies(model.sizes)
    # Fast turns tell neighbours apart, slow ones only add noise: weigh each by its speed.
    pair = turns.sqrt()
    cos, sin = (turns * distance).cos(), (turns * distance).sin()
    drop = 2 * (turns * (1 - turns.cos())).sum() / size**0.5
    seen = len(common) * start.shared**2 / (1 + start.shared**2)
    gain = math.sqrt(start.sharpness / (float(drop) * seen))
    rows = slice(head * size, (head + 1) * size)
    query, key = torch.cat((pair * (cos + sin), pair * (cos - sin))), torch.cat((pair, pair))
    block.qkv[0, rows] = 0.05 * block.qkv[0, rows] + gain * torch.outer(query, common)
    block.qkv[1, rows] = 0.05 * block.qkv[1, rows] + gain * torch.outer(key, common)


def _induce(model: Llama, start: Start) -> None:
    """First-layer heads write what they read into directions of their own, where second-layer keys look for it.

    Only the slowly turning half of a head's numbers compares: the others are turned away at a distance.
    """
    first, second = model.layers()[:2]
    size, tellers = model.sizes.head_size, len(start.look_back)
    slow = torch.cat((torch.arange(size // 4, size // 2), torch.arange(3 * size // 4, size)))
    # The directions of as many other heads: at right angles to those that are read, so that neither drowns the other.
    read = first.qkv[2].clone()
    written = read.roll(-tellers * size, 0)
    first.out[:, : tellers * size] = start.copying * written[: tellers * size].T
    gain = _gain(start, size, model.sizes.hidden_size)
    for head in range(model.sizes.heads):
        turn, teller = divmod(head, tellers)
        told = teller * size + (turn % 2) * (size // 2) + torch.arange(size // 2)
        second.qkv[0, head * size + slow] = gain * read[told]
        second.qkv[1, head * size + slow] = gain * written[told]
    # What is found must outweigh the present token, which tied embeddings alone would predict again.
    second.out.mul_(2)


def _gain(start: Start, size: int, d: int) -> float:
    """Scale of queries and keys at which a match scores about `start.induction`."""
    told = start.copying * math.sqrt(d / (1 + start.shared**2))
    norm = math.sqrt(d / (1 + start.shared**2 + len(start.look_back) * told**2 * size / d))
    return math.sqrt(start.induction * math.sqrt(size) / (norm**2 * told * size / 2 / d))


def _blind(turn: Tensor, common: Tensor) -> Tensor:
    return turn - torch.outer(turn @ common, common)


def _orthogonal(d: int, draw: torch.Generator) -> Tensor:
    turn: Tensor = torch.linalg.qr(torch.randn(d, d, generator=draw))[0]
    return turn
