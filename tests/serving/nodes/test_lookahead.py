"""Lookahead while a verdict is awaited: what is drafted, what survives the verdict, and that no text changes."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from serving.core.session import Branch, Session
from serving.messages import (
    DraftDecision,
    DraftOutcome,
    DraftWork,
    EmitTokens,
    GenerationRequest,
    MessageReceived,
    PeerLost,
    PeerRestored,
    Reply,
    Request,
    RequestArrived,
    SamplingParams,
    SendMessage,
    SessionCancelled,
    StartWork,
    TensorRef,
    Verdict,
    WorkFinished,
)
from serving.nodes.device import Device
from serving.policy.slots.draft import TreeDraft, WindowDraft
from serving.policy.slots.early_exit import SequencewiseExit
from serving.policy.slots.kv_cache import NoPrefixCaching, PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.lookahead import NoLookahead, SyneraLookahead
from serving.policy.slots.prefill import WholePrefill
from serving.policy.slots.verify import TreeVerify
from tests.support.fake_pair import FakePair, extend, own_text
from tests.support.policies import THRESHOLDS, policy
from tests.support.simulated_nodes import World, world

MOMENTS = [i * 0.011 for i in range(25)]
ENDS = tuple(range(0, 997, 40))


@dataclass(frozen=True)
class Weighed:
    """Every draft is verified, with both scores."""

    scope: ClassVar[str] = "all"
    requested_scores: ClassVar[tuple[str, ...]] = ("confidence", "importance")

    def tokens_to_offload(self, s: Session) -> int:
        return 1


def ahead(steps: int = 3, k: int = 4, sessions: int = 3, **conditions: Any) -> World:
    override = {
        "offload": Weighed(),
        "lookahead": SyneraLookahead(THRESHOLDS, steps),
        "kv_cache": PrefixCaching(),
        "draft": WindowDraft(k),
    }
    settings = {"devices": sessions, "limit": 60, **conditions}
    return world(policy("sled", **override | settings.pop("override", {})), **settings)


def works(w: World, looking: bool) -> list[DraftWork]:
    found = [s.work for s in w.log.commands(StartWork) if isinstance(s.work, DraftWork)]
    return [work for work in found if bool(work.branches) is looking]


def prefix_of(tokens: list[int]) -> int:
    prefix = 1
    for token in tokens:
        prefix = extend(prefix, token)
    return prefix


def guess_of(w: World, chunk: DraftDecision) -> str:
    """The outcome of the lookahead for this chunk, computed again from the delivered text."""
    call = next(call for call in w.calls if call.session == chunk.session)
    text = [*call.prompt, *w.text(chunk.session)]
    s = Session(call, 1)
    s.tokens, s.draft, s.scores = (
        text[: chunk.position],
        list(chunk.tokens),
        {"confidence": [*chunk.scores["confidence"]]},
    )
    s.top_candidates = [FakePair().tops(prefix_of([*s.tokens, *chunk.tokens[:i]])) for i in range(len(chunk.tokens))]
    s.start_verification(True, "greedy")
    (at, token), *_ = SyneraLookahead(THRESHOLDS).assumed_verdicts(s)
    if token is None:
        token = FakePair().drafter_token(prefix_of([*s.tokens, *chunk.tokens]))
    wrote = text[chunk.position + (chunk.accepted or 0)] if chunk.position + (chunk.accepted or 0) < len(text) else None
    return "missed" if at != chunk.accepted else "hit" if token == wrote else "position"


def test_lookahead_outcomes_are_reported_correctly() -> None:
    w = ahead().run()
    judged = [
        c for c in w.chunks() if c.position + len(c.tokens) < 12 + 59
    ]  # near the limit there may be no room for it
    assert [c.lookahead_outcome for c in judged] == [guess_of(w, c) for c in judged]
    assert set(Counter(c.lookahead_outcome for c in judged)) == {"missed", "position", "hit"}


@pytest.mark.parametrize(("steps", "k"), [(1, 4), (3, 4), (4, 4), (1, 1), (5, 8)])
@pytest.mark.parametrize(
    "conditions", [{}, {"ends": ENDS}, {"sampling": SamplingParams(0.9, 0, 1.0, 5)}, {"alpha": 0.95}]
)
def test_lookahead_changes_no_draft(steps: int, k: int, conditions: dict[str, Any]) -> None:
    """Adopted or not: the same places, tokens, scores (importance included) and verdicts; only sooner."""
    idle = ahead(k=k, **conditions, override={"lookahead": NoLookahead()}).run()
    busy = ahead(steps, k, **conditions).run()
    for call in idle.calls:
        mine = [[c for c in w.chunks() if c.session == call.session] for w in (idle, busy)]
        seen = [[(c.position, c.tokens, c.scores, c.accepted) for c in chunks] for chunks in mine]
        assert seen[0] == seen[1]
        assert busy.text(call.session) == own_text(call.prompt, 60, call.stop_tokens)
    assert {c.lookahead_outcome for c in idle.chunks()} == {""}
    adopted = [c for c in busy.chunks() if c.lookahead_outcome == "hit"]
    assert adopted
    written = [sum(work.stop_rule.max_tokens for work in works(w, looking=False)) for w in (idle, busy)]
    assert written[1] < written[0]


@pytest.mark.parametrize(("steps", "k"), [(9, 4), (3, 2), (3, 1)])
def test_lookahead_beyond_a_window_is_the_drafters_continuation(steps: int, k: int) -> None:
    w = ahead(steps, k).run()
    pair = FakePair()
    for chunk in w.chunks():
        call = next(call for call in w.calls if call.session == chunk.session)
        prefix = prefix_of([*call.prompt, *w.text(chunk.session)][: chunk.position])
        for token in chunk.tokens:
            assert token == pair.drafter_token(prefix)
            prefix = extend(prefix, token)
    assert all(w.text(call.session) == own_text(call.prompt, 60) for call in w.calls)
    assert max(len(chunk.tokens) for chunk in w.chunks()) <= max(steps, k)


def test_lookahead_changes_no_offload_decision() -> None:
    """Random numbers depend on the position, so that lookahead changes no decision."""
    texts = []
    for waiting in (NoLookahead(), SyneraLookahead(THRESHOLDS)):
        w = world(policy("synera", lookahead=waiting), limit=60).run()
        texts.append([w.text(call.session) for call in w.calls])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("steps", [1, 3, 9])
def test_lookahead_drafts_no_more_than_requested(steps: int) -> None:
    """One branch, one token a turn, `steps` of them behind the guess; the drafter's own guess comes first."""
    w = ahead(steps, sessions=1).run()
    turns: list[int] = []
    for command in (c for name, _, _, said in w.log.entries if name == "device-0" for c in said):
        if isinstance(command, SendMessage) and isinstance(command.message, Request):
            turns.append(0)
        elif isinstance(command, StartWork) and isinstance(command.work, DraftWork) and command.work.branches:
            assert len(command.work.branches) == 1
            assert (command.work.input_tokens, command.work.stop_rule.max_tokens) == ((), 1)
            turns[-1] += 1
    assert max(turns) in ((steps, steps + 1) if steps < 9 else range(3, 10))  # a verdict comes before nine are drafted


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 9, 24])
@pytest.mark.parametrize("ends", [(), ENDS])
def test_nothing_is_drafted_ahead_past_an_end_token_or_the_limit(limit: int, ends: tuple[int, ...]) -> None:
    w = ahead(9, limit=limit, ends=ends, alpha=0.9, sessions=6).run()
    assert set(w.endings().values()) == {"complete"}
    for work in works(w, looking=True):
        call = next(call for call in w.calls if call.session == work.session)
        position = work.start + len(work.branches[0])
        assert position < len(call.prompt) + limit
        own = work.branches[0][max(0, len(call.prompt) - work.start) :]
        assert not set(own) & set(ends)
    for chunk in w.chunks():
        assert not set(chunk.tokens[:-1]) & set(ends)
        assert chunk.position + len(chunk.tokens) <= 12 + limit


