"""The dispatcher's network while it is trained, and as the layers that are served."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from serving.learned.dispatch_network import MESSAGE_ROUNDS, NODE_FEATURES, DispatchNetwork, layer_shapes

COMPLETION_WEIGHT = 2.0
"""How much the log-odds of an untrained network fall with a task's mean time that a node needs more."""
MEMORY_WEIGHT = 6.0
"""And how much where a node has no memory for the task."""
INIT_SCALE = 0.1
"""What its states count in its scores, of what they would by torch's own initialisation."""


class TrainableDispatchNetwork(nn.Module):
    """Scores of nodes, as `serving.learned.dispatch_network.DispatchNetwork` computes them, for many graphs at once."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(
            {name: nn.Linear(inputs, outputs) for name, (outputs, inputs) in layer_shapes(hidden).items()}
        )
        self._init_score_layer(hidden)

    @torch.no_grad()
    def _init_score_layer(self, hidden: int) -> None:
        """As nearly the rule that of nodes with memory the one is best which completes the task first: training
        improves on that.
        """
        score = self.layers["score"]
        assert isinstance(score, nn.Linear)
        score.weight *= INIT_SCALE
        score.weight[0, hidden:] = 0.0
        score.weight[0, hidden + NODE_FEATURES.index("completion")] = -COMPLETION_WEIGHT
        score.weight[0, hidden + NODE_FEATURES.index("enough")] = MEMORY_WEIGHT

    def forward(self, task: Tensor, nodes: Tensor, node_mask: Tensor) -> Tensor:
        """Scores (graphs, K), minus infinity where there is no node.

        `task` is (graphs, features), `nodes` (graphs, K, features), `node_mask` (graphs, K) whether there is such a
        node.
        """
        share = (node_mask / node_mask.sum(1, keepdim=True))[..., None]
        t, n = self._linear_relu("task", task), self._linear_relu("node", nodes)
        for i in range(1, MESSAGE_ROUNDS + 1):
            t = self._linear_relu(f"task_{i}", torch.cat((t, (n * share).sum(1)), -1))
            n = self._linear_relu(f"node_{i}", torch.cat((n, t[:, None].expand_as(n)), -1))
        scores: Tensor = self.layers["score"](torch.cat((n, nodes), -1))[..., 0]
        return scores.masked_fill(~node_mask, -torch.inf)

    def _linear_relu(self, name: str, x: Tensor) -> Tensor:
        return torch.relu(self.layers[name](x))

    def export(self) -> DispatchNetwork:
        """As it is served: a copy of the weights."""
        found = {}
        for name, layer in self.layers.items():
            assert isinstance(layer, nn.Linear)
            weight, bias = (each.detach().cpu().float().numpy().copy() for each in (layer.weight, layer.bias))
            found[name] = weight, bias
        return DispatchNetwork(found)
