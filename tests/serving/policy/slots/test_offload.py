"""Which drafts are offloaded: without scores, by uncertain tokens (Hybrid), by whole answers (EdgeFM)."""

from math import exp, log
from typing import Any

import pytest

from serving.core.keyed_random import key, uniform
from serving.core.session import Session
from serving.learned.thresholds import Thresholds
from serving.messages import INF, EmitTokens, GenerationRequest, Request, SendMessage
from serving.policy.slots.draft import InitialDraft, WindowDraft
from serving.policy.slots.offload import AlwaysOffload, FullOffload, NeverOffload, RandomOffload
from serving.policy.slots.uncertainty_offload import EdgeFMOffload, HybridOffload, perplexity
from serving.policy.slots.verify import Replace
from tests.support.fake_pair import extend, target_token
from tests.support.policies import policy
from tests.support.simulated_nodes import World, world

SHARES = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)


def spread(n: int = 400) -> Thresholds:
    """Confidences over 0 to 1 and openings over 1 to 11, in no order."""
    stream = key(0, "chunks")
    confidence = tuple(uniform(stream, i, "confidence") for i in range(n))
    openings = tuple(1 + 10 * uniform(stream, i, "openings") for i in range(n))
    return Thresholds(0.7, 0.7, confidence, (0.5,) * n, {}, openings)


def drafted(*confidence: float, name: str = "s", written: int = 0) -> Session:
    s = Session(GenerationRequest(name, (1, 2, 3), 20), 0)
    s.tokens += range(written)
    s.draft, s.scores = [1] * len(confidence), {"confidence": list(confidence)}
    return s


def asked(w: World) -> list[Request]:
    return [sent.message for sent in w.log.commands(SendMessage) if isinstance(sent.message, Request)]


# Offloading without scores.


def test_always_never_and_full_offload() -> None:
    s = drafted(0.5, 0.5)
    assert (
        AlwaysOffload().tokens_to_offload(s),
        NeverOffload().tokens_to_offload(s),
        FullOffload().tokens_to_offload(s),
    ) == (1, 0, 20)
    assert (AlwaysOffload().scope, NeverOffload().scope, FullOffload().scope, RandomOffload(0.5).scope) == (
        "all",
        "none",
        "full",
        "some",
    )


@pytest.mark.parametrize("budget", SHARES)
def test_random_offload_sends_the_budgets_share_of_drafts(budget: float) -> None:
    offload = RandomOffload(budget)
    sent = [offload.tokens_to_offload(drafted(0.5, name=f"s{i}", written=at)) for i in range(100) for at in range(20)]
    assert sum(sent) / 2000 == pytest.approx(budget, abs=0.03)
    assert offload.requested_scores == ()


def test_random_offload_is_independent_of_other_decisions() -> None:
    """A random baseline must not choose the chunks that another purpose's random numbers choose."""
    sessions = [drafted(0.5, name=f"s{i}") for i in range(400)]
    both = sum(RandomOffload(0.5).tokens_to_offload(s) and s.uniform("offload_importance") < 0.5 for s in sessions)
    assert both / 400 == pytest.approx(0.25, abs=0.07)


# Uncertain tokens.


@pytest.mark.parametrize("budget", SHARES)
def test_hybrid_offloads_the_least_confident_share_of_drafts(budget: float) -> None:
    profiled = spread()
    offload = HybridOffload(budget, profiled)
    sent = [c for c in profiled.confidence if offload.tokens_to_offload(drafted(c))]
    assert sent == [c for c in profiled.confidence if c in sorted(profiled.confidence)[: round(400 * budget)]]
    assert len(sent) / 400 == pytest.approx(budget)


def test_hybrid_replaces_one_token_at_a_time() -> None:
    """Each offloaded token is the target's, each kept one the drafter's; none is sent along."""
    fields: dict[str, Any] = {"draft": WindowDraft(1), "verify": Replace(), "offload": HybridOffload(0.5, spread())}
    w = world(policy("sled", **fields), devices=1, limit=60, alpha=0.3).run()
    delivered = [d for d in w.log.commands(EmitTokens) if d.tokens]
    assert all(len(d.tokens) == 1 for d in delivered)
    assert all((r.slice.num_drafts, r.budget) == (0, 1) for r in asked(w))
    origins = [d.origins[0] for d in delivered]
    assert len(origins) == 60
    assert set(origins) == {"device", "cloud"}
    assert origins.count("cloud") == len(asked(w)) == len([c for c in w.chunks() if c.accepted == 0])
    threshold = fields["offload"].threshold
    for chunk, origin in zip(w.chunks(), origins, strict=True):
        assert len(chunk.tokens) == 1
        assert (chunk.scores["confidence"][0] <= threshold) == (chunk.accepted == 0) == (origin == "cloud")
    prefix_text = [*w.calls[0].prompt, *w.text("s0.0")]
    for chunk, delivery in zip(w.chunks(), delivered, strict=True):
        own = target_token(prefix_of(prefix_text[: chunk.position]))
        assert delivery.tokens[0] == (own if delivery.origins == ("cloud",) else chunk.tokens[0])


