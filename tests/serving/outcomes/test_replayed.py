"""A run on a recorded trace equals the run on the recorded models."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from serving.core.decoding import Decoding
from serving.deployment.queries import LoadedModels
from serving.deployment.setup import Setup
from serving.hardware.executor import CacheHoleError
from serving.hardware.latency import batch_load
from serving.learned.thresholds import Thresholds
from serving.messages import (
    DraftStopRule,
    DraftWork,
    EarlyExitRule,
    ForwardWork,
    GenerationRequest,
    SequenceSlice,
    Span,
    StartWork,
)
from serving.metrics.recorder import SessionRecord
from serving.outcomes.outcomes import OutcomeEngines
from serving.outcomes.record import TraceRecorder
from serving.outcomes.replayed import TraceOutcomes
from serving.outcomes.trace import OutcomeTrace
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.early_exit import SequencewiseExit
from serving.policy.slots.importance_offload import SyneraOffload
from serving.runtimes.emulated import simulate
from serving.workload.prompt import Prompt
from serving.workload.workload import WorkloadRequest
from tests.serving.outcomes.noisy_pair import LAYERS, LIMIT, pair, questions
from tests.support.fake_setup import setup
from tests.support.policies import THRESHOLDS
from tests.support.simulated_nodes import Log


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    return pair()


@pytest.fixture(scope="module")
def record(models: LoadedModels, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Records a policy's own text, each once; None is the target's."""
    kept: dict[str, OutcomeTrace] = {}

    def take(who: Setup | None = None) -> OutcomeTrace:
        name = who.policy.name if who else "target"
        if name not in kept:
            recording = TraceRecorder(
                models, who.policy if who else None, 0, 8, {"pair": "two random Llamas"},
                who.policy.early_exit.layer_exit if who else None,
            )  # fmt: skip
            kept[name] = recording.record(questions(), tmp_path_factory.mktemp(name), lambda *_: None)
        return kept[name]

    return take


def opened(trace: OutcomeTrace, made: Setup) -> OutcomeEngines:
    return TraceOutcomes(trace, None).open(questions(), made.policy, made.seed)  # type: ignore[arg-type]


def assert_same(read: Mapping[str, SessionRecord], run: Mapping[str, SessionRecord]) -> None:
    """Everything but the last digits of scores, which depend on how many rows were computed together."""
    assert read.keys() == run.keys()
    for name, record in run.items():
        for field in fields(SessionRecord):
            if field.name != "draft_decisions":
                assert getattr(read[name], field.name) == getattr(record, field.name), field.name
        for a, b in zip(read[name].draft_decisions, record.draft_decisions, strict=True):
            assert (a.position, a.tokens, a.accepted) == (b.position, b.tokens, b.accepted)
            assert a.scores.keys() == b.scores.keys()
            for score, values in b.scores.items():
                assert a.scores[score] == pytest.approx(values, abs=1e-5), score


class Scored(SyneraOffload):
    """Every draft is sent, and all scores are wanted."""

    requested_scores = (
        "confidence",
        "entropy",
        "importance",
        "importance_later_mean_last_layer",
        "logit_std",
        "margin",
    )
    scope = "all"  # type: ignore[assignment]

    def tokens_to_offload(self, s: Any) -> int:
        return 1


LOSSLESS = {
    "k1": {"draft": WindowDraft(1)},
    "k4": {"draft": WindowDraft(4)},
    "k8": {"draft": WindowDraft(8)},
    "stop_kept": {"draft": WindowDraft(6, "confidence", 0.4)},
    "stop_dropped": {"draft": WindowDraft(6, "margin", 0.2, keep_last=False)},
    "scored": {"draft": WindowDraft(5), "offload": Scored(0.5, THRESHOLDS)},
}


@pytest.mark.parametrize("how", LOSSLESS)
def test_lossless_policies_share_one_trace(how: str, models: LoadedModels, record: Any) -> None:
    made = setup("sled", override=LOSSLESS[how])
    simulated, heard, read_log = opened(record(), made), Log(), Log()
    run = simulate(made, models, questions(), observers=[heard])
    assert_same(simulate(made, simulated, questions(), observers=[read_log]), run)
    if not made.policy.requested_scores:
        assert read_log.entries == heard.entries
    accepted = [c.accepted for r in run.values() for c in r.draft_decisions]
    assert {0, 1} <= set(accepted), "drafts that are all right, or all wrong, would show nothing"
    assert simulated.notes() == ()


def test_cloud_centric_replays_from_a_trace(models: LoadedModels, record: Any) -> None:
    made = setup("cloud_centric")
    assert_same(simulate(made, opened(record(), made), questions()), simulate(made, models, questions()))


