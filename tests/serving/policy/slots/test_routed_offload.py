"""Token routing on simulated nodes and small random models: the origin of each token and its cost."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.core.session import Session
from serving.deployment.model_loading import load_models
from serving.deployment.queries import LoadedModels, Query
from serving.engines.models import Checkpoint
from serving.learned.router import ROUTE, TokenRouter
from serving.log.event_log import EventHandled
from serving.messages import (
    DraftOutcome,
    DraftWork,
    GenerationRequest,
    Request,
    RoutingOptions,
    SendMessage,
    StartWork,
    WorkFinished,
)
from serving.outcomes.offline import run_untimed
from serving.outcomes.record import target_only
from serving.policy.policy import EngineRequirements, Policy
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.kv_cache import NoPrefixCaching, PrefixCaching
from serving.policy.slots.offload import Offload
from serving.policy.slots.prefill import ChunkedPrefill, OverlappedPrefill, WholePrefill
from serving.policy.slots.routed_offload import RoutedOffload
from serving.policy.slots.verify import Replace
from serving.progress import silent
from serving.workload.prompt import Prompt
from tests.support.learned_models import random_router
from tests.support.tiny_models import save_checkpoint

HIDDEN = 16
PROMPTS = [(2, 3, 4), (5, 6, 2, 9, 4), (8,), (7, 7, 3, 2, 5, 6, 8, 9)]
LIMIT = 14


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return save_checkpoint(folder / "small"), save_checkpoint(folder / "large", layers=3, seed=1, hidden=32)


@pytest.fixture(scope="module")
def router(pair: tuple[Path, Path]) -> TokenRouter:
    """A threshold in the midst of its scores."""
    plain = random_router(HIDDEN)
    scores = sorted(plain.probability(hidden) for prompt in PROMPTS for hidden in states(pair[0], prompt))
    return replace(plain, threshold=scores[len(scores) // 2], heldout_scores=tuple(scores))


def states(path: Path, tokens: Sequence[int]) -> Any:
    """The last hidden states as `transformers` gives them."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([list(tokens)]), output_hidden_states=True).hidden_states[-1][0].numpy()


def policy(offload: Offload, **more: Any) -> Policy:
    return replace(target_only(), name="routing", draft=WindowDraft(1), offload=offload, verify=Replace(), **more)


def opened(pair: tuple[Path, Path], router: TokenRouter) -> LoadedModels:
    return load_models(
        Checkpoint(path=pair[0]), Checkpoint(path=pair[1]), requirements=EngineRequirements({ROUTE: router})
    )


def queries(routing: RoutingOptions | None = None) -> list[Query]:
    calls = [GenerationRequest(f"s{i}", tokens, LIMIT, routing=routing) for i, tokens in enumerate(PROMPTS)]
    return [Query(call, Prompt(call.session, "", (), ""), 0, None, 0.0, None) for call in calls]


def by_hand(
    pair: tuple[Path, Path], router: TokenRouter, prompt: Sequence[int], span: int = 1
) -> tuple[list[int], list[str]]:
    """The same answer with everything computed anew for each token."""
    import torch
    from transformers import AutoModelForCausalLM

    small, large = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in pair)
    text, origins = list(prompt), list[str]()
    with torch.no_grad():
        while len(origins) < LIMIT:
            seen = small(torch.tensor([text]), output_hidden_states=True)
            cloud = router.routes(router.probability(seen.hidden_states[-1][0, -1].numpy()))
            for _ in range(min(span, LIMIT - len(origins)) if cloud else 1):
                writer = large if cloud else small
                text.append(int(writer(torch.tensor([text])).logits[0, -1].argmax()))
                origins.append("cloud" if cloud else "device")
    return text[len(prompt) :], origins


@pytest.mark.parametrize("span", [1, 3])
@pytest.mark.parametrize("kv_cache", [PrefixCaching(), NoPrefixCaching(), NoPrefixCaching(device_keeps_cache=False)])
def test_routed_decoding_equals_both_models_writing_in_turn(
    pair: tuple[Path, Path], router: TokenRouter, span: int, kv_cache: Any
) -> None:
    records = run_untimed(
        policy(RoutedOffload(router, num_cloud_tokens=span), kv_cache=kv_cache),
        opened(pair, router),
        queries(),
        0,
        silent,
    )
    seen = set()
    for i, prompt in enumerate(PROMPTS):
        tokens, origins = by_hand(pair, router, prompt, span)
        assert (records[f"s{i}"].tokens, list(records[f"s{i}"].origins)) == (tokens, origins)
        seen |= set(origins)
    assert seen == {"device", "cloud"}


def test_the_routing_score_is_of_the_hidden_state_before_the_token(
    pair: tuple[Path, Path], router: TokenRouter
) -> None:
    records = run_untimed(policy(RoutedOffload(router)), opened(pair, router), queries(), 0, silent)
    for i, prompt in enumerate(PROMPTS):
        record = records[f"s{i}"]
        hidden = states(pair[0], (*prompt, *record.tokens))
        expected = [
            router.probability(row) for row in hidden[len(prompt) - 1 : len(prompt) - 1 + len(record.draft_decisions)]
        ]
        assert [chunk.scores[ROUTE][0] for chunk in record.draft_decisions] == pytest.approx(expected, abs=1e-5)


