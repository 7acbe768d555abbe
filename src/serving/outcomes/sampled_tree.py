"""Trees of drafts without models: which nodes are right is drawn, and the drafter's probabilities follow its scores."""

from collections.abc import Sequence

from serving.core.tree_growth import ROOT, Candidates, TreeGrowth
from serving.messages import DraftStopRule
from serving.outcomes.acceptance_draws import TOKENS_PER_POSITION, AcceptanceDraws, ScoreSource

_NO_RANK = 3
"""The target's token is not among the drafter's candidates."""


class SampledTree:
    """A tree that grows after `prefix_len` tokens, in the tokens of `SampledEngine`.

    A right node's children are the drafter's candidates at the position of the text; which of them the target writes is
    the drawn rank. Below a wrong node all are wrong, with the scores of drafts after an error.

    Args:
        thresholds: of `MatchProbabilities`.
        sampled: True if candidates are drawn, not taken by rank.
    """

    def __init__(
        self,
        draws: AcceptanceDraws,
        prefix_len: int,
        stop: DraftStopRule,
        scores: ScoreSource,
        thresholds: tuple[int, int, int],
        sampled: bool,
    ) -> None:
        self._draws, self._prefix_len, self._stop = draws, prefix_len, stop
        self._scores, self._thresholds = scores, thresholds
        self._right = {ROOT}
        self.growth = TreeGrowth(stop, (), sampled)
        while self.growth.frontier:
            self._add_level(self.growth.frontier)

    def _add_level(self, frontier: Sequence[int]) -> None:
        found: list[Candidates] = []
        ended: list[bool] = []
        for node in frontier:
            low = bool(self._stop.score) and self._score(node, self._stop.score) < self._stop.threshold
            dropped = low and not self._stop.keep_last and not (node == ROOT and self._stop.min_tokens)
            found.append([] if dropped else self._candidates(node, self._target_rank(node)))
            ended.append(low)
        first = len(self.growth.tokens)
        self.growth.extend(found, ended)
        for node in range(first, len(self.growth.tokens)):
            if self.growth.tokens[node] % TOKENS_PER_POSITION == 0:
                self._right.add(node)

    def _candidates(self, node: int, target_rank: int) -> Candidates:
        position = self._prefix_len + self._depth(node)
        token = TOKENS_PER_POSITION * position
        probabilities = rank_probabilities(
            self._score(node, "confidence"), self._score(node, "margin"), self.growth.num_children(node)
        )
        return [(token if rank == target_rank else token + 1, p) for rank, p in enumerate(probabilities)]

    def _target_rank(self, node: int) -> int:
        if node not in self._right:
            return _NO_RANK
        position = self._prefix_len + self._depth(node)
        return self._scores.target_rank(self._draws, position, 0, self._num_accepted(position))

    def _score(self, node: int, name: str) -> float:
        position = self._prefix_len + self._depth(node)
        if node in self._right:
            return self._scores.score(self._draws, position, 0, self._num_accepted(position), name)
        return self._scores.score(self._draws, position - 1, 1, 0, name)

    def _num_accepted(self, position: int) -> int:
        return self._draws.num_accepted(position, 1, self._thresholds)

    def _depth(self, node: int) -> int:
        return len(self.growth.path(node))


def rank_probabilities(confidence: float, margin: float, count: int) -> list[float]:
    """The drafter's probabilities of its `count` likeliest tokens: two are known, the others share what is left, each
    with half of it but no more than the one before.
    """
    found = [confidence, max(0.0, confidence - margin)][:count]
    rest = max(0.0, 1.0 - sum(found))
    while len(found) < count:
        found.append(min(found[-1], rest / 2))
        rest -= found[-1]
    return found
