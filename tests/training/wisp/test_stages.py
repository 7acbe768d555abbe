"""The stages that trace drafts and train on them, on made-up records."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.core.scores import LOGIT_SCORES
from serving.engines.models import Checkpoint
from serving.messages import DraftDecision, GenerationRequest
from serving.policy.policy import Policy
from serving.policy.slots.early_exit import LayerwiseExit
from training.fitting.trainer import Trainer
from training.wisp import trace
from training.wisp.mlp import MLP
from training.wisp.samples import TokenSamples
from training.wisp.stages import describe_token_trace, record_token_trace, train_rejection_predictor

PAIR: dict[str, Any] = {"device": Checkpoint(hub="a/small"), "cloud": Checkpoint(hub="a/large")}
REST: dict[str, Any] = {
    "progress": lambda *_: None, "workload": SimpleNamespace(dataset=SimpleNamespace(name="made up")), "k": 2,
    "early_exit": LayerwiseExit(), "decoding": None,
}  # fmt: skip


def test_every_window_is_verified_and_recorded_with_its_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Policy] = []

    def play(policy: Policy, *_: Any, **_more: Any) -> Any:
        played.append(policy)
        return {
            "a": SimpleNamespace(
                draft_decisions=[DraftDecision("a", 1, (1, 2), dict.fromkeys(LOGIT_SCORES, (0.5, 0.25)), 1)]
            )
        }

    monkeypatch.setattr("serving.deployment.model_loading.load_models", lambda *_: SimpleNamespace(tokenizer=None))
    monkeypatch.setattr(
        "serving.deployment.model_loading.make_queries",
        lambda *_: [SimpleNamespace(request=GenerationRequest("a", (1,), 4))],
    )
    monkeypatch.setattr("serving.outcomes.offline.run_untimed", play)
    record_token_trace(tmp_path, **PAIR, **REST)
    assert set(played[0].requested_scores) == set(LOGIT_SCORES)
    assert played[0].lossless
    assert played[0].early_exit.layer_exit == LayerwiseExit().layer_exit
    assert trace.read(tmp_path).outcome.tolist() == [trace.ACCEPTED, trace.REJECTED]
    assert trace.made_from(tmp_path)["k"] == "2"


def test_a_trace_of_other_prompts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traced: Path, one_thread: Trainer
) -> None:
    monkeypatch.setattr("serving.deployment.model_loading.load_models", lambda *_: SimpleNamespace(tokenizer=None))
    monkeypatch.setattr(
        "serving.deployment.model_loading.make_queries",
        lambda *_: [SimpleNamespace(request=GenerationRequest("r00000", (1,), 4))],
    )
    with pytest.raises(ValueError, match="made from other prompts than this workload's; profile again"):
        train_rejection_predictor(
            tmp_path, token_trace=traced, **PAIR, **REST, mlp=MLP(hidden_sizes=(4,), epochs=1), trainer=one_thread
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("part", "group", "rows"),
    [("counts", "sample", 4), ("acceptance", "confidence", 10), ("correlation", "correlation", 4)],
)
def test_a_trace_is_described(tmp_path: Path, traced: Path, part: Any, group: str, rows: int) -> None:
    describe_token_trace(tmp_path, token_trace=traced, statistic=part)
    found = json.loads((tmp_path / "rows.json").read_text())
    assert len(found[group]) == rows
    if part == "acceptance":
        first, last = (sum(found[group][f"tenth {i}"]["acceptance_rate"]) for i in (1, 10))
        assert last > first


@pytest.fixture(scope="module")
def traced(learnable: TokenSamples, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    windows = learnable.windows
    chunks: dict[str, list[DraftDecision]] = {}
    for i, session in enumerate(windows.session.tolist()):
        rows = windows.features[windows.window_index == i]
        scores = {name: tuple(rows[:, j].tolist()) for j, name in enumerate(LOGIT_SCORES)}
        chunks.setdefault(session, []).append(
            DraftDecision(session, 0, (1,) * len(rows), scores, int(windows.accepted_lengths[i]))
        )
    trace.write(folder, trace.trace_from_decisions(chunks), {"k": "4"})
    return folder
