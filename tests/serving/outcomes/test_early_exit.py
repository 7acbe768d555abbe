"""Early exit, adopted drafts and full distributions: a replayed trace equals the engine, with its costs."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.deployment.queries import LoadedModels
from serving.deployment.setup import Setup
from serving.hardware.latency import ForwardLoad
from serving.learned.thresholds import Thresholds
from serving.messages import (
    DraftDecision,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    EarlyExitRule,
    StartWork,
    WorkFinished,
)
from serving.outcomes.outcomes import OutcomeEngines
from serving.outcomes.record import TraceRecorder
from serving.outcomes.replayed import TraceOutcomes
from serving.outcomes.trace import OutcomeTrace, load_trace, save_trace
from serving.policy.policy import Policy
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.early_exit import LayerwiseExit, NoEarlyExit, ProgressiveExit
from serving.policy.slots.importance_offload import SyneraOffload
from serving.policy.slots.lookahead import SyneraLookahead
from serving.policy.slots.payload import FullDistributionPayload
from serving.runtimes.emulated import simulate
from tests.serving.outcomes.noisy_pair import ENDS, pair, questions
from tests.support.conf_files import bed
from tests.support.fake_setup import setup
from tests.support.policies import THRESHOLDS
from tests.support.simulated_nodes import Log

LAYERS, DEPTH, ASKED = 4, 8, 2
LOW, MIDDLE, NEVER = (LayerwiseExit(margin, 0.5) for margin in (0.02, 0.3, 1.0))
RULES = {"low": LOW, "middle": MIDDLE, "never": NEVER, "first check": LayerwiseExit(0.3, 0.5, 1), "none": NoEarlyExit()}
PROBES = ("confidence", "importance", "margin")
UNSURE = SyneraOffload(0.6, Thresholds(0.3, 0.7, (0.2, 0.3, 0.4), (0.02, 0.05, 0.1), {}))


class Ahead:
    """Drafts on, for full acceptance and for the drafter's second choice at each end of the draft."""

    max_steps, requested_scores, monitors_link = 3, (), False

    def num_steps(self, s: Any) -> int:
        return self.max_steps

    def assumed_verdicts(self, s: Any) -> tuple[tuple[int, int | None], ...]:
        if not s.in_flight_drafts:
            return ()
        last = len(s.in_flight_drafts) - 1
        return ((last + 1, None), (last, s.top_candidates[last][1]), *(((0, s.top_candidates[0][1]),) if last else ()))


WAITING = {"parallel": SyneraLookahead(THRESHOLDS), "ahead": Ahead()}


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    return pair(layers=LAYERS)


def taken(models: LoadedModels, work: Path, rule: EarlyExitRule | None, policy: Policy | None = None) -> OutcomeTrace:
    recording = TraceRecorder(models, policy, 0, DEPTH, {"pair": "two random Llamas"}, rule)
    return recording.record(questions(ASKED), work, lambda *_: None)


@pytest.fixture(scope="module")
def traces(models: LoadedModels, tmp_path_factory: pytest.TempPathFactory) -> dict[str, OutcomeTrace]:
    return {name: taken(models, tmp_path_factory.mktemp("trace"), rule.layer_exit) for name, rule in RULES.items()}


def opened(trace: OutcomeTrace, made: Setup) -> OutcomeEngines:
    return TraceOutcomes(trace, None).open(questions(ASKED), made.policy, made.seed)  # type: ignore[arg-type]


def layers(trace: OutcomeTrace) -> set[int]:
    """After how many layers drafts were read off."""
    found = np.unique(trace.tables.exit_layers[np.arange(DEPTH) < trace.tables.continuation_lens[:, None]])
    return set(found.tolist())


