"""Random policies on random prompts, limits, caches and failures, seeded so that a failure repeats."""

import functools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from native import loader
from serving.drivers.observer import Observer
from serving.drivers.simulator import ComputeResource, Simulator
from serving.messages import (
    INF,
    EmitTokens,
    MessageReceived,
    PeerLost,
    PeerRestored,
    RequestArrived,
    SamplingParams,
    SendMessage,
    SessionCancelled,
)
from serving.nodes.speculator import Speculator
from serving.nodes.worker import Worker
from serving.policy.policy import Policy
from serving.policy.slots.delay_draft import DelayAdaptiveDraft, UCBSpecStop
from serving.policy.slots.draft import (
    GoodputDraft,
    InitialDraft,
    LookupDraft,
    MedusaDraft,
    NoDraft,
    TreeDraft,
    WindowDraft,
)
from serving.policy.slots.early_exit import NoEarlyExit, ProgressiveExit, SequencewiseExit
from serving.policy.slots.importance_offload import ConfidenceOffload, SyneraOffload
from serving.policy.slots.kv_cache import NoPrefixCaching, PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.lookahead import HATLookahead, NoLookahead, SyneraLookahead, TreeLookahead
from serving.policy.slots.offload import AlwaysOffload, FullOffload, NeverOffload, RandomOffload
from serving.policy.slots.payload import FullDistributionPayload as Distributions
from serving.policy.slots.payload import HiddenStatePayload, TokenPayload
from serving.policy.slots.placement import CloudPlacement, ColocatedPlacement, DeviceOnlyPlacement, UShapedPlacement
from serving.policy.slots.prefill import ChunkedPrefill, OverlappedPrefill, WholePrefill
from serving.policy.slots.scheduler import ContinuousBatch, StaticBatch, VerificationAware
from serving.policy.slots.uncertainty_offload import EdgeFMOffload, HybridOffload
from serving.policy.slots.verify import Lossless, Replace, TreeVerify
from tests.support.fake_pair import own_text
from tests.support.policies import MEDUSA, THRESHOLDS, policy
from tests.support.simulated_nodes import World, world

