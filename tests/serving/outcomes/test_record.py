"""TraceRecorder: resuming, saving and loading, and the errors of damaged traces."""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from serving.core.decoding import Decoding
from serving.deployment.queries import LoadedModels
from serving.engines.models import Checkpoint
from serving.engines.torch.engine import TorchEngine
from serving.messages import DraftWork, EarlyExitRule, ForwardWork
from serving.outcomes import fitted, offline, replayed, teacher_forcing
from serving.outcomes.record import TraceRecorder
from serving.outcomes.trace import HEADER_FILE, TENSORS_FILE, OutcomeTrace, TraceTables, load_trace, save_trace
from serving.policy.slots.draft import TreeDraft
from serving.policy.slots.early_exit import LayerwiseExit, NoEarlyExit
from serving.runtimes.emulated import simulate
from serving.stages import fit_outcomes, record_outcomes
from serving.workload.metrics import ExactMatch, Metric
from serving.workload.prompt import Prompt
from serving.workload.workload import Workload
from tests.serving.outcomes.made_up_trace import trace
from tests.serving.outcomes.noisy_pair import pair, questions
from tests.support.fake_setup import setup
from tests.support.policies import policy
from tests.support.tiny_models import save_checkpoints


def assert_equal(a: OutcomeTrace, b: OutcomeTrace) -> None:
    for field in fields(OutcomeTrace):
        if field.name != "tables":
            assert getattr(a, field.name) == getattr(b, field.name), field.name
    for field in fields(TraceTables):
        if field.name != "scores":
            assert np.array_equal(getattr(a.tables, field.name), getattr(b.tables, field.name)), field.name
    assert a.tables.scores.keys() == b.tables.scores.keys()
    for name, column in a.tables.scores.items():
        assert np.array_equal(column, b.tables.scores[name]), name


@dataclass(frozen=True)
class Where:
    name: ClassVar[str] = "questions about places"
    metrics: ClassVar[tuple[Metric, ...]] = (ExactMatch(),)
    measures_quality_of: ClassVar[Any] = "pretrained"

    def prompts(self) -> list[Prompt]:
        return [Prompt(f"p{i}", f"where is the {word} key", ("in a box",), "t") for i, word in enumerate(["red", "a"])]


def test_recorded_and_fitted_artifacts_open_in_a_simulation(tmp_path: Path) -> None:
    made = save_checkpoints(tmp_path)
    out, work = tmp_path / "out", tmp_path / "work"
    out.mkdir()
    told: list[tuple[int, int]] = []
    record_outcomes(
        out, progress=lambda done, total, _: told.append((done, total)), work=work, max_draft_len=3, seed=0,
        device=Checkpoint(path=made["device"]), cloud=Checkpoint(path=made["cloud"]), decoding=Decoding(),
            early_exit=NoEarlyExit(),
        workload=Workload(dataset=Where(), num_prompts=2, max_prompt_tokens=16, max_new_tokens=6),
    )  # fmt: skip
    assert told == [(1, 2), (2, 2)], "a session of a real model takes many seconds"
    read = replayed.load(out)
    assert (read.trace.device_layers, read.trace.cloud_layers, read.trace.tables.max_draft_len) == (2, 8, 3)
    assert read.trace.made_from["data"] == "questions about places, 2 prompts"
    assert read.tokenizer.decode(read.trace.sessions[0].token_ids[:3]) == "where is the"
    assert read.described.endswith("2 sessions, the target's own greedy text")


