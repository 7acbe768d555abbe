"""The served predictor equals the trained network; a useless predictor is refused."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from serving.learned.rejection_predictor import RejectionPredictor, load
from serving.messages import DraftDecision
from serving.policy.slots.draft import RejectionAwareDraft
from serving.policy.slots.early_exit import NoEarlyExit
from serving.progress import silent
from training.fitting.mlp_network import build_network, folded_layers
from training.fitting.trainer import Trainer
from training.wisp import comparison, train
from training.wisp.mlp import MLP
from training.wisp.rules import CoverageRule
from training.wisp.samples import TokenSamples

SMALL = MLP(hidden_sizes=(16, 8), batch_norm=True, batch_size=64, learning_rate=0.01, epochs=12, patience=3)


def test_batch_norms_are_folded_away() -> None:
    torch.manual_seed(0)
    network = build_network((8, 6), batch_norm=True, dropout=0.2, num_features=4)
    for _ in range(5):
        network(torch.randn(32, 4) * 3 + 1)
    network.eval()
    rows = torch.randn(20, 4)
    served = RejectionPredictor(folded_layers(network), np.zeros(4, np.float32), np.ones(4, np.float32), 0.5)
    assert len(served.layers) == 3
    expected = network(rows)[:, 0].sigmoid().detach().numpy()
    assert served.probabilities(rows.numpy()) == pytest.approx(expected, abs=1e-6)


def test_training_learns_and_keeps_its_best_epoch(learnable: TokenSamples, one_thread: Trainer) -> None:
    split, said = learnable.split(0), list[str]()
    found = SMALL.fit(split.train, split.validation, 0, one_thread, lambda *each: said.append(each[2]))
    losses = found.metrics["validation_losses"]
    assert found.metrics["best_epoch"] == 1 + int(np.argmin(losses))
    assert len(said) == len(losses) <= SMALL.epochs
    chances = found.probabilities(split.validation.features).clip(1e-9, 1 - 1e-9)
    own = -np.where(split.validation.accepted, np.log(chances), np.log(1 - chances)).mean()
    assert own == pytest.approx(min(losses), abs=1e-4)
    assert min(losses) < losses[0]


def test_training_is_decided_by_its_seed(learnable: TokenSamples, one_thread: Trainer) -> None:
    split, brief = learnable.split(0), replace(SMALL, epochs=1, dropout=0.5)
    first, again, other = (brief.fit(split.train, split.validation, seed, one_thread).digest for seed in (0, 0, 1))
    assert first == again != other


def test_processes_of_zero_are_not_for_a_predictor(learnable: TokenSamples, one_thread: Trainer) -> None:
    """It stops by a validation set, which they do not read."""
    split, brief = learnable.split(0), replace(SMALL, epochs=2)
    zero = replace(one_thread, strategy="deepspeed", devices=2)
    found = [brief.fit(split.train, split.validation, 0, trainer).digest for trainer in (one_thread, zero)]
    assert found[0] == found[1]


def test_balanced_weights_make_rejected_tokens_count_as_much(learnable: TokenSamples, one_thread: Trainer) -> None:
    split = learnable.split(0)
    plain, balanced = (
        MLP(hidden_sizes=(8,), epochs=8, learning_rate=0.05, positive_weight=weight).fit(
            split.train, split.validation, 0, one_thread
        )
        for weight in ("none", "balanced")
    )
    assert balanced.probabilities(split.test.features).mean() < plain.probabilities(split.test.features).mean() - 0.1


@pytest.mark.parametrize(
    "wrong", [{"hidden_sizes": ()}, {"dropout": 1.0}, {"batch_size": 1}, {"patience": 0}, {"learning_rate": 0.0}]
)
def test_hyperparameters_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"mlp.{next(iter(wrong))}"):
        MLP(**wrong)


def served(
    monkeypatch: pytest.MonkeyPatch, found: RejectionPredictor, with_it: int, of: int = 6
) -> tuple[RejectionPredictor, dict[str, Any]]:
    """Two prompts whose windows have 4 of 8 drafts accepted without, and `with_it` of `of` with a predictor."""

    def play(policy: Any, models: Any, queries: Any, *_: Any) -> Any:
        drafted, accepted = (of, with_it) if isinstance(policy.draft, RejectionAwareDraft) else (8, 4)
        chunk = DraftDecision("s", 0, tuple(range(drafted)), {}, accepted)
        return {query.request.session: SimpleNamespace(draft_decisions=[chunk]) for query in queries}

    monkeypatch.setattr(train, "run_untimed", play)
    asked: Any = [SimpleNamespace(request=SimpleNamespace(session=name)) for name in "ab"]
    models: Any = None
    return train.evaluate_served(found, models, asked, 8, NoEarlyExit(), 0, silent)


@pytest.fixture(scope="module")
def trained(learnable: TokenSamples, one_thread: Trainer) -> RejectionPredictor:
    return train.train(learnable.split(0), SMALL, CoverageRule(0.9), 0, one_thread, silent)


def test_the_artifact_records_how_its_drafts_were_made(
    trained: RejectionPredictor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    better, figures = served(monkeypatch, trained, 5)
    assert better.acceptance == pytest.approx(5 / 6)
    assert figures["acceptance_rate"]["without"][0] == 0.5
    train.write(tmp_path, better)
    found = load(tmp_path)
    assert found.threshold_rule == "CoverageRule(target=0.9)"
    assert found.metrics["test"]["coverage"] > 0.7
    assert {point["rule"] for point in found.metrics["operating_points"]} > {
        "BalancedAccuracyRule()",
        "CoverageRule(target=0.92)",
    }


def test_a_predictor_that_is_worse_than_none_is_refused(
    trained: RejectionPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"no better than none: 50\.0% .* 50\.0% without it, on 2 held-out prompts"):
        served(monkeypatch, trained, 3)


def test_a_predictor_that_stops_too_soon_is_refused(
    trained: RejectionPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of 3 tokens in place of 5, and of 4."""
    with pytest.raises(ValueError, match=r"stops too soon: a round yields 60% of the tokens .* 75% are wanted"):
        served(monkeypatch, trained, 2, of=2)
    assert served(monkeypatch, trained, 3, of=3)[0].acceptance == 1.0


def test_acceptance_at_a_threshold_is_of_all_sent_tokens(trained: RejectionPredictor, learnable: TokenSamples) -> None:
    windows = learnable.split(0).test.windows
    for point in trained.metrics["operating_points"]:
        sent = windows.truncated_lengths(trained.probabilities(windows.features), point["threshold"])
        accepted = np.minimum(sent, windows.accepted_lengths)
        assert point["acceptance_rate"] == pytest.approx(accepted.sum() / sent.sum())


def test_families_are_judged_on_one_test_part(learnable: TokenSamples, one_thread: Trainer) -> None:
    split = learnable.split(0)
    found = comparison.chosen_threshold_rows((SMALL,), split, CoverageRule(0.9), 0, one_thread, silent)
    row = found["chosen"]["MLP"]
    assert row["tp"] + row["fn"] == split.test.accepted.sum()  # type: ignore[operator]
    assert np.mean(row["recall"]) == pytest.approx(row["tp"] / row["accepted"])  # type: ignore[arg-type,operator]
    assert found["at 0.5"]["MLP"]["threshold"] == 0.5