SLOTS: dict[str, list[Any]] = {
    "draft": [
        WindowDraft(4),
        WindowDraft(1),
        WindowDraft(8, "margin", 0.5, keep_last=False),
        WindowDraft(12, "confidence", 0.6),
        InitialDraft(3),
        NoDraft(),
        DelayAdaptiveDraft(6),
        UCBSpecStop(5),
    ],
    "offload": [
        AlwaysOffload(),
        AlwaysOffload(),
        FullOffload(),
        NeverOffload(),
        RandomOffload(0.4),
        ConfidenceOffload(THRESHOLDS),
        SyneraOffload(0.5, THRESHOLDS),
        SyneraOffload(0.0, THRESHOLDS),
        HybridOffload(0.5, THRESHOLDS),
        EdgeFMOffload(0.5, THRESHOLDS),
    ],
    "lookahead": [
        NoLookahead(),
        SyneraLookahead(THRESHOLDS),
        SyneraLookahead(THRESHOLDS, 1, allow_full_acceptance=False, replacement="likeliest"),
        SyneraLookahead(THRESHOLDS, 9),
    ],
    "early_exit": [NoEarlyExit(), SequencewiseExit(0.8), SequencewiseExit(0.0), ProgressiveExit()],
    "verify": [Lossless(), Lossless(), Replace()],
    "payload": [TokenPayload(), Distributions()],
    "prefill": [
        WholePrefill(),
        WholePrefill("ahead"),
        WholePrefill("first"),
        ChunkedPrefill(5),
        ChunkedPrefill(1, "lazy"),
        ChunkedPrefill(9, "first"),
    ],
    "kv_cache": [PrefixCaching(), NoPrefixCaching(), PrefixCaching(100.0)],
    "scheduler": [
        StaticBatch(4, 0.01),
        StaticBatch(1, 0.0),
        ContinuousBatch(),
        ContinuousBatch(2, 16),
        VerificationAware(chunk_tokens=8),
    ],
    "placement": [CloudPlacement(), CloudPlacement(), DeviceOnlyPlacement()],
    "link_loss": [LinkLoss("wait"), LinkLoss("local"), LinkLoss("fail")],
}
SPLIT: dict[str, list[Any]] = SLOTS | {
    "draft": [
        WindowDraft(4),
        WindowDraft(12, "confidence", 0.6),
        WindowDraft(8, "margin", 0.5, keep_last=False),
        NoDraft(),
    ],
    "offload": [AlwaysOffload(), AlwaysOffload(), ConfidenceOffload(THRESHOLDS), SyneraOffload(0.5, THRESHOLDS)],
    "lookahead": [NoLookahead(), HATLookahead(), HATLookahead(2, 3), SyneraLookahead(THRESHOLDS)],
    "payload": [HiddenStatePayload()],
    "prefill": [
        WholePrefill(),
        WholePrefill("ahead"),
        WholePrefill("first"),
        ChunkedPrefill(5),
        OverlappedPrefill(initial_chunk_tokens=8, min_chunk_tokens=2),
        OverlappedPrefill(3, 1, "lazy"),
    ],
    "kv_cache": [PrefixCaching(), PrefixCaching(100.0)],
    "placement": [
        *[UShapedPlacement(pipeline_stages=p, download=d) for p in (1, 2, 4) for d in ("all", "last")],  # type: ignore[arg-type]
        *[UShapedPlacement(pipeline_stages=p, download="all", stream_download=False) for p in (1, 3)],
    ],
}
"""Slot choices for a target whose first layers and head are on the device."""
TREES = SPLIT | {
    "draft": [MedusaDraft(MEDUSA)],
    "verify": [TreeVerify()],
    "offload": [AlwaysOffload()],
    "lookahead": [NoLookahead()],
    "early_exit": [NoEarlyExit()],
    "link_loss": [LinkLoss("wait"), LinkLoss("fail")],
}
COLOCATED = SLOTS | {
    "draft": [
        WindowDraft(4), WindowDraft(8, "margin", 0.5, keep_last=False), WindowDraft(12, "confidence", 0.6),
        LookupDraft(4), MedusaDraft(MEDUSA), GoodputDraft(6), DelayAdaptiveDraft(6), UCBSpecStop(5), TreeDraft(6, 3, 2),
    ],
    "offload": [AlwaysOffload()],
    "lookahead": [NoLookahead()],
    "early_exit": [NoEarlyExit()],
    "verify": [Lossless(), TreeVerify()],
    "prefill": [WholePrefill(), WholePrefill("first")],
    "placement": [ColocatedPlacement()],
    "link_loss": [LinkLoss("wait"), LinkLoss("fail")],
    "batch_drafts": [True, False],
}  # fmt: skip
"""Slot choices for a server that drafts."""
GROWN = SLOTS | {
    "draft": [
        TreeDraft(6, 3, 2), TreeDraft(12, 4, 3), TreeDraft(3, 3, 1), LookupDraft(4, continuations=3),
        TreeDraft(shape=((0,), (1,), (0, 0), (0, 1), (0, 0, 0))),
    ],
    "offload": [AlwaysOffload()],
    "lookahead": [NoLookahead(), TreeLookahead()],
    "early_exit": [NoEarlyExit()],
    "verify": [TreeVerify()],
    "kv_cache": [PrefixCaching(), NoPrefixCaching(), PrefixCaching(200.0)],  # two of the longest sequences with trees
}  # fmt: skip
"""Slot choices for drafts that are trees."""
FAMILIES = {"grown": GROWN, "whole": SLOTS, "split": SPLIT, "trees": TREES, "colocated": COLOCATED}
SEEDS = {"grown": 50, "whole": 100, "split": 25, "trees": 25, "colocated": 25}
"""How many of each hundred seeds are run."""


def half_of(seeds: Sequence[int]) -> list[Any]:
    """The first seeds; each second one is played where slow tests run."""
    return [pytest.param(first, marks=[pytest.mark.slow] if at % 2 else []) for at, first in enumerate(seeds)]


def random_policy(r: random.Random, family: str) -> Policy | None:
    """A row of random choices; None where they do not go together."""
    try:
        return policy("sled", **{slot: r.choice(choices) for slot, choices in FAMILIES[family].items()})
    except ValueError:
        return None