UNSURE = SyneraOffload(0.6, Thresholds(0.3, 0.7, (0.2, 0.3, 0.4), (0.02, 0.05, 0.1), {}))


@pytest.mark.parametrize("name", ["synera", "edge_centric"])
def test_a_lossy_policy_replays_from_its_own_trace(name: str, models: LoadedModels, record: Any) -> None:
    made = setup(name, override={"offload": UNSURE} if name == "synera" else {})
    simulated, run = opened(record(made), made), simulate(made, models, questions())
    assert_same(simulate(made, simulated, questions()), run)
    assert simulated.notes() == (f"quality is that of policy {name}'s own recorded text",)
    asked = {chunk.accepted is None for r in run.values() for chunk in r.draft_decisions}
    assert asked == ({True, False} if name == "synera" else set()), "both decisions have to be met"


def test_a_lossy_policy_on_the_targets_trace_is_noted_as_such(record: Any) -> None:
    made = setup("synera", override={"offload": UNSURE, "early_exit": SequencewiseExit(0.8)})
    simulated = opened(record(), made)
    records = simulate(made, simulated, questions())
    assert {r.ending for r in records.values()} == {"complete"}
    quality, unknown, ahead = simulated.notes()
    assert re.match(r"\d+ tokens were drafted ahead on wrong guesses that were not recorded", ahead)
    assert quality.startswith("policy synera is lossy, and the trace holds the target's own text")
    assert re.match(r"\d+ tokens left the recorded path, and \d+ drafts were deeper than recorded", unknown)


def test_a_window_longer_than_recorded_writes_the_targets_text(record: Any) -> None:
    made = setup("sled", override={"draft": WindowDraft(12)})
    simulated = opened(record(), made)
    records = simulate(made, simulated, questions())
    for session in record().sessions:
        assert tuple(records[session.name].tokens) == session.token_ids[session.prompt_tokens :]
    assert re.match(r"0 tokens left the recorded path, and \d+ drafts were deeper", simulated.notes()[0])


class Ahead:
    """Drafts on, for full acceptance and for the drafter's second choice at the first token."""

    max_steps, requested_scores, monitors_link = 3, (), False

    def num_steps(self, s: Any) -> int:
        return self.max_steps

    def assumed_verdicts(self, s: Any) -> tuple[tuple[int, int | None], ...]:
        return ((len(s.in_flight_drafts), None), (0, s.top_candidates[0][1])) if s.in_flight_drafts else ()


def test_policies_with_lookahead_share_the_trace(models: LoadedModels, record: Any) -> None:
    """A draft that goes on from what was drafted ahead begins within a recorded continuation."""
    how = {"draft": WindowDraft(5), "lookahead": Ahead(), "offload": Scored(0.5, THRESHOLDS)}
    made = setup("sled", override=how)
    simulated, log = opened(record(), made), Log()
    run = simulate(made, models, questions(), observers=[log])
    assert_same(simulate(made, simulated, questions()), run)
    works = [start.work for start in log.commands(StartWork) if isinstance(start.work, DraftWork)]
    ends = {q.request.session: len(q.request.prompt) + LIMIT for q in questions()}
    assert any(work.branches for work in works)
    assert any(
        0 < w.stop_rule.max_tokens < 5 and w.start + len(w.input_tokens) + w.stop_rule.max_tokens < ends[w.session]
        for w in works
        if w.input_tokens
    )


def test_replayed_lookahead_equals_the_drafters(models: LoadedModels, record: Any) -> None:
    """A branch that lives on starts with what the target wrote, so it is on the recorded path."""
    trace = record()
    session = trace.sessions[0]
    end = session.prompt_tokens + 3
    ahead = (session.token_ids[session.prompt_tokens : end], session.token_ids[session.prompt_tokens : end + 2])
    prefill = DraftWork("r00000", 0, session.token_ids[: session.prompt_tokens], DraftStopRule(0))
    probes = ("confidence", "importance", "importance_mean", "importance_later_sum_last_layer")
    work = DraftWork("r00000", session.prompt_tokens, (), DraftStopRule(1), (), probes, None, None, ahead)
    simulated = opened(trace, setup("sled"))
    found = []
    for engine in (models.device, simulated.device):
        engine.drop("r00000", None)
        assert engine.execute(prefill)[1] == (batch_load(LAYERS, [(0, session.prompt_tokens)]),)
        found.append(engine.execute(work))
    (run, run_loads), (read, read_loads) = found
    assert (read.tokens, read.top_candidates, read.cached_len, read_loads) == (
        run.tokens,
        run.top_candidates,
        run.cached_len,
        run_loads,
    )
    assert read.scores["confidence"] == pytest.approx(run.scores["confidence"], abs=1e-5)


