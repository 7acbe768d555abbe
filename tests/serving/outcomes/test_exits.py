"""Early exit, adopted drafts and whole distributions: a trace says what the engine does, and what it costs."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_setup import setup
from fake_world import THRESHOLDS, Log
from pairs import ENDS, pair, questions

from serving.deployment.queries import Models
from serving.deployment.setup import Setup
from serving.hardware.latency import Load
from serving.learned.thresholds import Thresholds
from serving.messages import Chunk, Drafted, Exit, Finished, Generate, Start, Stop
from serving.outcomes import store
from serving.outcomes.outcomes import Opened
from serving.outcomes.record import TraceRecording
from serving.outcomes.replayed import Replayed
from serving.outcomes.trace import Trace
from serving.policy.policy import Policy
from serving.policy.slots.draft import Window
from serving.policy.slots.early_exit import Layers, NoExit, Progressive
from serving.policy.slots.importance_offload import ConfidenceImportance
from serving.policy.slots.lookahead import Parallel
from serving.policy.slots.payload import Whole
from serving.runtimes.emulated import play

LAYERS, DEPTH, ASKED = 4, 8, 2
LOW, MIDDLE, NEVER = (Layers(margin, 0.5) for margin in (0.02, 0.3, 1.0))
RULES = {"low": LOW, "middle": MIDDLE, "never": NEVER, "first check": Layers(0.3, 0.5, 1), "none": NoExit()}
PROBES = ("confidence", "importance", "margin")
UNSURE = ConfidenceImportance(0.6, Thresholds(0.3, 0.7, (0.2, 0.3, 0.4), (0.02, 0.05, 0.1), {}))


class Ahead:
    """Drafts on, for full acceptance and for the drafter's second choice at each end of the draft."""

    steps, probes, monitors = 3, (), False

    def limit(self, s: Any) -> int:
        return self.steps

    def guesses(self, s: Any) -> tuple[tuple[int, int | None], ...]:
        if not s.flight:
            return ()
        last = len(s.flight) - 1
        return ((last + 1, None), (last, s.tops[last][1]), *(((0, s.tops[0][1]),) if last else ()))


WAITING = {"parallel": Parallel(THRESHOLDS), "ahead": Ahead()}


@pytest.fixture(scope="module")
def models() -> Models:
    return pair(layers=LAYERS)


def taken(models: Models, work: Path, rule: Exit | None, policy: Policy | None = None) -> Trace:
    recording = TraceRecording(models, policy, 0, DEPTH, {"pair": "two random Llamas"}, rule)
    return recording.take(questions(ASKED), work, lambda *_: None)