@pytest.mark.parametrize(("steps", "k", "fills"), [(4, 4, True), (9, 4, True), (3, 4, False), (1, 8, False)])
def test_adopted_drafts_are_scored_by_a_fill_or_with_the_next_draft(steps: int, k: int, fills: bool) -> None:
    w = ahead(steps, k, alpha=0.95).run()
    again = [work for work in works(w, looking=False) if work.num_adopted_drafts]
    assert again
    assert any(work.stop_rule.max_tokens == 0 for work in again) is fills
    assert any(work.stop_rule.max_tokens > 0 for work in again) or steps >= k
    for work in again:
        assert work.num_adopted_drafts <= steps
        assert len(work.input_tokens) >= work.num_adopted_drafts - (work.stop_rule.max_tokens == 0)
    pair = FakePair(0.95)
    for chunk in w.chunks():
        call = next(call for call in w.calls if call.session == chunk.session)
        prefix = prefix_of([*call.prompt, *w.text(chunk.session)][: chunk.position])
        for token, importance in zip(chunk.tokens, chunk.scores["importance"], strict=True):
            assert importance == pair._score(prefix, "importance")
            prefix = extend(prefix, token)


def test_without_importance_no_token_is_fed_twice() -> None:
    w = ahead(9, override={"offload": policy("sled").offload}).run()
    assert {work.num_adopted_drafts for work in works(w, looking=False)} == {0}
    assert all(work.stop_rule.max_tokens for work in works(w, looking=False))


