"""A recorded trace against the models it was recorded from: one and the same run."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from fake_setup import setup
from fake_world import THRESHOLDS, Log
from pairs import LAYERS, LIMIT, pair, questions

from serving.core.decoding import Decoding
from serving.deployment.queries import Models
from serving.deployment.setup import Setup
from serving.hardware.latency import load
from serving.learned.thresholds import Thresholds
from serving.messages import Call, Exit, Forward, Generate, Rows, Span, Start, Stop
from serving.metrics.recorder import Record
from serving.outcomes.outcomes import Opened
from serving.outcomes.record import TraceRecording
from serving.outcomes.replayed import Replayed
from serving.outcomes.trace import Trace
from serving.outcomes.trace_engine import HoleError
from serving.policy.slots.draft import Window
from serving.policy.slots.early_exit import Tail
from serving.policy.slots.importance_offload import ConfidenceImportance
from serving.runtimes.emulated import play
from serving.workload.prompt import Prompt
from serving.workload.workload import Asked


@pytest.fixture(scope="module")
def models() -> Models:
    return pair()


@pytest.fixture(scope="module")
def record(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Records a policy's own text, each once; None is the target's."""
    kept: dict[str, Trace] = {}

    def take(who: Setup | None = None) -> Trace:
        name = who.policy.name if who else "target"
        if name not in kept:
            recording = TraceRecording(
                models, who.policy if who else None, 0, 8, {"pair": "two random Llamas"},
                who.policy.early_exit.layer if who else None,
            )  # fmt: skip
            kept[name] = recording.take(questions(), tmp_path_factory.mktemp(name), lambda *_: None)
        return kept[name]

    return take


def opened(trace: Trace, made: Setup) -> Opened:
    return Replayed(trace, None).open(questions(), made.policy, made.seed)  # type: ignore[arg-type]


def assert_same(read: Mapping[str, Record], run: Mapping[str, Record]) -> None:
    """Everything but the last digits of scores, which depend on how many rows were computed together."""
    assert read.keys() == run.keys()
    for name, record in run.items():
        for field in fields(Record):
            if field.name != "chunks":
                assert getattr(read[name], field.name) == getattr(record, field.name), field.name
        for a, b in zip(read[name].chunks, record.chunks, strict=True):
            assert (a.at, a.tokens, a.accepted) == (b.at, b.tokens, b.accepted)
            assert a.scores.keys() == b.scores.keys()
            for score, values in b.scores.items():
                assert a.scores[score] == pytest.approx(values, abs=1e-5), score


class Scored(ConfidenceImportance):
    """Every draft is sent, and all scores are wanted."""

    probes = ("confidence", "entropy", "importance", "logit_std", "margin")
    reach = "all"  # type: ignore[assignment]

    def ask(self, s: Any) -> int:
        return 1


LOSSLESS = {
    "k1": {"draft": Window(1)},
    "k4": {"draft": Window(4)},
    "k8": {"draft": Window(8)},
    "stop_kept": {"draft": Window(6, "confidence", 0.4)},
    "stop_dropped": {"draft": Window(6, "margin", 0.2, keep=False)},
    "scored": {"draft": Window(5), "offload": Scored(0.5, THRESHOLDS)},
}


@pytest.mark.parametrize("how", LOSSLESS)
def test_lossless_policies_share_one_trace(how: str, models: Models, record: Any) -> None:
    made = setup("sled", override=LOSSLESS[how])
    simulated, heard, read_log = opened(record(), made), Log(), Log()
    run = play(made, models, questions(), observers=[heard])
    assert_same(play(made, simulated, questions(), observers=[read_log]), run)
    if not made.policy.probes:
        assert read_log.entries == heard.entries
    accepted = [c.accepted for r in run.values() for c in r.chunks]
    assert {0, 1} <= set(accepted), "drafts that are all right, or all wrong, would show nothing"
    assert simulated.notes() == ()


def test_the_target_alone(models: Models, record: Any) -> None:
    made = setup("cloud_centric")
    assert_same(play(made, opened(record(), made), questions()), play(made, models, questions()))


UNSURE = ConfidenceImportance(0.6, Thresholds(0.3, 0.7, (0.2, 0.3, 0.4), (0.02, 0.05, 0.1), {}))


@pytest.mark.parametrize("name", ["synera", "edge_centric"])
def test_a_lossy_policys_own_trace(name: str, models: Models, record: Any) -> None:
    made = setup(name, override={"offload": UNSURE} if name == "synera" else {})
    simulated, run = opened(record(made), made), play(made, models, questions())
    assert_same(play(made, simulated, questions()), run)
    assert simulated.notes() == (f"quality is that of policy {name}'s own recorded text",)
    asked = {chunk.accepted is None for r in run.values() for chunk in r.chunks}
    assert asked == ({True, False} if name == "synera" else set()), "both decisions have to be met"


def test_a_lossy_policy_on_the_targets_trace_ends_and_says_what_it_is(record: Any) -> None:
    made = setup("synera", override={"offload": UNSURE, "early_exit": Tail(0.8)})
    simulated = opened(record(), made)
    records = play(made, simulated, questions())
    assert {r.ending for r in records.values()} == {"complete"}
    quality, unknown, ahead = simulated.notes()
    assert re.match(r"\d+ tokens were drafted ahead on wrong guesses that were not recorded", ahead)
    assert quality.startswith("policy synera is lossy, and the trace holds the target's own text")
    assert re.match(r"\d+ tokens left the recorded path, and \d+ drafts were deeper than recorded", unknown)


