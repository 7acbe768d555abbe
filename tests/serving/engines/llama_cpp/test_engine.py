"""A model on llama.cpp drafts and verifies as on torch, in batches, after rollbacks and while its context grows."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from serving.core.scores import IMPORTANCE
from serving.engines.llama_cpp import context
from serving.engines.llama_cpp.context import LlamaCache, LlamaModel
from serving.engines.llama_cpp.engine import LlamaCppEngine
from serving.engines.llama_cpp.gguf import convert
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import load_model
from serving.hardware.executor import CacheFullError, CacheHoleError
from serving.messages import DraftBatch, DraftOutcome, DraftStopRule, DraftWork, ForwardWork, SequenceSlice, Span

WHOLE = Span(0, 3, embedding=True, lm_head=True)
TEXT = tuple(range(20, 60))


@pytest.fixture
def engine(model: LlamaModel) -> LlamaCppEngine:
    return LlamaCppEngine(model)


def drafted(engine: Any, session: str, start: int, tokens: tuple[int, ...], count: int, **how: Any) -> DraftOutcome:
    outcome, _ = engine.execute(DraftWork(session, start, tokens, DraftStopRule(count), **how))
    assert isinstance(outcome, DraftOutcome)
    return outcome


def verified(engine: Any, *slices: SequenceSlice) -> list[tuple[int, int]]:
    """(accepted drafts, next token) by slice."""
    outcomes, _ = engine.execute(ForwardWork(WHOLE, slices, ("last",) * len(slices)))
    return [(one.verdict.accepted, one.verdict.next_token) for one in outcomes]


def test_it_computes_the_logits_of_torch(model: LlamaModel, checkpoint: Path) -> None:
    from transformers import AutoModelForCausalLM

    cache = LlamaCache(model, model.vocab_size)
    cache.open("a", 0)
    (found,) = cache.forward([("a", TEXT, len(TEXT))])
    with torch.inference_mode():
        whole: Any = AutoModelForCausalLM.from_pretrained(checkpoint)
        want = whole(torch.tensor([TEXT])).logits[0]
    assert (found - want).abs().max() < 0.02 * want.abs().max()  # keys and values are kept in fp16


def test_it_drafts_and_charges_as_torch(engine: LlamaCppEngine, checkpoint: Path) -> None:
    work = DraftWork("a", 0, TEXT, DraftStopRule(6), requested_scores=("confidence",))
    (ours, loads), (theirs, others) = (one.execute(work) for one in (engine, TorchEngine(load_model(checkpoint))))
    assert isinstance(ours, DraftOutcome)
    assert isinstance(theirs, DraftOutcome)
    assert (ours.tokens, loads) == (theirs.tokens, others)
    assert ours.scores["confidence"] == pytest.approx(theirs.scores["confidence"], abs=0.02)


def test_it_accepts_its_own_drafts_and_corrects_another(engine: LlamaCppEngine) -> None:
    own = drafted(engine, "drafts", 0, TEXT, 4).tokens
    assert verified(engine, SequenceSlice("a", 0, len(TEXT) + 3, (*TEXT, *own[:3]), 3, "greedy")) == [(3, own[3])]
    assert engine.cache.length("a") == len(TEXT) + 3
    wrong = (own[0], own[1] + 1, own[2])
    assert verified(engine, SequenceSlice("b", 0, len(TEXT) + 3, (*TEXT, *wrong), 3, "greedy")) == [(1, own[1])]
    assert engine.cache.length("b") == len(TEXT) + 1


def test_sessions_in_one_batch_have_the_verdicts_of_sessions_alone(model: LlamaModel) -> None:
    slices = [SequenceSlice(name, 0, length, TEXT[:length], 0, "greedy") for name, length in (("a", 9), ("b", 31))]
    together = verified(LlamaCppEngine(model), *slices)
    assert together == [verified(LlamaCppEngine(model), one)[0] for one in slices]


def test_a_batch_invariant_engine_has_the_bits_of_single_tokens(checkpoint: Path, tmp_path: Path) -> None:
    convert(checkpoint, tmp_path / "q8.gguf", "q8_0")
    model = LlamaModel(tmp_path / "q8.gguf")
    cache = LlamaCache(model, model.vocab_size, batch_invariant=True)
    for session in ("together", "other", "alone"):
        cache.open(session, 0)
    found, _ = cache.forward([("together", TEXT, len(TEXT)), ("other", TEXT[3:], 1)])
    assert found.equal(torch.cat([cache.forward([("alone", (token,), 1)])[0] for token in TEXT]))


def test_a_rolled_back_session_goes_on_as_a_new_one(engine: LlamaCppEngine) -> None:
    first = drafted(engine, "a", 0, TEXT, 5)
    again = drafted(engine, "a", 10, TEXT[10:], 5)
    assert again.tokens == first.tokens == drafted(engine, "b", 0, TEXT, 5).tokens
    assert engine.cache.length("a") == again.cached_len == len(TEXT) + 4


def test_branches_leave_the_text_as_it_was(engine: LlamaCppEngine) -> None:
    before = drafted(engine, "a", 0, TEXT, 1).tokens
    found = drafted(engine, "a", len(TEXT), (), 1, branches=((7, 8), (9,)))
    assert found.tokens == tuple(
        drafted(engine, f"alone {branch}", 0, (*TEXT, *branch), 1).tokens[0] for branch in ((7, 8), (9,))
    )
    assert engine.cache.length("a") == len(TEXT)
    assert drafted(engine, "a", len(TEXT) - 1, TEXT[-1:], 1).tokens == before


def test_a_context_that_grows_keeps_the_texts(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    want = [drafted(LlamaCppEngine(model), "a", 0, TEXT[i:], 4).tokens for i in range(6)]
    monkeypatch.setattr(context, "_FIRST_CELLS", 256)
    small = LlamaCppEngine(model)
    for i in range(6):
        drafted(small, str(i), 0, TEXT[i:], 0)
    for i in range(6, 30):
        drafted(small, str(i), 0, TEXT, 0)
    assert len(small.cache) == 30
    last = [drafted(small, str(i), len(TEXT) - i - 1, TEXT[-1:], 4).tokens for i in range(6)]
    assert last == want


def test_a_prompt_longer_than_a_pass_is_read_in_parts(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    want = drafted(LlamaCppEngine(model), "a", 0, TEXT, 4).tokens
    monkeypatch.setattr(context, "_BATCH_TOKENS", 16)
    assert drafted(LlamaCppEngine(model), "a", 0, TEXT, 4).tokens == want


def test_a_dropped_session_begins_anew_and_frees_its_number(
    engine: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted(engine, "a", 0, TEXT, 2)
    engine.drop("a", None)
    assert len(engine.cache) == engine.cache.length("a") == 0
    with pytest.raises(CacheHoleError, match="session 'a' begins at token 3, but only 0 tokens are cached"):
        drafted(engine, "a", 3, TEXT, 2)
    for number in range(context.MAX_SESSIONS - 1):
        engine.cache.open(f"s{number}", 0)
    with pytest.raises(CacheFullError, match=r"one more than the 255 that llama.cpp keeps at once"):
        engine.cache.open("one more", 0)


def test_a_batch_of_drafts_runs_session_by_session(engine: LlamaCppEngine) -> None:
    works = tuple(DraftWork(name, 0, TEXT[:n], DraftStopRule(1)) for name, n in (("a", 8), ("b", 20)))
    batch, loads = engine.execute(DraftBatch(works))
    assert [one.tokens for one in batch.outcomes] == [  # type: ignore[union-attr]
        drafted(engine, f"{work.session} alone", 0, work.input_tokens, 1).tokens for work in works
    ]
    assert len(loads) == 1


def test_what_llama_cpp_does_not_show_is_refused(engine: LlamaCppEngine) -> None:
    part = SequenceSlice("a", 0, 2, TEXT[:2], 0, "greedy")
    with pytest.raises(ValueError, match=r"asks for a span of layers; llama.cpp runs a model whole"):
        engine.execute(ForwardWork(Span(0, 2, True, False), (part,), ("last",)))
    with pytest.raises(ValueError, match=r"sends a tree of drafts; on llama.cpp drafts are chains"):
        engine.execute(ForwardWork(WHOLE, (SequenceSlice("a", 0, 2, TEXT[:2], 1, "greedy", parents=(-1,)),), ("last",)))
    with pytest.raises(ValueError, match=r"asks for importance, which llama.cpp does not show"):
        drafted(engine, "a", 0, TEXT, 2, requested_scores=(IMPORTANCE,))


def test_a_file_that_is_no_gguf_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"weights")
    with pytest.raises(ValueError, match=r"model.gguf cannot be opened by llama.cpp"):
        LlamaModel(tmp_path / "model.gguf")


def test_a_session_goes_on_in_the_text_that_it_was_given(engine: LlamaCppEngine) -> None:
    drafted(engine, "a", 0, TEXT, 4)
    engine.move("a", "b")
    assert engine.cache.length("a") == 0
    moved = drafted(engine, "b", 30, (7, 8), 4)
    assert moved.tokens == drafted(engine, "c", 0, (*TEXT[:30], 7, 8), 4).tokens


class BrokenError(Exception):
    """A pass that failed."""


def fails_from(patch: pytest.MonkeyPatch, cache: LlamaCache, first: int) -> None:
    """Passes of the shared context fail from the pass `first` on, counted from 0."""
    assert cache._shared is not None
    decode, passes = cache._shared._decode, count()

    def decode_or_fail(*args: Any) -> None:
        if next(passes) >= first:
            raise BrokenError
        decode(*args)

    patch.setattr(cache._shared, "_decode", decode_or_fail)


@pytest.mark.parametrize("start", [0, 5])
def test_a_failed_pass_leaves_no_token_behind(model: LlamaModel, monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    monkeypatch.setattr(context, "_BATCH_TOKENS", 16)
    engine = LlamaCppEngine(model)
    want = drafted(engine, "whole", 0, TEXT, 4).tokens
    drafted(engine, "a", 0, TEXT[:start], 0)
    with monkeypatch.context() as patch:
        fails_from(patch, engine.cache, 1)
        with pytest.raises(BrokenError):
            drafted(engine, "a", start, TEXT[start:], 4)
    assert engine.cache.length("a") == start
    assert drafted(engine, "a", start, TEXT[start:], 4).tokens == want


def test_a_failed_look_ahead_leaves_no_branch_behind(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = LlamaCache(model, model.vocab_size)
    for session, tokens in (("long", TEXT), ("short", TEXT[3:20])):
        cache.open(session, 0)
        cache.forward([(session, tokens, 0)])
    want = cache.peek("short", (7, 8))
    with monkeypatch.context() as patch:
        fails_from(patch, cache, 0)
        with pytest.raises(BrokenError):
            cache.peek("long", (7, 8))
    assert cache.peek("short", (7, 8)).equal(want)