# Faults while looking ahead.


@pytest.mark.parametrize("at", MOMENTS)
@pytest.mark.parametrize("action", ["wait", "local", "fail"])
def test_lookahead_survives_a_lost_link_at_any_moment(at: float, action: Any) -> None:
    w = ahead(9, limit=24, override={"link_loss": LinkLoss(action)})
    w.simulator.run(at)
    w.simulator.post(at, "device-0", PeerLost("cloud"))
    w.simulator.post(at + 0.05, "device-0", PeerRestored("cloud"))
    w.simulator.run()
    assert w.endings()["s0.0"] in (("complete", "failed") if action == "fail" else ("complete",))
    if action == "wait":
        assert w.text("s0.0") == own_text(w.calls[0].prompt, 24)
    assert w.replays()


@pytest.mark.parametrize("at", MOMENTS)
def test_lookahead_survives_a_cancel_at_any_moment(at: float) -> None:
    w = ahead(9, limit=24)
    w.simulator.run(at)
    w.simulator.post(at, "device-0", SessionCancelled("s0.0"))
    w.simulator.run()
    assert w.endings()["s0.0"] == "cancelled"
    assert not any(chip.caches for chip in w.chips.values())


@pytest.mark.parametrize("timeout_s", [0.015, 0.03, 0.06])
def test_a_retried_request_starts_a_new_lookahead(timeout_s: float) -> None:
    w = ahead(9, limit=24, timeout_s=timeout_s)
    w.simulator.run(60.0)
    assert set(w.endings().values()) == {"complete"}
    assert all(w.text(call.session) == own_text(call.prompt, 24) for call in w.calls)
    assert {c.lookahead_outcome for c in w.chunks()} >= {"hit", "missed"}