def test_a_request_may_set_its_threshold_or_small_only(pair: tuple[Path, Path], router: TokenRouter) -> None:
    models, rows = opened(pair, router), policy(RoutedOffload(router))

    def routed(routing: RoutingOptions | None) -> int:
        records = run_untimed(rows, models, queries(routing), 0, silent)
        return sum(record.origins.count("cloud") for record in records.values())

    assert routed(RoutingOptions(threshold=0.0)) == routed(RoutingOptions(small_only=True)) == 0
    assert (
        0
        < routed(RoutingOptions(threshold=router.heldout_scores[2]))
        < routed(None)
        < routed(RoutingOptions(threshold=1.0))
    )
    assert routed(RoutingOptions()) == routed(None)
    assert routed(RoutingOptions(threshold=1.0, small_only=True)) == 0


def test_the_opposite_side_routes_the_other_tokens(pair: tuple[Path, Path], router: TokenRouter) -> None:
    """The score of each answer's first token, before which no token was routed."""
    first = []
    for side in ("below", "above"):
        chosen = replace(router, side=side)
        records = run_untimed(policy(RoutedOffload(chosen)), opened(pair, chosen), queries(), 0, silent)
        first.append([records[f"s{i}"].origins[0] for i in range(len(PROMPTS))])
    assert all(a != b for a, b in zip(*first, strict=True))


def test_small_only_routes_nothing(pair: tuple[Path, Path], router: TokenRouter) -> None:
    records = run_untimed(
        policy(RoutedOffload(router, 1.0, mode="small_only")), opened(pair, router), queries(), 0, silent
    )
    assert {origin for record in records.values() for origin in record.origins} == {"device"}


class Log:
    def __init__(self) -> None:
        self.entries: list[EventHandled] = []

    def event_handled(self, node: str, event: Any, now: float, commands: Any) -> None:
        self.entries.append(EventHandled(node, now, event, tuple(commands)))

    def work_done(self, *_: object) -> None: ...

    def message_sent(self, *_: object) -> None: ...


@pytest.mark.parametrize(("kept", "rows"), [(True, "new"), (False, "all")])
def test_kept_caches_get_only_new_tokens(
    pair: tuple[Path, Path], router: TokenRouter, kept: bool, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serving.outcomes import offline

    log, models = Log(), opened(pair, router)
    real = offline.Simulator
    monkeypatch.setattr(offline, "Simulator", lambda observers: real([*observers, log]))
    kv_cache = PrefixCaching() if kept else NoPrefixCaching(device_keeps_cache=False)
    run_untimed(policy(RoutedOffload(router), kv_cache=kv_cache), models, queries()[:2], 0, silent)
    starts = [
        c.work for e in log.entries for c in e.commands if isinstance(c, StartWork) and isinstance(c.work, DraftWork)
    ]
    asked = [
        c.message
        for e in log.entries
        for c in e.commands
        if isinstance(c, SendMessage) and isinstance(c.message, Request)
    ]
    for session in ("s0", "s1"):
        own = [request.slice for request in asked if request.slice.session == session]
        assert len(own) > 1
        for before, after in pairwise(own):  # kept: each goes on where the one before ended
            assert not kept or after.start == before.start + before.num_tokens
    again = [work for session in ("s0", "s1") for work in [work for work in starts if work.session == session][1:]]
    assert any(work.start == 0 for work in again) is (rows == "all")
    drafts = [e.event.outcome for e in log.entries if isinstance(e.event, WorkFinished)]
    assert all(len(d.tokens) == 1 for d in drafts if isinstance(d, DraftOutcome))


@pytest.mark.parametrize(("fields", "said"), [
    ({"num_cloud_tokens": 0}, "num_cloud_tokens is 0"), ({"mode": "both"}, "'both'"), ({"threshold": 1.2}, "1.2"),
    ({"share": 2.0}, "share is 2.0"), ({"share": 0.1, "threshold": 0.2}, "name one"),
])  # fmt: skip
def test_routed_offload_options_out_of_range_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RoutedOffload(random_router(4), **fields)


def test_a_share_selects_its_threshold() -> None:
    router = random_router(4, heldout_scores=tuple(np.linspace(0.0, 0.99, 100).tolist()))
    session = Session(GenerationRequest("s", (1, 2), 8), 0)
    session.add_draft(DraftOutcome((3,), {ROUTE: (0.05,)}, ((3, 4, 5),), False, 2))
    assert RoutedOffload(router, share=0.1).effective_threshold == router.threshold_for(0.1)
    assert [
        RoutedOffload(router, share=share, num_cloud_tokens=4).tokens_to_offload(session) for share in (0.01, 0.1)
    ] == [0, 4]


@pytest.mark.parametrize(
    "prefill", [WholePrefill(), WholePrefill("ahead"), ChunkedPrefill(2, "ahead"), OverlappedPrefill()]
)
@pytest.mark.parametrize("how", ["call", "policy"])
def test_small_only_sends_nothing_not_even_the_prompt(
    pair: tuple[Path, Path], router: TokenRouter, prefill: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serving.outcomes import offline

    log, real = Log(), offline.Simulator
    monkeypatch.setattr(offline, "Simulator", lambda observers: real([*observers, log]))
    routed = RoutedOffload(router, mode="small_only" if how == "policy" else "joint")
    calls = queries(RoutingOptions(small_only=True) if how == "call" else None)
    run_untimed(policy(routed, prefill=prefill), opened(pair, router), calls, 0, silent)
    sent = [c.message for e in log.entries for c in e.commands if isinstance(c, SendMessage)]
    assert not any(isinstance(message, Request) for message in sent)


def test_a_router_of_another_width_is_refused_when_models_are_opened(pair: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match=r"hidden states of 7 numbers, and those of .* have 16; train the scorer"):
        opened(pair, random_router(7))