def works(trace: OutcomeTrace, rule: EarlyExitRule | None, seed: int, n: int = 120) -> Any:
    """Random work of one session along its record; the caller sends back how long the cache is then."""
    draw, session, cached = random.Random(seed), trace.sessions[seed % len(trace.sessions)], list[int]()
    for _ in range(n):
        at = draw.randrange(session.prompt_tokens, len(session.token_ids) + 1)
        row = session.first_row + at - session.prompt_tokens
        again = draw.randrange(min(4, int(trace.tables.continuation_lens[row])))
        text = [*session.token_ids[:at], *trace.tables.drafts[row, :again].tolist()]
        same = next((i for i, (a, b) in enumerate(zip(cached, text, strict=False)) if a != b), len(cached))
        start = draw.randint(max(0, min(same, at - 1) - draw.choice((0, 0, 6, 60))), min(same, at - 1))
        cap = draw.randrange(5)
        feed = tuple(text[start:] if cap else text[start:-1])
        drop = (
            draw.choice((DraftStopRule(cap), DraftStopRule(cap, "margin", 0.2, keep_last=False)))
            if cap
            else DraftStopRule(0)
        )
        work = DraftWork(session.name, start, feed, drop, ENDS, PROBES, early_exit=rule, num_adopted_drafts=again)
        if draw.random() < 0.3:
            ahead = tuple(
                tuple(text[start:end])
                for end in {len(text), max(start + 1, draw.randint(session.prompt_tokens, len(text)))}
            )
            work = DraftWork(session.name, start, (), DraftStopRule(1), ENDS, PROBES, None, rule, ahead)
        outcome = yield work
        cached = [*text[:start], *work.input_tokens, *outcome.tokens][: outcome.cached_len]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", RULES)
def test_replayed_early_exits_equal_the_engines_outcomes_and_loads(
    name: str, seed: int, models: LoadedModels, traces: dict[str, OutcomeTrace]
) -> None:
    trace, made = traces[name], setup("sled", override={"early_exit": RULES[name]})
    simulated, program = opened(trace, made), works(trace, RULES[name].layer_exit, seed)
    session, work, seen = trace.sessions[seed].name, next(program), list[ForwardLoad]()
    models.device.drop(session, None)
    while work:
        (run, loads), (read, counted) = models.device.execute(work), simulated.device.execute(work)
        assert replace(read, scores={}) == replace(run, scores={})
        assert counted == loads, work
        assert read.scores.keys() == run.scores.keys()
        for score, values in run.scores.items():
            assert read.scores[score] == pytest.approx(values, abs=1e-5), (score, work)
        seen += loads
        work = next_of(program, run)
    assert len({load.layers for load in seen}) > 1 if name in ("low", "middle") else True


def next_of(program: Any, outcome: Any) -> DraftWork | None:
    try:
        return program.send(outcome)  # type: ignore[no-any-return]
    except StopIteration:
        return None


def test_exit_thresholds_select_the_expected_layers(traces: dict[str, OutcomeTrace]) -> None:
    assert layers(traces["low"]) >= {2, 3}
    assert layers(traces["middle"]) == {2, 3, 4}
    assert layers(traces["first check"]) == {2, 4}
    assert layers(traces["never"]) == layers(traces["none"]) == {4}


def test_early_exits_do_not_change_the_targets_text(traces: dict[str, OutcomeTrace]) -> None:
    """A trace without loss is the policy's in its drafts alone, and where none leaves early it is the plain one."""
    plain = traces["none"]
    for name, trace in traces.items():
        assert (trace.sessions, trace.policy_name, trace.made_from) == (plain.sessions, None, plain.made_from)
        assert np.array_equal(trace.tables.targets, plain.tables.targets)
        assert trace.exit_rule == RULES[name].layer_exit
        assert np.array_equal(trace.tables.drafts, plain.tables.drafts) == (name in ("never", "none"))


def plain(log: Log) -> list[Any]:
    """Without scores, whose last digits depend on how many rows were computed together."""

    def bare(thing: Any) -> Any:
        if isinstance(thing, WorkFinished) and isinstance(thing.outcome, DraftOutcome):
            return replace(thing, outcome=replace(thing.outcome, scores={}))
        return replace(thing, scores={}) if isinstance(thing, DraftDecision) else thing

    return [(node, bare(event), now, tuple(map(bare, commands))) for node, event, now, commands in log.entries]