def test_a_lookahead_job_overtaken_by_the_verdict_is_ignored() -> None:
    """Its outcome comes late: it is no part of the next draft, whose work is fed from where the look-ahead began."""
    override = {"lookahead": SyneraLookahead(THRESHOLDS, 9), "kv_cache": PrefixCaching()}
    p = policy("sled", **override)  # type: ignore[arg-type]
    device = Device("d", p, p.placement.hops(8, 8), {"cloud": ("cloud",)}, 0)
    device.handle(RequestArrived(GenerationRequest("s", (1, 2, 3), 40)), 0.0)
    tops = tuple((t, t + 7, t + 11) for t in (4, 5, 6, 7))
    out = device.handle(
        WorkFinished(1, DraftOutcome((4, 5, 6, 7), {"confidence": (0.9, 0.1, 0.9, 0.9)}, tops, False, 6)), 1.0
    )
    looking = next(c for c in out if isinstance(c, StartWork))
    assert isinstance(looking.work, DraftWork)
    assert looking.work.branches
    out = device.handle(MessageReceived(Reply("s", 0, 3, Verdict(0, 500), ("cloud",), 0)), 1.1)
    drafting = next(c for c in out if isinstance(c, StartWork))
    assert isinstance(drafting.work, DraftWork)
    assert drafting.work.start <= looking.work.start
    assert drafting.work.input_tokens == (1, 2, 3, 500)[drafting.work.start :]
    assert not device.handle(
        WorkFinished(looking.job, DraftOutcome((77,), {"confidence": (0.9,)}, ((),), False, 2)), 1.2
    )
    assert device.active_requester is not None
    assert device.active_requester.session.draft == []


def looking_ahead(device: Device) -> StartWork:
    """The look-ahead's first work, on the assumption that 500 replaces the second of four drafts."""
    device.handle(RequestArrived(GenerationRequest("s", (1, 2, 3), 40)), 0.0)
    tops = tuple((t, t + 7, t + 11) for t in (4, 5, 6, 7))
    drafts = DraftOutcome((4, 5, 6, 7), {"confidence": (0.9, 0.1, 0.9, 0.9)}, tops, False, 6)
    return next(c for c in device.handle(WorkFinished(1, drafts), 1.0) if isinstance(c, StartWork))


@dataclass(frozen=True)
class SecondReplaced(NoLookahead):
    """Assumes that 500 replaces the second draft."""

    max_steps: ClassVar[int] = 9

    def num_steps(self, session: Session) -> int:
        return 9

    def assumed_verdicts(self, session: Session) -> tuple[tuple[int, int | None], ...]:
        return ((1, 500),)


def one_device(k: int = 4, **override: Any) -> Device:
    slots = {"lookahead": SecondReplaced(), "kv_cache": PrefixCaching(), "draft": WindowDraft(k)} | override
    p = policy("sled", **slots)
    return Device("d", p, p.placement.hops(8, 8), {"cloud": ("cloud",)}, 0)


def drafted_ahead(token: int) -> DraftOutcome:
    return DraftOutcome((token,), {"confidence": (0.9,)}, ((token, 1, 2),), False, 4)


def test_a_step_for_the_adopted_branch_goes_on_behind_the_verdict() -> None:
    device = one_device()
    looking = looking_ahead(device)
    hit = device.handle(MessageReceived(Reply("s", 0, 3, Verdict(1, 500), ("cloud",), 0)), 1.1)
    assert not any(isinstance(c, StartWork) for c in hit)  # the chip is taking the step that is needed
    (judged,) = [c for c in hit if isinstance(c, DraftDecision)]
    assert judged.lookahead_outcome == "hit"
    (drafting,) = [
        c.work
        for c in device.handle(WorkFinished(looking.job, drafted_ahead(77)), 1.2)
        if isinstance(c, StartWork) and isinstance(c.work, DraftWork)
    ]
    assert device.active_requester is not None
    assert device.active_requester.session.draft == [77]
    assert (drafting.input_tokens[-1], drafting.stop_rule.max_tokens) == (77, 3)