def random_conditions(r: random.Random, family: str, p: Policy) -> dict[str, Any]:
    """The fake pair samples with a draft model's distributions alone."""
    draws = family != "trees" and (family not in ("colocated", "grown") or p.draft.source == "model")
    return {
        "devices": r.choice((1, 3)),
        "calls_each": r.choice((1, 2)),
        "limit": r.choice((1, 2, 5, 24, 40)),
        "prompt": r.choice((1, 2, 9, 33)),
        "alpha": r.choice((0.0, 0.5, 0.8, 1.0)),
        "seed": r.randrange(1000),
        "ends": r.choice(((), tuple(range(0, 997, 40)))),
        "sampling": r.choice((None, SamplingParams(0.9, 0, 1.0, 5))) if draws else None,
        "timeout_s": r.choice((INF, 5.0)),
        "at_once": r.choice((1, 3)) if family in ("split", "trees", "grown") else 1,
    }


def inject_failure(w: World, r: random.Random) -> bool:
    """The cloud is cut off from a device for a while, or restarts with empty caches, or a user leaves."""
    name, at = f"device-{r.randrange(len(w.devices))}", r.uniform(0.0, 0.8)
    kind = r.choice(("cut", "restart", "cancel"))
    w.simulator.run(at)
    at = w.simulator.now
    if kind == "cancel":
        w.simulator.post(at, name, SessionCancelled(r.choice(w.calls).session))
        return False
    for worker in w.workers if kind == "restart" else ():
        w.nodes[worker] = w.make[worker]()
        w.simulator.add(worker, w.nodes[worker], ComputeResource(w.chips[worker]))
        w.chips[worker].caches.clear()
    for device in w.devices if kind == "restart" else [name]:
        for worker in w.workers:
            w.simulator.post(at, device, PeerLost(worker))
        back = at + r.uniform(0.0, 0.4)
        for worker in w.workers:
            w.simulator.post(back, device, PeerRestored(worker))
    return kind == "restart"


class UnreliableSimulator(Simulator):
    """A simulator whose links lose, duplicate and reorder messages, for a while or for ever.

    After a device's own hop they only duplicate: a middle hop, which gets no verdict, cannot distinguish a rejected
    draft from the part of a prompt that should have replaced it, and no transport loses that part and continues.
    """

    def __init__(self, observers: Sequence[Observer], r: random.Random, family: str) -> None:
        super().__init__(observers)
        self._r = r
        self._rates = r.choice(((0.1, 0.0, 0.0), (0.0, 0.4, 0.0), (0.0, 0.0, 0.3), (0.05, 0.2, 0.2)))
        if family in ("split", "trees"):
            self._rates = (0.0, 0.4, 0.0)
        self._until_s = r.choice((INF, 0.5))

    def _send(self, name: str, send: SendMessage) -> None:
        lost, duplicated, delayed = self._rates if self.now < self._until_s else (0.0, 0.0, 0.0)
        r = self._r
        if r.random() < lost:
            return
        for _ in range(2 if r.random() < duplicated else 1):
            delay_s = r.uniform(0.0, 0.6) if r.random() < delayed else 0.02
            self.post(self.now + delay_s, send.to, MessageReceived(send.message))


def check_answers(w: World, p: Policy, undisturbed: bool) -> None:
    for call in w.calls:
        ending, text = w.endings().get(call.session), w.text(call.session)
        own = own_text(call.prompt, call.max_new_tokens, call.stop_tokens)
        assert ending == "complete" or not undisturbed
        assert ending in ("complete", "cancelled", "failed")
        assert ending != "failed" or p.link_loss.action == "fail"
        if ending == "complete":
            assert len(text) == call.max_new_tokens or text[-1] in call.stop_tokens
        if p.lossless and (undisturbed or p.link_loss.action != "local"):
            assert text == own[: len(text)]
    for chunk in w.chunks():
        assert set(chunk.scores) == set(p.requested_scores)
        assert all(len(values) == len(chunk.tokens) for values in chunk.scores.values())
        assert p.lookahead.max_steps or not chunk.lookahead_outcome
        assert not chunk.lookahead_outcome or chunk.accepted is not None


def assert_no_state_left(w: World) -> None:
    servers = [node for node in w.workers.values() if isinstance(node, Speculator)]
    for server in servers:
        assert not server.answers
        assert not server.device.active
        assert not server.device.idle_sessions
    devices = [*w.devices.values(), *(server.device for server in servers)]
    chips = [device.local_worker for device in devices if device.local_worker]
    for worker in (*(node for node in w.workers.values() if isinstance(node, Worker)), *chips):
        assert not worker.queue
        assert not worker.running
        assert not worker.session_tokens
        assert not worker.retained_requests
        assert not worker.forwarded
        assert not worker.kv_accounting.cached_lens
    assert not any(chip.caches for chip in w.chips.values())
    assert not any(device.waiting for device in w.devices.values())