@pytest.mark.parametrize("name", WAITING)
def test_replayed_synera_equals_the_emulated_run_event_by_event(
    name: str, models: LoadedModels, tmp_path: Path
) -> None:
    exits = ProgressiveExit(0.3, 0.5, sequence_fraction=0.8)
    testbed = bed("jetson_orin")
    quick = replace(testbed, device=replace(testbed.device, software="vllm"))  # it drafts ahead of the verdict
    override = {"offload": UNSURE, "early_exit": exits, "lookahead": WAITING[name]}
    made = setup("synera", hardware=quick, override=override)
    trace = taken(models, tmp_path / "work", made.policy.early_exit.layer_exit, made.policy)
    save_trace(tmp_path, trace)
    simulated, heard, read = opened(load_trace(tmp_path), made), Log(), Log()
    simulate(made, models, questions(ASKED), observers=[heard])
    simulate(made, simulated, questions(ASKED), observers=[read])
    assert plain(read) == plain(heard)
    assert simulated.notes() == ("quality is that of policy synera's own recorded text",)
    found = [start.work for start in heard.commands(StartWork) if isinstance(start.work, DraftWork)]
    assert any(work.branches for work in found)
    assert any(session.lookahead_branches for session in trace.sessions)
    assert "missed" in {chunk.lookahead_outcome for chunk in heard.commands(DraftDecision)}
    assert any(work.num_adopted_drafts for work in found)
    assert len(layers(trace)) > 2


def test_a_lossless_replay_notes_unrecorded_guesses(models: LoadedModels, traces: dict[str, OutcomeTrace]) -> None:
    made = setup(
        "sled", override={"early_exit": MIDDLE, "lookahead": SyneraLookahead(THRESHOLDS), "draft": WindowDraft(3)}
    )
    made = replace(made, policy=replace(made.policy, offload=Everything(0.5, THRESHOLDS)))
    simulated = opened(traces["middle"], made)
    read, run = simulate(made, simulated, questions(ASKED)), simulate(made, models, questions(ASKED))
    for name, record in run.items():
        assert read[name].tokens == record.tokens
        assert [(c.position, c.tokens, c.accepted) for c in read[name].draft_decisions] == [
            (c.position, c.tokens, c.accepted) for c in record.draft_decisions
        ]
    assert "drafted ahead on wrong guesses that were not recorded" in simulated.notes()[0]


class Everything(SyneraOffload):
    """Every draft is sent."""

    scope = "all"  # type: ignore[assignment]

    def tokens_to_offload(self, s: Any) -> int:
        return 1


def test_replayed_full_distributions_have_their_bytes(models: LoadedModels, traces: dict[str, OutcomeTrace]) -> None:
    made = setup("sled", override={"payload": FullDistributionPayload()})
    heard, read = Log(), Log()
    simulate(made, models, questions(ASKED), observers=[heard])
    simulate(made, opened(traces["none"], made), questions(ASKED), observers=[read])
    assert [now for _, _, now, _ in read.entries] == [now for _, _, now, _ in heard.entries]
    drafts = [
        [
            event.outcome.probs_support
            for _, event, _, _ in log.entries
            if isinstance(event, WorkFinished)
            if drafted(event.outcome)
        ]
        for log in (heard, read)
    ]
    assert drafts[0] == drafts[1]
    assert any(drafts[0])


def drafted(outcome: Any) -> bool:
    return isinstance(outcome, DraftOutcome)


def test_an_exit_rule_other_than_the_recorded_one_is_refused(traces: dict[str, OutcomeTrace]) -> None:
    low = setup("synera", override={"early_exit": LOW})
    with pytest.raises(ValueError, match=r"policy synera drafts leaving at a margin above 0\.02 in the last 0\.5 of.*"):
        opened(traces["middle"], low)
    with pytest.raises(ValueError, match=r"the trace knows drafts made leaving at a margin above 0\.3.*record them by"):
        opened(traces["middle"], setup("sled"))
    alone = setup("cloud_centric")
    assert opened(traces["middle"], alone).notes() == ()
    assert opened(traces["first check"], setup("sled", override={"early_exit": RULES["first check"]})).notes() == ()