def test_a_step_for_the_adopted_branch_is_not_awaited_if_its_draft_is_complete() -> None:
    device = one_device(k=1)
    looking = looking_ahead(device)
    (further,) = [
        c for c in device.handle(WorkFinished(looking.job, drafted_ahead(77)), 1.05) if isinstance(c, StartWork)
    ]
    hit = device.handle(MessageReceived(Reply("s", 0, 3, Verdict(1, 500), ("cloud",), 0)), 1.1)
    (sent,) = [c.message for c in hit if isinstance(c, SendMessage) and isinstance(c.message, Request)]
    assert sent.slice.tokens[-1] == 77
    device.handle(WorkFinished(further.job, drafted_ahead(78)), 1.2)
    assert device.active_requester is not None
    assert device.active_requester.session.draft == [77]


def test_a_fill_of_the_draft_models_cache_goes_on_behind_the_verdict() -> None:
    p = policy("sled", prefill=WholePrefill(when="first"), kv_cache=PrefixCaching(), draft=WindowDraft(4))
    device = Device("d", p, p.placement.hops(8, 8), {"cloud": ("cloud",)}, 0)
    out = device.handle(RequestArrived(GenerationRequest("s", (1, 2, 3), 40)), 0.0)
    (fill,) = [c for c in out if isinstance(c, StartWork)]
    assert isinstance(fill.work, DraftWork)
    assert (fill.work.input_tokens, fill.work.stop_rule.max_tokens) == ((1, 2), 0)
    first = device.handle(MessageReceived(Reply("s", 0, 3, Verdict(0, 500), ("cloud",), 0)), 1.0)
    assert not any(isinstance(c, StartWork) for c in first)
    filled = device.handle(WorkFinished(fill.job, DraftOutcome((), {}, (), False, 2)), 1.1)
    (drafting,) = [c.work for c in filled if isinstance(c, StartWork)]
    assert isinstance(drafting, DraftWork)
    assert (drafting.start, drafting.input_tokens) == (2, (3, 500))


def test_a_fill_with_drafts_in_flight_is_abandoned() -> None:
    """A verdict may reject some of them: what the fill leaves in the cache is not the text's."""
    device = one_device()
    looking = looking_ahead(device)
    device.handle(WorkFinished(looking.job, drafted_ahead(77)), 1.05)
    assert device.active_requester is not None
    (fill,) = [c for c in device.active_requester.restart_draft(1.06) if isinstance(c, StartWork)]
    assert isinstance(fill.work, DraftWork)
    assert fill.work.input_tokens == (1, 2, 3, 4, 5, 6)
    hit = device.handle(MessageReceived(Reply("s", 0, 3, Verdict(1, 500), ("cloud",), 0)), 1.1)
    (drafting,) = [c.work for c in hit if isinstance(c, StartWork)]
    assert isinstance(drafting, DraftWork)
    assert (drafting.start, drafting.input_tokens) == (0, (1, 2, 3, 4, 500, 77))
    assert device.handle(WorkFinished(fill.job, DraftOutcome((), {}, (), False, 6)), 1.2) == []


def test_a_fill_with_a_tree_in_flight_feeds_the_text_alone() -> None:
    """The nodes of a tree, one after the other, are no text: 5 and 6 are two ways to go on behind 3."""
    device = one_device(draft=TreeDraft(3, 2, 2), verify=TreeVerify(), lookahead=NoLookahead())
    device.handle(RequestArrived(GenerationRequest("s", (1, 2, 3), 40)), 0.0)
    tree = DraftOutcome((5, 6, 7), {}, ((5,), (6,), (7,)), False, 3, parents=(-1, -1, 1))
    device.handle(WorkFinished(1, tree), 1.0)
    requester = device.active_requester
    assert requester is not None
    requester.restart_draft(1.05)
    (fill,) = [c for c in requester.on_chip_idle(1.06) if isinstance(c, StartWork)]
    assert isinstance(fill.work, DraftWork)
    assert (fill.work.start, fill.work.input_tokens) == (0, (1, 2))
    device.handle(WorkFinished(fill.job, DraftOutcome((), {}, (), False, 2)), 1.07)
    judged = device.handle(MessageReceived(Reply("s", 0, 3, Verdict(1, 500, (1,)), ("cloud",), 0)), 1.1)
    (drafting,) = [c.work for c in judged if isinstance(c, StartWork)]
    assert isinstance(drafting, DraftWork)
    assert (drafting.start, drafting.input_tokens) == (2, (3, 6, 500))