@pytest.mark.parametrize("first", half_of(range(0, 600, 100)))
@pytest.mark.parametrize("family", FAMILIES)
def test_any_policy_serves_any_workload(family: str, first: int) -> None:
    served = 0
    for seed in range(first, first + SEEDS[family]):
        r = random.Random(seed)
        if (p := random_policy(r, family)) is None:
            continue
        served += 1
        w = world(p, **random_conditions(r, family, p))
        w.simulator.run(until=300)
        check_answers(w, p, undisturbed=True)
        assert w.replays(), seed
        assert_no_state_left(w)
    assert served > SEEDS[family] / 5


@pytest.mark.parametrize("first", half_of(range(1000, 1600, 100)))
@pytest.mark.parametrize("family", FAMILIES)
def test_any_policy_survives_losses_and_cancels(family: str, first: int) -> None:
    for seed in range(first, first + SEEDS[family]):
        r = random.Random(seed)
        if (p := random_policy(r, family)) is None:
            continue
        w = world(p, **random_conditions(r, family, p) | {"timeout_s": 5.0})
        for _ in range(r.randint(1, 3)):
            inject_failure(w, r)
        w.simulator.run(until=300)
        check_answers(w, p, undisturbed=False)


@pytest.mark.parametrize("first", half_of(range(4000, 4400, 100)))
@pytest.mark.parametrize("family", FAMILIES)
def test_any_policy_continues_a_conversation(family: str, first: int) -> None:
    """A second turn reuses the caches that the first one left, or drops what is not its own."""
    served = 0
    for seed in range(first, first + SEEDS[family]):
        r = random.Random(seed)
        if (p := random_policy(r, family)) is None:
            continue
        served += 1
        w = world(p, **random_conditions(r, family, p), keep_cache=True)
        w.simulator.run(until=r.choice((0.1, 0.3, 300)))
        said = {call.session: w.text(call.session) for call in w.calls}
        for call in w.calls:
            if call.session not in w.endings():
                w.simulator.post(w.simulator.now, f"device-{call.session[1]}", SessionCancelled(call.session))
        w.simulator.run(until=w.simulator.now + 1)
        w.log.entries.clear()
        w.calls = [
            replace(call, prompt=(*call.prompt, *said[call.session][: r.randrange(10)], *range(r.randrange(1, 4))))
            for call in w.calls
        ]
        for call in w.calls:
            w.simulator.post(w.simulator.now, f"device-{call.session[1]}", RequestArrived(call))
        w.simulator.run(until=600)
        check_answers(w, p, undisturbed=True)
    assert served > SEEDS[family] / 5


def delivered_once(w: World) -> bool:
    over: set[str] = set()
    for deliver in w.log.commands(EmitTokens):
        if deliver.session in over:
            return False
        if deliver.ending:
            over.add(deliver.session)
    return True


@pytest.mark.skipif(loader.in_use, reason="a compiled simulator has no subclasses")
@pytest.mark.parametrize(
    "first", [2100, *(pytest.param(first, marks=pytest.mark.slow) for first in (2000, 2200, 2300))]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_any_policy_survives_unreliable_links(family: str, first: int) -> None:
    answered = 0
    for seed in range(first, first + SEEDS[family]):
        r = random.Random(seed)
        if (p := random_policy(r, family)) is None:
            continue
        drive = functools.partial(UnreliableSimulator, r=r, family=family)
        w = world(p, **random_conditions(r, family, p) | {"timeout_s": 1.0, "drive": drive})
        restarted = sum(inject_failure(w, r) for _ in range(r.randint(0, 2)))
        w.simulator.run(until=3000)
        for call in w.calls:
            ending, text = w.endings().get(call.session), w.text(call.session)
            assert ending in ("complete", "cancelled", "failed"), (seed, call.session)
            answered += ending == "complete"
            if p.lossless and p.link_loss.action != "local":
                assert text == own_text(call.prompt, call.max_new_tokens, call.stop_tokens)[: len(text)], seed
        assert delivered_once(w), seed
        assert restarted or w.replays(), seed
    assert answered > 0.4 * SEEDS[family]