def test_a_window_deeper_than_the_record_still_writes_the_targets_text(record: Any) -> None:
    made = setup("sled", override={"draft": Window(12)})
    simulated = opened(record(), made)
    records = play(made, simulated, questions())
    for session in record().sessions:
        assert tuple(records[session.name].tokens) == session.path[session.prompt_tokens :]
    assert re.match(r"0 tokens left the recorded path, and \d+ drafts were deeper", simulated.notes()[0])


class Ahead:
    """Drafts on, for full acceptance and for the drafter's second choice at the first token."""

    steps, probes, monitors = 3, (), False

    def limit(self, s: Any) -> int:
        return self.steps

    def guesses(self, s: Any) -> tuple[tuple[int, int | None], ...]:
        return ((len(s.flight), None), (0, s.tops[0][1])) if s.flight else ()


def test_policies_that_look_ahead_share_the_trace_too(models: Models, record: Any) -> None:
    """A draft that goes on from what was drafted ahead begins within a recorded continuation."""
    how = {"draft": Window(5), "waiting": Ahead(), "offload": Scored(0.5, THRESHOLDS)}
    made = setup("sled", override=how)
    simulated, log = opened(record(), made), Log()
    run = play(made, models, questions(), observers=[log])
    assert_same(play(made, simulated, questions()), run)
    works = [start.work for start in log.commands(Start) if isinstance(start.work, Generate)]
    ends = {q.call.session: len(q.call.prompt) + LIMIT for q in questions()}
    assert any(work.branches for work in works)
    assert any(0 < w.stop.cap < 5 and w.start + len(w.feed) + w.stop.cap < ends[w.session] for w in works if w.feed)


def test_looking_ahead_finds_what_the_drafter_would(models: Models, record: Any) -> None:
    """A branch that lives on starts with what the target wrote, so it is on the recorded path."""
    trace = record()
    session = trace.sessions[0]
    end = session.prompt_tokens + 3
    ahead = (session.path[session.prompt_tokens : end], session.path[session.prompt_tokens : end + 2])
    prefill = Generate("r00000", 0, session.path[: session.prompt_tokens], Stop(0))
    probes = ("confidence", "importance")
    work = Generate("r00000", session.prompt_tokens, (), Stop(1), (), probes, None, None, ahead)
    simulated = opened(trace, setup("sled"))
    found = []
    for engine in (models.device, simulated.device):
        engine.drop("r00000", None)
        assert engine.execute(prefill)[1] == (load(LAYERS, [(0, session.prompt_tokens)]),)
        found.append(engine.execute(work))
    (run, run_loads), (read, read_loads) = found
    assert (read.tokens, read.tops, read.cached, read_loads) == (run.tokens, run.tops, run.cached, run_loads)
    assert read.scores["confidence"] == pytest.approx(run.scores["confidence"], abs=1e-5)


def test_more_requests_than_records_are_dealt_by_luck(record: Any) -> None:
    outcomes = Replayed(record(), None)  # type: ignore[arg-type]
    asked = [Asked(i, Prompt(f"new{i}", "", (), ""), 0, i, None, 0.0, 99, 16, None) for i in range(60)]
    queries = outcomes.queries(asked, Decoding(), 1)
    prompts = {q.call.prompt for q in queries}
    assert len(prompts) == len(record().sessions)
    assert queries == outcomes.queries(asked, Decoding(), 1) != outcomes.queries(asked, Decoding(), 2)
    assert {q.call.limit for q in queries} == {16}
    played = play(setup("sled"), outcomes.open(queries[:9], setup("sled").policy, 1), queries[:9])
    assert {r.ending for r in played.values()} == {"complete"}


def test_a_recorded_prompt_is_asked_by_name_or_id(record: Any) -> None:
    outcomes = Replayed(record(), None)  # type: ignore[arg-type]
    asked = [Asked(i, Prompt(name, "", (), ""), 0, i, None, 0.0, 99, 99, None) for i, name in enumerate(("p0", "p4"))]
    first, second = outcomes.queries(asked, Decoding(), 0)
    assert (first.call, second.call.prompt) == (questions()[0].call, questions()[4].call.prompt)
    assert (second.call.session, second.prompt.answer, second.call.limit) == ("r00001", "attic", LIMIT)


def test_what_cannot_be_read_is_refused(record: Any) -> None:
    outcomes, policy = Replayed(record(), None), setup("sled").policy  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"temperature is 0\.7: sampled text depends on every draw"):
        outcomes.queries([], Decoding(0.7), 0)
    stranger = replace(questions()[0], call=Call("r00000", (8, 8, 8), 4))
    with pytest.raises(ValueError, match="request r00000 asks a prompt of 3 tokens that is not in the trace"):
        outcomes.open([stranger], policy, 0)
    engine = outcomes.open(questions(), policy, 0).device
    with pytest.raises(HoleError, match="begins at token 5, but only 0 tokens are cached"):
        engine.execute(Generate("r00000", 5, (1,), Stop(1)))
    with pytest.raises(ValueError, match="samples, or leaves layers early by another rule"):
        engine.execute(Generate("r00000", 0, (1,), Stop(1), exit=Exit("margin", 0.1, 0.25)))
    with pytest.raises(HoleError, match="begins at 10, but 0 tokens are cached"):
        engine.execute(Forward(Span(0, 2, True, True), (Rows("r00000", 10, 1, (9,), 0, "greedy"),), ("last",)))
    with pytest.raises(ValueError, match="tokens 0 to 1 are not those of the prompt recorded as r00000"):
        engine.execute(Generate("r00000", 0, (60, 60), Stop(1)))
    with pytest.raises(ValueError, match="tokens 0 to 0 are not those of the prompt"):
        engine.execute(Forward(Span(0, 2, True, True), (Rows("r00000", 0, 1, (60,)),), ("last",)))
    with pytest.raises(ValueError, match="'nobody' was not among the calls"):
        engine.execute(Generate("nobody", 0, (1,), Stop(1)))