@pytest.mark.parametrize("own", [False, True])
def test_a_trace_records_its_early_exit_rule(own: bool, tmp_path: Path) -> None:
    """The policy's own, or without one that of the slot."""
    made, exits = save_checkpoints(tmp_path), LayerwiseExit(0.0, 0.5)
    (tmp_path / "out").mkdir()
    record_outcomes(
        tmp_path / "out", progress=lambda *_: None, work=tmp_path / "work", max_draft_len=2, seed=0,
        device=Checkpoint(path=made["device"]), cloud=Checkpoint(path=made["cloud"]), decoding=Decoding(),
        early_exit=NoEarlyExit() if own else exits, policy=policy("sled", early_exit=exits) if own else None,
        workload=Workload(dataset=Where(), num_prompts=1, max_prompt_tokens=16, max_new_tokens=2),
    )  # fmt: skip
    read = replayed.load(tmp_path / "out").trace
    assert (read.policy_name, read.exit_rule, read.tables.exit_layers.max()) == (
        None,
        EarlyExitRule("margin", 0.0, 0.5),
        1,
    )
    assert read.described.endswith("own greedy text, drafts leaving at a margin above 0 in the last 0.5 of the layers")


def test_each_prompt_is_recorded_once_up_to_the_limit(tmp_path: Path) -> None:
    made = save_checkpoints(tmp_path)
    for most, sessions in ((480, 2), (1, 1)):
        out, work = tmp_path / f"out-{most}", tmp_path / f"work-{most}"
        out.mkdir()
        record_outcomes(
            out, progress=lambda *_: None, work=work, max_draft_len=2, seed=0, max_prompts=most,
            device=Checkpoint(path=made["device"]), cloud=Checkpoint(path=made["cloud"]), decoding=Decoding(),
            early_exit=NoEarlyExit(),
            workload=Workload(
                dataset=Where(), num_prompts=7, reuse_prompts=True, max_prompt_tokens=16, max_new_tokens=2
            ),
        )  # fmt: skip
        assert len({session.prompt.id for session in replayed.load(out).trace.sessions}) == sessions
        assert len(replayed.load(out).trace.sessions) == sessions


def test_a_fit_is_a_stage_of_its_own(tmp_path: Path) -> None:
    save_trace(tmp_path, trace())
    fit_outcomes(tmp_path, trace=tmp_path)
    assert fitted.load(tmp_path).layers == (4, 8)


