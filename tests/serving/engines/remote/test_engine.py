"""A server as engine: the outcomes and texts of the torch engine."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.engines.remote.engine import RemoteEngine, remote_sampling
from serving.engines.remote.errors import RemoteError
from serving.engines.remote.opening import connect_remote
from serving.engines.tokenizer import Tokenizer
from serving.engines.torch.engine import TorchEngine
from serving.hardware.executor import CacheHoleError
from serving.messages import (
    DraftStopRule,
    DraftWork,
    ForwardWork,
    SamplingParams,
    SequenceSlice,
    SliceOutcome,
    Span,
    Verdict,
)
from tests.serving.engines.remote.conftest import counting, server
from tests.serving.engines.remote.fake_server import FakeServer
from tests.support.tiny_tokenizers import byte_level

Brain = Callable[[tuple[int, ...]], int]
WHOLE = Span(0, 3, embedding=True, lm_head=True)
DRAWN = SamplingParams(0.8, 5, 0.9, 3)


def work(*rows: SequenceSlice) -> ForwardWork:
    return ForwardWork(WHOLE, rows, ("last",) * len(rows))


def rows(session: str, start: int, *tokens: int, **how: Any) -> SequenceSlice:
    return SequenceSlice(session, start, len(tokens), tokens, **{"rule": "greedy", **how})


def verdicts(engine: Any, *asked: SequenceSlice) -> list[Verdict | None]:
    return [result.verdict for result in engine.execute(work(*asked))[0]]


@pytest.fixture
def fake(tokenizer: Tokenizer) -> Iterator[FakeServer]:
    with FakeServer(byte_level(), counting(50), ends=tokenizer.eos_token_ids) as made:
        yield made


def opened(fake: FakeServer, tokenizer: Tokenizer, verifies: bool = False, **how: Any) -> RemoteEngine:
    engine = connect_remote(server(fake.url, **how), tokenizer, len(tokenizer), verifies)
    fake.asked.clear()
    return engine


def test_remote_outcomes_equal_those_of_the_torch_engine(
    pair: tuple[Path, Path], tokenizer: Tokenizer, brain: Brain
) -> None:
    from serving.engines.torch.model import load_model

    torch_engine = TorchEngine(load_model(str(pair[1])), vocab_size=len(tokenizer))
    with FakeServer(byte_level(), brain, ends=tokenizer.eos_token_ids) as fake:
        engine = opened(fake, tokenizer, verifies=True)
        own = [brain((40, 41, 42))]
        while len(own) < 6:
            own.append(brain((40, 41, 42, *own)))
        script = [
            (rows("a", 0, 40, 41, rule=""), rows("b", 0, 70, 71)),
            (rows("a", 2, 42), rows("b", 2, 60, 61, num_drafts=1)),
            (rows("a", 3, own[0], own[1], own[2], 60, num_drafts=3), rows("c", 0, 9)),
            (rows("a", 5, own[2], own[3], num_drafts=1),),
            (rows("a", 2, 80, 81, 82, num_drafts=2), rows("b", 1, 40)),
        ]
        for asked in script:
            theirs, here = engine.execute(work(*asked)), torch_engine.execute(work(*asked))
            assert theirs == here
        assert fake.wrong == []


def test_work_beyond_the_known_tokens_is_a_cache_hole(fake: FakeServer, tokenizer: Tokenizer) -> None:
    engine = opened(fake, tokenizer)
    with pytest.raises(CacheHoleError, match="begins at token 2, but only 0 tokens are known"):
        engine.execute(work(rows("a", 2, 40)))
    engine.execute(work(rows("a", 0, 40, 41)))
    engine.drop("a", 0)
    with pytest.raises(CacheHoleError):
        engine.execute(work(rows("a", 2, 40)))


def test_rejected_drafts_are_forgotten(fake: FakeServer, tokenizer: Tokenizer) -> None:
    engine = opened(fake, tokenizer, verifies=True)
    (verdict,) = verdicts(engine, rows("a", 0, 40, 41, 42, 43, num_drafts=3))
    assert verdict is not None
    with pytest.raises(CacheHoleError):
        engine.execute(work(rows("a", 2 + verdict.accepted, 50)))


@pytest.mark.parametrize("sampling", [None, DRAWN])
def test_several_tokens_come_with_one_request(
    fake: FakeServer, tokenizer: Tokenizer, sampling: SamplingParams | None
) -> None:
    engine, text, how = opened(fake, tokenizer, tokens_per_request=4), [40, 41], {"sampling": sampling}
    (verdict,) = verdicts(engine, rows("a", 0, *text, **how))
    for _ in range(7):
        assert verdict is not None
        assert verdict.next_token == counting(50)(tuple(text))
        text.append(verdict.next_token)
        (verdict,) = verdicts(engine, rows("a", len(text) - 1, text[-1], **how))
    assert [len(body["prompt"]) for body in fake.asked] == [2, 6]


def test_tokens_fetched_ahead_are_used_only_after_the_same_text(fake: FakeServer, tokenizer: Tokenizer) -> None:
    engine = opened(fake, tokenizer, tokens_per_request=4)
    (first,) = verdicts(engine, rows("a", 0, 40, 41))
    assert first is not None
    for start, tokens in ((2, (first.next_token,)), (2, (77,)), (0, (40, 41))):
        (verdict,) = verdicts(engine, rows("a", start, *tokens))
        assert verdict == Verdict(0, counting(50)((40, 41)[:start] + tokens))
    assert [len(body["prompt"]) for body in fake.asked] == [2, 3, 2]  # the other text, and the first one again
    engine.drop("a", 0)
    verdicts(engine, rows("a", 0, 40, 41))
    assert len(fake.asked) == 4


def test_sessions_are_requested_concurrently_and_answered_in_order(fake: FakeServer, tokenizer: Tokenizer) -> None:
    """Four questions that a server answers only once all four are there."""
    engine, gate, brain = opened(fake, tokenizer, concurrency=4), threading.Barrier(4), fake.brain

    def together(prefix: tuple[int, ...]) -> int:
        gate.wait(10)
        return brain(prefix)

    fake.brain = together
    found = verdicts(engine, *(rows(f"s{i}", 0, 40 + i, 60) for i in range(4)), rows("part", 0, 40, rule=""))
    assert found == [*(Verdict(0, brain((40 + i, 60))) for i in range(4)), None]


def test_a_failed_request_changes_no_session(fake: FakeServer, tokenizer: Tokenizer) -> None:
    engine = opened(fake, tokenizer, concurrency=1)
    verdicts(engine, rows("a", 0, 40, 41), rows("b", 0, 50, 51))
    fake.faults.extend([None, "truncated"])
    with pytest.raises(RemoteError):
        engine.execute(work(rows("a", 2, 42), rows("b", 2, 52)))
    assert engine.notes() == ("1 questions to the server failed; the log says why",)
    for session in ("a", "b"):
        with pytest.raises(CacheHoleError):
            engine.execute(work(rows(session, 3, 60)))
    assert verdicts(engine, rows("a", 2, 42), rows("b", 2, 52)) == [
        Verdict(0, counting(50)(text)) for text in ((40, 41, 42), (50, 51, 52))
    ]


@pytest.mark.parametrize(
    ("fault", "asked"), [(400, 1), (401, 1), (422, 1), ("redirect", 1), ("truncated", 3), (505, 3)]
)
def test_a_refused_request_is_not_sent_again(fake: FakeServer, tokenizer: Tokenizer, fault: Any, asked: int) -> None:
    """An answer that is no use may be an accident, a few times; another text, or another session's, is asked."""
    engine = opened(fake, tokenizer, verifies=True)
    fake.faults.extend([fault] * 8)
    for _ in range(8):
        with pytest.raises(RemoteError):
            verdicts(engine, rows("a", 0, 40, 41))
        engine.drop("a", 0)
    assert len(fake.asked) == asked
    with pytest.raises(RemoteError, match=r"\(it is not asked again\)"):
        verdicts(engine, rows("a", 0, 40, 41))
    fake.faults.clear()
    brain = counting(50)
    assert verdicts(engine, rows("b", 0, 40, 41)) == [Verdict(0, brain((40, 41)))]
    assert verdicts(engine, rows("a", 0, 40, 41, 60, num_drafts=2))[0] is not None
    assert verdicts(engine, rows("a", 0, 40, 42)) == [Verdict(0, brain((40, 42)))]