@pytest.fixture(scope="module")
def traces(models: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    return {name: taken(models, tmp_path_factory.mktemp("trace"), rule.layer) for name, rule in RULES.items()}


def opened(trace: Trace, made: Setup) -> Opened:
    return Replayed(trace, None).open(questions(ASKED), made.policy, made.seed)  # type: ignore[arg-type]


def layers(trace: Trace) -> set[int]:
    """After how many layers drafts were read off."""
    found = np.unique(trace.tables.depths[np.arange(DEPTH) < trace.tables.counts[:, None]])
    return set(found.tolist())


def works(trace: Trace, rule: Exit | None, seed: int, n: int = 120) -> Any:
    """Random work of one session along its record; the caller sends back how long the cache is then."""
    draw, session, cached = random.Random(seed), trace.sessions[seed % len(trace.sessions)], list[int]()
    for _ in range(n):
        at = draw.randrange(session.prompt_tokens, len(session.path) + 1)
        row = session.first + at - session.prompt_tokens
        again = draw.randrange(min(4, int(trace.tables.counts[row])))
        text = [*session.path[:at], *trace.tables.drafts[row, :again].tolist()]
        same = next((i for i, (a, b) in enumerate(zip(cached, text, strict=False)) if a != b), len(cached))
        start = draw.randint(max(0, min(same, at - 1) - draw.choice((0, 0, 6, 60))), min(same, at - 1))
        cap = draw.randrange(5)
        feed = tuple(text[start:] if cap else text[start:-1])
        drop = draw.choice((Stop(cap), Stop(cap, "margin", 0.2, keep=False))) if cap else Stop(0)
        work = Generate(session.name, start, feed, drop, ENDS, PROBES, exit=rule, again=again)
        if draw.random() < 0.3:
            ahead = tuple(
                tuple(text[start:end])
                for end in {len(text), max(start + 1, draw.randint(session.prompt_tokens, len(text)))}
            )
            work = Generate(session.name, start, (), Stop(1), ENDS, PROBES, None, rule, ahead)
        outcome = yield work
        cached = [*text[:start], *work.feed, *outcome.tokens][: outcome.cached]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", RULES)
def test_a_trace_says_what_the_engine_does_and_what_it_costs(
    name: str, seed: int, models: Models, traces: dict[str, Trace]
) -> None:
    trace, made = traces[name], setup("sled", override={"early_exit": RULES[name]})
    simulated, program = opened(trace, made), works(trace, RULES[name].layer, seed)
    session, work, seen = trace.sessions[seed].name, next(program), list[Load]()
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


def next_of(program: Any, outcome: Any) -> Generate | None:
    try:
        return program.send(outcome)  # type: ignore[no-any-return]
    except StopIteration:
        return None


def test_thresholds_leave_where_they_should(traces: dict[str, Trace]) -> None:
    assert layers(traces["low"]) >= {2, 3}
    assert layers(traces["middle"]) == {2, 3, 4}
    assert layers(traces["first check"]) == {2, 4}
    assert layers(traces["never"]) == layers(traces["none"]) == {4}


def test_the_targets_text_is_the_same_whatever_the_drafter_skips(traces: dict[str, Trace]) -> None:
    """A trace without loss is the policy's in its drafts alone, and where none leaves early it is the plain one."""
    plain = traces["none"]
    for name, trace in traces.items():
        assert (trace.sessions, trace.policy, trace.made_from) == (plain.sessions, None, plain.made_from)
        assert np.array_equal(trace.tables.targets, plain.tables.targets)
        assert trace.exit == RULES[name].layer
        assert np.array_equal(trace.tables.drafts, plain.tables.drafts) == (name in ("never", "none"))


def plain(log: Log) -> list[Any]:
    """Without scores, whose last digits depend on how many rows were computed together."""

    def bare(thing: Any) -> Any:
        if isinstance(thing, Finished) and isinstance(thing.outcome, Drafted):
            return replace(thing, outcome=replace(thing.outcome, scores={}))
        return replace(thing, scores={}) if isinstance(thing, Chunk) else thing

    return [(node, bare(event), now, tuple(map(bare, commands))) for node, event, now, commands in log.entries]


@pytest.mark.parametrize("name", WAITING)
def test_synera_with_everything_on_is_the_emulated_run_event_by_event(
    name: str, models: Models, tmp_path: Path
) -> None:
    exits = Progressive(0.3, 0.5, after=0.8)
    made = setup("synera", override={"offload": UNSURE, "early_exit": exits, "waiting": WAITING[name]})
    trace = taken(models, tmp_path / "work", made.policy.early_exit.layer, made.policy)
    store.save(tmp_path, trace)
    simulated, heard, read = opened(store.load(tmp_path), made), Log(), Log()
    play(made, models, questions(ASKED), observers=[heard])
    play(made, simulated, questions(ASKED), observers=[read])
    assert plain(read) == plain(heard)
    assert simulated.notes() == ("quality is that of policy synera's own recorded text",)
    found = [start.work for start in heard.commands(Start) if isinstance(start.work, Generate)]
    assert any(work.branches for work in found)
    assert any(session.asides for session in trace.sessions)
    assert "missed" in {chunk.guess for chunk in heard.commands(Chunk)}
    assert any(work.again for work in found)
    assert len(layers(trace)) > 2


def test_without_loss_the_text_is_right_and_wrong_guesses_are_said(models: Models, traces: dict[str, Trace]) -> None:
    made = setup("sled", override={"early_exit": MIDDLE, "waiting": Parallel(THRESHOLDS), "draft": Window(3)})
    made = replace(made, policy=replace(made.policy, offload=Everything(0.5, THRESHOLDS)))
    simulated = opened(traces["middle"], made)
    read, run = play(made, simulated, questions(ASKED)), play(made, models, questions(ASKED))
    for name, record in run.items():
        assert read[name].tokens == record.tokens
        assert [(c.at, c.tokens, c.accepted) for c in read[name].chunks] == [
            (c.at, c.tokens, c.accepted) for c in record.chunks
        ]
    assert "drafted ahead on wrong guesses that were not recorded" in simulated.notes()[0]


class Everything(ConfidenceImportance):
    """Every draft is sent."""

    reach = "all"  # type: ignore[assignment]

    def ask(self, s: Any) -> int:
        return 1


def test_whole_distributions_weigh_what_they_weigh(models: Models, traces: dict[str, Trace]) -> None:
    made = setup("sled", override={"exchange": Whole()})
    heard, read = Log(), Log()
    play(made, models, questions(ASKED), observers=[heard])
    play(made, opened(traces["none"], made), questions(ASKED), observers=[read])
    assert [now for _, _, now, _ in read.entries] == [now for _, _, now, _ in heard.entries]
    drafts = [
        [event.outcome.kept for _, event, _, _ in log.entries if isinstance(event, Finished) if drafted(event.outcome)]
        for log in (heard, read)
    ]
    assert drafts[0] == drafts[1]
    assert any(drafts[0])


def drafted(outcome: Any) -> bool:
    return isinstance(outcome, Drafted)


def test_another_rule_than_the_recorded_one_is_refused(traces: dict[str, Trace]) -> None:
    low = setup("synera", override={"early_exit": LOW})
    with pytest.raises(ValueError, match=r"policy synera drafts leaving at a margin above 0\.02 in the last 0\.5 of.*"):
        opened(traces["middle"], low)
    with pytest.raises(ValueError, match=r"the trace knows drafts made leaving at a margin above 0\.3.*record them by"):
        opened(traces["middle"], setup("sled"))
    alone = setup("cloud_centric")
    assert opened(traces["middle"], alone).notes() == ()
    assert opened(traces["first check"], setup("sled", override={"early_exit": RULES["first check"]})).notes() == ()