def test_more_requests_than_recorded_sessions_draw_sessions_by_seed(record: Any) -> None:
    outcomes = TraceOutcomes(record(), None)  # type: ignore[arg-type]
    asked = [WorkloadRequest(i, Prompt(f"new{i}", "", (), ""), 0, i, None, 0.0, 99, 16, None) for i in range(60)]
    queries = outcomes.make_queries(asked, Decoding(), 1)
    prompts = {q.request.prompt for q in queries}
    assert len(prompts) == len(record().sessions)
    assert queries == outcomes.make_queries(asked, Decoding(), 1) != outcomes.make_queries(asked, Decoding(), 2)
    assert {q.request.max_new_tokens for q in queries} == {16}
    played = simulate(setup("sled"), outcomes.open(queries[:9], setup("sled").policy, 1), queries[:9])
    assert {r.ending for r in played.values()} == {"complete"}


def test_a_recorded_session_is_found_by_session_or_prompt(record: Any) -> None:
    outcomes = TraceOutcomes(record(), None)  # type: ignore[arg-type]
    asked = [
        WorkloadRequest(i, Prompt(name, "", (), ""), 0, i, None, 0.0, 99, 99, None)
        for i, name in enumerate(("p0", "p4"))
    ]
    first, second = outcomes.make_queries(asked, Decoding(), 0)
    assert (first.request, second.request.prompt) == (questions()[0].request, questions()[4].request.prompt)
    assert (second.request.session, second.prompt.answer, second.request.max_new_tokens) == ("r00001", "attic", LIMIT)


def test_a_workload_of_other_prompts_than_the_trace_has_is_refused(record: Any) -> None:
    """Its answers would be scored as those of the workload."""
    outcomes = TraceOutcomes(record(), None)  # type: ignore[arg-type]

    def asks(*prompts: tuple[str, str]) -> list[str]:
        asked = [
            WorkloadRequest(i, Prompt(name, text, (), ""), 0, i, None, 0.0, 99, 99, None)
            for i, (name, text) in enumerate(prompts)
        ]
        return [query.prompt.id for query in outcomes.make_queries(asked, Decoding(), 0)]

    with pytest.raises(ValueError, match=r"has none of the workload's prompts, such as 'gsm8k-17'.*workload=synthetic"):
        asks(("gsm8k-17", "How many?"), ("gsm8k-18", "How much?"))
    with pytest.raises(ValueError, match=r"\(two random Llamas\) has another text for prompt 'p1' than the workload"):
        asks(("p0", "Where?"), ("p1", "When?"))
    known, dealt = asks(("p1", "Where?"), ("p99", "Where else?"))  # of a data set that was recorded in part
    assert (known, dealt in {"p0", "p1", "p2", "p3", "p4"}) == ("p1", True)


def test_requests_outside_the_trace_are_refused(record: Any) -> None:
    outcomes, policy = TraceOutcomes(record(), None), setup("sled").policy  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"temperature is 0\.7: sampled text depends on every draw"):
        outcomes.make_queries([], Decoding(0.7), 0)
    stranger = replace(questions()[0], request=GenerationRequest("r00000", (8, 8, 8), 4))
    with pytest.raises(ValueError, match="request r00000 asks a prompt of 3 tokens that is not in the trace"):
        outcomes.open([stranger], policy, 0)
    engine = outcomes.open(questions(), policy, 0).device
    with pytest.raises(CacheHoleError, match="begins at token 5, but only 0 tokens are cached"):
        engine.execute(DraftWork("r00000", 5, (1,), DraftStopRule(1)))
    with pytest.raises(ValueError, match="samples, or leaves layers early by another rule"):
        engine.execute(DraftWork("r00000", 0, (1,), DraftStopRule(1), early_exit=EarlyExitRule("margin", 0.1, 0.25)))
    with pytest.raises(CacheHoleError, match="begins at 10, but 0 tokens are cached"):
        engine.execute(
            ForwardWork(Span(0, 2, True, True), (SequenceSlice("r00000", 10, 1, (9,), 0, "greedy"),), ("last",))
        )
    with pytest.raises(ValueError, match="tokens 0 to 1 are not those of the prompt recorded as r00000"):
        engine.execute(DraftWork("r00000", 0, (60, 60), DraftStopRule(1)))
    with pytest.raises(ValueError, match="tokens 0 to 0 are not those of the prompt"):
        engine.execute(ForwardWork(Span(0, 2, True, True), (SequenceSlice("r00000", 0, 1, (60,)),), ("last",)))
    with pytest.raises(ValueError, match="'unknown' was not among the calls"):
        engine.execute(DraftWork("unknown", 0, (1,), DraftStopRule(1)))
