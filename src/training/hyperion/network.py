"""The dispatcher's network while it is trained, and as the layers that are served."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from serving.learned.dispatch_network import NODE, ROUNDS, Dispatcher, shapes

SURENESS = 2.0
"""How much the log-odds of an untrained network fall with a task's mean time that a node needs more."""
LACKING = 6.0
"""And how much where a node has no memory for the task."""
NEARLY = 0.1
"""What its states count in its scores, of what they would by torch's own initialisation."""


class Network(nn.Module):
    """Scores of nodes, as `serving.learned.dispatch_network.Dispatcher` computes them, for many graphs at once."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(
            {name: nn.Linear(inputs, outputs) for name, (outputs, inputs) in shapes(hidden).items()}
        )
        self._begin(hidden)

    @torch.no_grad()
    def _begin(self, hidden: int) -> None:
        """As nearly the rule that of nodes with memory the one is best which completes the task first: training
        improves on that.
        """
        score = self.layers["score"]
        assert isinstance(score, nn.Linear)
        score.weight *= NEARLY
        score.weight[0, hidden:] = 0.0
        score.weight[0, hidden + NODE.index("completion")] = -SURENESS
        score.weight[0, hidden + NODE.index("enough")] = LACKING

    def forward(self, task: Tensor, nodes: Tensor, there: Tensor) -> Tensor:
        """Scores (graphs, K), minus infinity where there is no node.

        `task` is (graphs, features), `nodes` (graphs, K, features), `there` (graphs, K) whether there is such a node.
        """
        share = (there / there.sum(1, keepdim=True))[..., None]
        t, n = self._through("task", task), self._through("node", nodes)
        for i in range(1, ROUNDS + 1):
            t = self._through(f"task_{i}", torch.cat((t, (n * share).sum(1)), -1))
            n = self._through(f"node_{i}", torch.cat((n, t[:, None].expand_as(n)), -1))
        scores: Tensor = self.layers["score"](torch.cat((n, nodes), -1))[..., 0]
        return scores.masked_fill(~there, -torch.inf)

    def _through(self, name: str, x: Tensor) -> Tensor:
        return torch.relu(self.layers[name](x))

    def dispatcher(self) -> Dispatcher:
        """As it is served: a copy of the weights."""
        found = {}
        for name, layer in self.layers.items():
            assert isinstance(layer, nn.Linear)
            weight, bias = (each.detach().cpu().float().numpy().copy() for each in (layer.weight, layer.bias))
            found[name] = weight, bias
        return Dispatcher(found)
