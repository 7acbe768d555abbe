"""Profiling stages on made-up records, some without a draft."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.engines.models import Checkpoint
from serving.learned.thresholds import load
from serving.messages import DraftDecision, GenerationRequest
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.early_exit import LayerwiseExit
from training.synera.stages import profile_thresholds

SCORES = {"confidence": (0.5, 0.5), "importance": (0.2, 0.4)}


def profiled(monkeypatch: pytest.MonkeyPatch, out: Path, **chunks: list[DraftDecision]) -> None:
    asked = [SimpleNamespace(request=GenerationRequest(name, (1,), 4)) for name in chunks]
    records = {name: SimpleNamespace(draft_decisions=found) for name, found in chunks.items()}
    monkeypatch.setattr("serving.deployment.model_loading.load_models", lambda *_: SimpleNamespace(tokenizer=None))
    monkeypatch.setattr("serving.deployment.model_loading.make_queries", lambda *_: asked)
    monkeypatch.setattr("serving.outcomes.offline.run_untimed", lambda *_, **_more: records)
    checkpoint = Checkpoint(hub="a/b")
    workload: Any = SimpleNamespace(dataset=SimpleNamespace(name="made up"))
    decoding: Any = None
    profile_thresholds(
        out, progress=lambda *_: None, device=checkpoint, cloud=checkpoint, workload=workload, draft=WindowDraft(2),
        early_exit=LayerwiseExit(), decoding=decoding, seed=0,
    )  # fmt: skip


def test_openings_are_those_of_each_answers_first_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sure = DraftDecision("a", 1, (1, 2), SCORES | {"confidence": (1.0, 1.0)}, 2)
    unsure = DraftDecision("a", 4, (1, 2), SCORES, 0)
    profiled(monkeypatch, tmp_path, a=[sure, unsure], b=[unsure])
    thresholds = load(tmp_path)
    assert thresholds.first_chunk_perplexities == pytest.approx((1.0, 2.0))
    assert thresholds.confidence == pytest.approx((1.0, 0.5, 0.5))
    assert thresholds.importance == pytest.approx((0.3, 0.3, 0.3))
    assert "EarlyExitRule(score='margin'" in thresholds.made_from["layer-wise exit"]


def test_an_answer_without_a_draft_has_no_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that drops unsure tokens may draft nothing, all the way."""
    profiled(monkeypatch, tmp_path, a=[], b=[DraftDecision("b", 1, (1, 2), SCORES, 0)])
    assert load(tmp_path).first_chunk_perplexities == pytest.approx((2.0,))


def test_without_any_draft_there_is_nothing_to_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="not one draft was made on the profiling prompts; raise workload"):
        profiled(monkeypatch, tmp_path, a=[], b=[])


def test_a_profile_without_an_accepted_draft_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsure = DraftDecision("a", 1, (1, 2), SCORES, 0)
    (tmp_path / "none").mkdir()
    (tmp_path / "one").mkdir()
    profiled(monkeypatch, tmp_path / "none", a=[unsure, unsure])
    note = load(tmp_path / "none").note
    assert note is not None
    assert "not one of 2 drafts was accepted as a whole (alpha 0.00; a/b + a/b, made up, 1 prompts): c_th is 1" in note
    assert "Take a device model that agrees" in note
    profiled(monkeypatch, tmp_path / "one", a=[unsure, DraftDecision("a", 4, (1, 2), SCORES, 2)])
    assert load(tmp_path / "one").note is None


def test_every_reading_of_importance_is_profiled_with_its_auc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The column sum ranks the cut draft first of three, the mean last; two of them are full."""

    def draft(at: int, tokens: int, accepted: int, total: float, mean: float) -> DraftDecision:
        scores = {"confidence": (0.5,), "importance": (total,), "importance_mean": (mean,)}
        return DraftDecision("a", at, tuple(range(tokens)), scores, accepted)

    profiled(monkeypatch, tmp_path, a=[draft(1, 2, 0, 0.9, 0.2), draft(4, 2, 2, 0.4, 0.1), draft(8, 1, 1, 0.3, 0.7)])
    found = load(tmp_path)
    assert found.importance_auc == {"importance": 1.0, "importance_mean": 0.5}
    assert found.importance_auc_of_full_chunks == {"importance": 1.0, "importance_mean": 1.0}
    assert found.best_importance == "importance"
    assert found.importance_by("importance_mean") == (0.2, 0.1, 0.7)