def prefix_of(text: list[int]) -> int:
    prefix = 1
    for token in text:
        prefix = extend(prefix, token)
    return prefix


# Whole samples.


def test_perplexity_is_the_inverse_geometric_mean() -> None:
    assert perplexity((0.5, 0.5, 0.5)) == pytest.approx(2.0)
    assert perplexity((0.25, 1.0)) == pytest.approx(2.0)
    assert perplexity([1.0]) == 1.0
    assert perplexity((0.9, 0.1)) == pytest.approx(exp(-(log(0.9) + log(0.1)) / 2))
    assert 1e11 < perplexity((0.0,)) < INF


@pytest.mark.parametrize("budget", SHARES)
def test_edgefm_offloads_the_budgets_share_of_answers(budget: float) -> None:
    profiled = spread()
    offload = EdgeFMOffload(budget, profiled)
    budgets = [offload.tokens_to_offload(drafted(1 / ppl)) for ppl in profiled.first_chunk_perplexities]
    assert set(budgets) <= {0, 20}
    assert budgets.count(20) / 400 == pytest.approx(budget, abs=1 / 400)


def test_edgefm_decides_once_for_an_answer() -> None:
    offload = EdgeFMOffload(0.5, spread())
    assert offload.tokens_to_offload(drafted(0.01)) == 20
    assert offload.tokens_to_offload(drafted(0.01, written=1)) == 0


def test_edgefm_offloads_a_whole_answer_or_nothing() -> None:
    """Opening drafts of four; the sample that goes is the target's own text from its first token."""
    profiled = Thresholds(0.7, 0.7, (), (), {}, (1.2, 1.4, 2.0, 4.0))
    fields: dict[str, Any] = {"draft": InitialDraft(4), "verify": Replace(), "offload": EdgeFMOffload(0.5, profiled)}
    w = world(policy("sled", **fields), devices=12, limit=24, alpha=0.6).run()
    seen = set()
    for call in w.calls:
        own = {o for d in w.log.commands(EmitTokens) if d.session == call.session for o in d.origins}
        sent = [r for r in asked(w) if r.slice.session == call.session]
        opening = next(c for c in w.chunks() if c.session == call.session)
        high = perplexity(opening.scores["confidence"]) > fields["offload"].threshold
        assert own == ({"cloud"} if high else {"device"})
        assert [(r.slice.num_drafts, r.budget, r.slice.num_tokens) for r in sent] == ([(0, 24, 12)] if high else [])
        assert len(opening.tokens) == 4
        assert len(w.text(call.session)) == 24
        chunks = [c for c in w.chunks() if c.session == call.session]
        assert [len(c.tokens) for c in chunks] == ([4] if high else [4] + [1] * 20)
        seen.add(high)
    assert seen == {True, False}


@pytest.mark.parametrize("limit", [1, 3, 9])
def test_an_initial_draft_ends_with_the_answer_or_a_stop_token(limit: int) -> None:
    opening = InitialDraft(4)
    s = Session(GenerationRequest("s", (1, 2), limit, (9,)), 0)
    stop = opening.next_stop(s)
    assert stop is not None
    assert stop.max_tokens == min(4, limit)
    s.draft = [5, 9]
    assert opening.next_stop(s) is None or limit < 2
    s.draft, s.tokens = [], [1, 2, 3]
    assert limit == 1 or opening.next_stop(s).max_tokens == 1  # type: ignore[union-attr]


# All of them.


@pytest.mark.parametrize("budget", [-0.1, 1.1])
def test_a_budget_outside_0_to_1_is_refused(budget: float) -> None:
    for build in (
        lambda: RandomOffload(budget),
        lambda: HybridOffload(budget, spread()),
        lambda: EdgeFMOffload(budget, spread()),
    ):
        with pytest.raises(ValueError, match=r"policy.offload.budget is -?\d.1; it is a share of draft chunks: 0 to 1"):
            build()


def test_a_plan_is_made_before_the_thresholds_exist() -> None:
    pending: Any = object()
    assert (HybridOffload(0.5, pending).threshold, EdgeFMOffload(0.5, pending).threshold) == (0.0, INF)


def test_offloading_works_without_profiled_chunks() -> None:
    none = Thresholds(0.7, 0.7, (), (), {})
    assert EdgeFMOffload(0.5, none).tokens_to_offload(drafted(0.1)) == 0
    assert HybridOffload(0.5, none).tokens_to_offload(drafted(0.1)) == 0


def test_an_initial_draft_has_at_least_one_token() -> None:
    with pytest.raises(ValueError, match=r"policy.draft.k is 0; an opening has at least 1 token"):
        InitialDraft(0)


def test_edgefm_offloads_nothing_for_a_budget_of_0() -> None:
    offload = EdgeFMOffload(0.0, spread())
    assert offload.threshold == INF
    assert offload.tokens_to_offload(drafted(1e-9)) == 0