def test_without_a_cache_on_the_device_a_step_for_the_adopted_branch_is_abandoned() -> None:
    device = one_device(kv_cache=NoPrefixCaching(device_keeps_cache=False))
    looking_ahead(device)
    hit = device.handle(MessageReceived(Reply("s", 0, 3, Verdict(1, 500), ("cloud",), 0)), 1.1)
    (judged,) = [c for c in hit if isinstance(c, DraftDecision)]
    assert judged.lookahead_outcome == "position"
    (drafting,) = [c.work for c in hit if isinstance(c, StartWork)]
    assert isinstance(drafting, DraftWork)
    assert drafting.input_tokens == (1, 2, 3, 4, 500)


def test_tokens_that_are_not_verified_do_not_wait_for_a_step() -> None:
    """Behind the sequence exit the adopted branch's first token is shown at once."""
    device = one_device(early_exit=SequencewiseExit(0.0))
    looking = looking_ahead(device)
    (further,) = [
        c for c in device.handle(WorkFinished(looking.job, drafted_ahead(77)), 1.05) if isinstance(c, StartWork)
    ]
    hit = device.handle(MessageReceived(Reply("s", 0, 3, Verdict(1, 500), ("cloud",), 0)), 1.1)
    shown = [c.tokens for c in hit if isinstance(c, EmitTokens)]
    assert shown == [(4, 500), (77,)]
    assert further.job not in [c.job for c in hit if isinstance(c, StartWork)]


# The bookkeeping.


def drafted_one(token: int) -> DraftOutcome:
    return DraftOutcome(
        (token,), {"confidence": (token / 100,)}, ((token, 1, 2),), False, 5, (TensorRef(f"odds {token}", 8),)
    )


def in_flight(limit: int = 20, ends: tuple[int, ...] = (99,)) -> Session:
    s = Session(GenerationRequest("s", (1, 2, 3), limit, ends), 0)
    s.draft = [10, 11, 12, 13]
    s.start_verification(True, "sample")
    return s


def test_the_assumed_token_comes_first_and_is_no_draft() -> None:
    s = in_flight()
    s.branches = [Branch(4, None)]
    for token in (20, 21, 22, 23):
        s.extend_branches(drafted_one(token), s.growing_branches(3), lambda _: False, True)
    branch = s.branches[0]
    assert (branch.token, branch.tokens) == (20, [21, 22])
    assert branch.scores == {"confidence": [0.21, 0.22]}
    assert [blob.id for blob in branch.draft_probs] == ["odds 21", "odds 22"]
    s.apply_verdict(Verdict(4, 20))
    assert (s.draft, s.top_candidates) == ([21, 22], [(21, 1, 2), (22, 1, 2)])
    assert [blob.id for blob in s.draft_probs] == ["odds 21", "odds 22"]
    assert s.num_unscored == 2


@pytest.mark.parametrize(
    ("limit", "accepted", "token", "grows"),
    [(20, 0, 50, True), (20, 0, 99, False), (2, 0, 50, True), (1, 0, 50, False), (5, 3, 50, True), (4, 3, 50, False)],
)
def test_a_branch_ends_at_its_limit(limit: int, accepted: int, token: int, grows: bool) -> None:
    s = in_flight(limit)
    s.branches = [Branch(accepted, token)]
    assert bool(s.growing_branches(3)) is grows


def test_branch_inputs_start_at_the_end_of_the_common_prefix() -> None:
    s = in_flight()
    s.draft_cached_len = 6
    s.branches = [Branch(3, 50, [51]), Branch(1, 60)]
    assert s.branch_inputs(s.branches) == (3, ((10, 11, 12, 50, 51), (10, 60)))
    assert s.branch_inputs(s.branches[:1]) == (5, ((12, 50, 51),))
