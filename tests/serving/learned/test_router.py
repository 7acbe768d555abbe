"""The router: the side of its threshold, its shares, its artifact."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.core.scores import ThresholdSide
from serving.learned.mlp import sigmoid
from serving.learned.router import HEADER, WEIGHTS, TokenRouter, load
from tests.support.learned_models import random_router

SCORES = tuple(i / 10 for i in range(10))


@pytest.mark.parametrize(("side", "score", "routed"), [
    ("below", 0.39, True), ("below", 0.4, False), ("below", 0.41, False),
    ("above", 0.39, False), ("above", 0.4, False), ("above", 0.41, True),
])  # fmt: skip
def test_the_side_decides_which_scores_are_routed(side: ThresholdSide, score: float, routed: bool) -> None:
    assert random_router(4, 0.4, side).routes(score) is routed
    assert random_router(4, 0.9, side).routes(score, 0.4) is routed


@pytest.mark.parametrize("side", ["below", "above"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 1.0])
def test_a_share_of_the_held_out_scores_is_routed(side: ThresholdSide, share: float) -> None:
    router = random_router(4, side=side, heldout_scores=(0.05, *SCORES[1:]))
    at = router.threshold_for(share)
    assert sum(router.routes(score, at) for score in router.heldout_scores) == round(10 * share)


@pytest.mark.parametrize("side", ["below", "above"])
def test_a_share_of_zero_routes_nothing(side: ThresholdSide) -> None:
    router = random_router(4, side=side, heldout_scores=SCORES)
    assert not any(router.routes(score, router.threshold_for(0.0)) for score in (0.0, 1e-9, 0.5, 1.0))


@pytest.mark.parametrize("side", ["below", "above"])
def test_a_share_of_one_routes_scores_at_the_ends_of_their_range(side: ThresholdSide) -> None:
    router = random_router(4, side=side, heldout_scores=SCORES)
    assert all(router.routes(score, router.threshold_for(1.0)) for score in (0.0, 0.5, 1.0))


def test_small_probabilities_are_not_rounded_to_zero() -> None:
    assert sigmoid(-38.0) == pytest.approx(3.139e-17, rel=1e-3)
    assert sigmoid(-1e4) > 0
    logits = [-45 + i / 64 for i in range(64 * 20)]
    found = [sigmoid(logit) for logit in logits]
    assert found == sorted(found)


def test_a_router_that_kept_no_scores_has_its_own_threshold_only() -> None:
    assert random_router(4, 0.3).threshold_for(0.9) == 0.3


@pytest.mark.parametrize("side", ["below", "above"])
def test_a_saved_router_is_loaded(tmp_path: Path, side: ThresholdSide) -> None:
    router = random_router(
        8, 0.7, side, heldout_scores=(0.1, 0.9), family="co_llm", metrics={"auc": 0.9}, made_from={"pair": "a + b"}
    )
    router.save(tmp_path)
    found = load(tmp_path)
    assert repr(found) == repr(router) == f"co_llm router linear {router.digest[:12]}, {side} 0.7"
    assert json.loads((tmp_path / HEADER).read_text())["side"] == side
    x = np.linspace(-1, 1, 8)
    assert found.probability(x) == router.probability(x)
    assert (found.heldout_scores, found.metrics, found.made_from) == (
        router.heldout_scores,
        router.metrics,
        router.made_from,
    )


def test_a_reversed_side_is_another_router(tmp_path: Path) -> None:
    """The direction is read from the artifact, not known by the family."""
    random_router(8, 0.7, "below", family="citer").save(tmp_path)
    header = json.loads((tmp_path / HEADER).read_text())
    (tmp_path / HEADER).write_text(json.dumps(header | {"side": "above"}))
    assert [load(tmp_path).routes(score) for score in (0.6, 0.8)] == [False, True]


@pytest.mark.parametrize(("change", "said"), [
    ({"side": "left"}, "'left'"), ({"threshold": 1.5}, "1.5"), ({"version": 9}, "version 9"),
    ({"sha256": "0" * 64}, "was written for 000000000000"), ({"layers": [1, 1]}, "1.weight"),
])  # fmt: skip
def test_a_damaged_router_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    random_router(8).save(tmp_path)
    header = json.loads((tmp_path / HEADER).read_text())
    (tmp_path / HEADER).write_text(json.dumps(header | change))
    with pytest.raises(ValueError, match=r"router\.json cannot be read .*build it again") as refused:
        load(tmp_path)
    assert said in str(refused.value)


def test_a_missing_or_truncated_router_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no .*router\.json"):
        load(tmp_path)
    random_router(8).save(tmp_path)
    (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:40])
    with pytest.raises(ValueError, match="cannot be read"):
        load(tmp_path)


def test_a_routing_threshold_out_of_range_is_refused() -> None:
    router: TokenRouter = random_router(4)
    with pytest.raises(ValueError, match="scores lie between 0 and 1"):
        replace(router, threshold=-0.1)