def test_no_request_exceeds_the_context(tokenizer: Tokenizer) -> None:
    """Tokens asked ahead, and the one behind a judged draft, end where it ends."""
    brain = counting(50)
    with FakeServer(byte_level(), brain, context=64) as fake:
        engine = opened(fake, tokenizer, verifies=True, tokens_per_request=8)
        text = tuple(range(40, 100))
        own = [brain(text)]
        for _ in range(3):
            own.append(brain((*text, *own)))
        assert verdicts(engine, rows("a", 0, *text)) == [Verdict(0, own[0])]
        assert verdicts(engine, rows("b", 0, *text, *own, num_drafts=4)) == [Verdict(3, own[3])]
        assert verdicts(engine, rows("c", 0, *text, *own[:3], 39, num_drafts=1)) == [Verdict(0, own[3])]
        assert [body["max_tokens"] for body in fake.asked] == [4, 1, 1]
        assert fake.wrong == []


def test_work_that_servers_do_not_support_is_refused(fake: FakeServer, tokenizer: Tokenizer) -> None:
    engine = opened(fake, tokenizer)
    with pytest.raises(TypeError, match="drafts nothing"):
        engine.execute(DraftWork("a", 0, (40,), DraftStopRule(1)))
    for wrong, match in (
        ((rows("a", 0, 40), rows("a", 1, 41)), "two slices"),
        ((rows("a", 0, 40, 41, num_drafts=1, rule="greedy", parents=(-1,)),), "a tree, which no server"),
        ((rows("a", 0, 40, 41, num_drafts=1, rule="sample", sampling=DRAWN),), "judged as 'sample'"),
        ((SequenceSlice("a", 0, 2, (), 0, "greedy"),), "hidden states"),
    ):
        with pytest.raises(ValueError, match=match):
            engine.execute(work(*wrong))
    assert fake.asked == []


def test_the_seed_depends_on_session_and_position() -> None:
    seeds = {remote_sampling(DRAWN, s, n).seed for s in ("a", "b") for n in range(50)}  # type: ignore[union-attr]
    assert len(seeds) == 100
    assert all(0 <= seed < 1 << 31 for seed in seeds)
    assert remote_sampling(DRAWN, "a", 7) == remote_sampling(DRAWN, "a", 7)
    assert remote_sampling(None, "a", 7) is None


def test_a_prompt_chunk_without_a_rule_sends_no_request(fake: FakeServer, tokenizer: Tokenizer) -> None:
    engine = opened(fake, tokenizer)
    assert engine.execute(work(rows("a", 0, 40, 41, rule="")))[0] == (SliceOutcome(None, None),)
    assert fake.asked == []