@pytest.mark.parametrize("ahead", [False, True])
def test_positions_are_recorded_together_as_one_by_one(
    ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = TraceRecorder(
        pair(), None, 0, 4, {"pair": "two random Llamas"}, tree=TreeDraft(6, 3, 2), trees_ahead=ahead
    )
    asked = questions(2)
    together = recording.record(asked, tmp_path / "together", lambda *_: None).tables
    monkeypatch.setattr(teacher_forcing, "MAX_POSITIONS", 1)
    alone = recording.record(asked, tmp_path / "alone", lambda *_: None).tables
    for name in ("targets", "continuation_lens", "drafts", "top_candidates", "trees", "tree_levels"):
        assert np.array_equal(getattr(together, name), getattr(alone, name)), name
    assert np.allclose(together.attention, alone.attention, atol=1e-5)
    for name, column in together.scores.items():
        assert np.allclose(column, alone.scores[name], atol=1e-4), name


def test_an_interrupted_recording_goes_on(tmp_path: Path) -> None:
    recording = TraceRecorder(pair(), None, 0, 2, {"pair": "two random Llamas"})
    asked = questions(offline.CONCURRENT_SESSIONS + 2)

    def stop(done: int, total: int, note: str) -> None:
        if done > offline.CONCURRENT_SESSIONS:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recording.record(asked, tmp_path / "work", stop)
    assert (tmp_path / "work" / "part-00001.partial").is_dir()
    kept = (tmp_path / "work" / "part-00000" / TENSORS_FILE).stat().st_mtime_ns
    whole = recording.record(asked, tmp_path / "work", lambda *_: None)
    assert (tmp_path / "work" / "part-00000" / TENSORS_FILE).stat().st_mtime_ns == kept
    assert_equal(whole, recording.record(asked, tmp_path / "other", lambda *_: None))
    assert [s.first_row for s in whole.sessions[:2]] == [0, whole.sessions[0].num_rows]


class SpanRecorder:
    """An engine that keeps the spans of layers that it was asked for."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine, self.model = engine, engine.model
        self.spans: set[tuple[int, int]] = set()

    def execute(self, work: DraftWork | ForwardWork) -> Any:
        if isinstance(work, ForwardWork):
            self.spans.add((work.span.start_layer, work.span.end_layer))
        return self.engine.execute(work)

    def drop(self, session: str, first: int | None) -> None:
        self.engine.drop(session, first)


def split_pair() -> tuple[LoadedModels, SpanRecorder]:
    """Both parts of the large model are on one engine."""
    models = pair(layers=8)
    spans = SpanRecorder(models.cloud)  # type: ignore[arg-type]
    return replace(models, cloud=spans, device_target=spans), spans


def test_a_split_target_is_recorded_as_it_is_served(tmp_path: Path) -> None:
    """Hidden states are rounded wherever the target is split, so that another split writes another text."""
    made = setup("u_shape")
    (served, asked), (recorded, asked_again) = split_pair(), split_pair()
    simulate(made, served, questions(2))
    layers = made.pair.cloud.timed_architecture.layers
    recorder = TraceRecorder(recorded, made.policy, 0, 2, {}, timed_layers=layers)
    recorder.record(questions(2), tmp_path, lambda *_: None)
    assert asked_again.spans == asked.spans == {(0, 1), (1, 8), (8, 8)}


@pytest.mark.parametrize("exits", [False, True])
def test_a_saved_trace_is_loaded(exits: bool, tmp_path: Path) -> None:
    save_trace(tmp_path, trace(exits=exits))
    assert_equal(load_trace(tmp_path), trace(exits=exits))


def test_sampled_text_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use runtime/outcomes=fitted, or temperature 0"):
        record_outcomes(
            tmp_path, progress=lambda *_: None, work=tmp_path, device=Checkpoint(hub="a"), cloud=Checkpoint(hub="b"),
            workload=Workload(dataset=Where()), decoding=Decoding(0.5), early_exit=NoEarlyExit(), seed=0,
        )  # fmt: skip


def _short(folder: Path) -> None:
    (folder / TENSORS_FILE).write_bytes((folder / TENSORS_FILE).read_bytes()[:-40])


def _lost_session(folder: Path) -> None:
    about = json.loads((folder / HEADER_FILE).read_text(encoding="utf-8"))
    about["sessions"].pop()
    (folder / HEADER_FILE).write_text(json.dumps(about), encoding="utf-8")


def _other_name(folder: Path) -> None:
    text = (folder / HEADER_FILE).read_text(encoding="utf-8")
    (folder / HEADER_FILE).write_text(text.replace('"policy_name"', '"politics"'), encoding="utf-8")


def _too_deep(folder: Path) -> None:
    text = (folder / HEADER_FILE).read_text(encoding="utf-8")
    (folder / HEADER_FILE).write_text(text.replace('"device_layers": 4', '"device_layers": 3'), encoding="utf-8")


def _no_prompt(folder: Path) -> None:
    about = json.loads((folder / HEADER_FILE).read_text(encoding="utf-8"))
    for session in about["sessions"][:2]:
        session["prompt_tokens"] += 46 if session is about["sessions"][0] else -46
    (folder / HEADER_FILE).write_text(json.dumps(about), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_short, "cannot be read"),
        (_lost_session, "59 sessions do not add up to the 2820 tokens"),
        (_other_name, "politics"),
        (_too_deep, "exit_layers has values from 4 to 4; they are 1 to 3"),
        (_no_prompt, "r00000 has a prompt of 52 tokens, and 46 in all"),
    ],
)
def test_a_damaged_trace_is_refused(damage: Any, message: str, tmp_path: Path) -> None:
    save_trace(tmp_path, trace())
    damage(tmp_path)
    with pytest.raises(ValueError, match=rf"trace .*{message}.*build it again.*stage=record_outcomes"):
        load_trace(tmp_path)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no .*trace.json; runtime\.outcomes\.path names a folder"):
        load_trace(tmp_path)
