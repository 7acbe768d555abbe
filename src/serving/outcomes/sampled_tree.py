"""Trees of drafts without models: which nodes are right is drawn, and the drafter's probabilities follow its scores."""

from collections.abc import Sequence

from serving.core.scores import NUM_TOP_CANDIDATES
from serving.core.tree_growth import ROOT, Candidates, TreeGrowth
from serving.messages import DraftStopRule
from serving.outcomes.acceptance_draws import TOKENS_PER_POSITION, AcceptanceDraws, ScoreSource


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

    def num_accepted(self) -> int:
        """How many of the nodes that are kept are right: those of one path from the root."""
        return sum(node in self._right for node in self.growth.kept())

    def _add_level(self, frontier: Sequence[int]) -> None:
        found: list[Candidates] = []
        ended: list[bool] = []
        position, growth = self._prefix_len + len(self.growth.levels), self.growth
        wrong: tuple[Candidates, bool] | None = None
        for node in frontier:
            if node in self._right:
                candidates, low = self._right_node(position, growth.num_children(node), node == ROOT)
            else:  # all of a level are alike, but for how many children they have
                if wrong is None or len(wrong[0]) < growth.num_children(node):
                    wrong = self._wrong_node(position, growth.num_children(node))
                candidates, low = wrong
            found.append(candidates)
            ended.append(low)
        first = len(growth.tokens)
        growth.extend(found, ended)
        for node in range(first, len(growth.tokens)):
            if growth.tokens[node] % TOKENS_PER_POSITION == 0:
                self._right.add(node)

    def _right_node(self, position: int, num_children: int, is_root: bool) -> tuple[Candidates, bool]:
        """The children of the right node, and True if its draft ends by its score."""
        run = self._draws.num_accepted(position, 1, self._thresholds)
        score, draws, stop = self._scores.score, self._draws, self._stop
        low = bool(stop.score) and score(draws, position, 0, run, stop.score) < stop.threshold
        if low and not stop.keep_last and not (is_root and stop.min_tokens):
            return [], low
        confidence, margin = (score(draws, position, 0, run, name) for name in ("confidence", "margin"))
        rank = self._scores.target_rank(draws, position, 0, run)
        return _candidates(position, rank, rank_probabilities(confidence, margin, num_children)), low

    def _wrong_node(self, position: int, num_children: int) -> tuple[Candidates, bool]:
        """As `_right_node`, for each node below a wrong one or that is wrong."""
        score, draws, stop = self._scores.score, self._draws, self._stop
        low = bool(stop.score) and score(draws, position - 1, 1, 0, stop.score) < stop.threshold
        if low and not stop.keep_last:
            return [], low
        confidence, margin = (score(draws, position - 1, 1, 0, name) for name in ("confidence", "margin"))
        return _candidates(position, NUM_TOP_CANDIDATES, rank_probabilities(confidence, margin, num_children)), low


def _candidates(position: int, target_rank: int, probabilities: Sequence[float]) -> Candidates:
    """The fourth and later candidates are wrong: how often they are right was not recorded."""
    token = TOKENS_PER_POSITION * position
    if target_rank >= NUM_TOP_CANDIDATES:
        return [(token + 1, p) for p in probabilities]
    return [(token if rank == target_rank else token + 1, p) for rank, p in enumerate(probabilities)]


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
