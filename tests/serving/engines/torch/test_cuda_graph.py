"""Passes over a grid beside those that launch each kernel; without a GPU the grid's operations run at each replay."""

import copy
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

from serving.engines.torch.cuda_graph import ChainInput, CudaGraphs, GraphCapture, GridShape, captures, grid_shape
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import DecomposedModel, decompose
from serving.engines.torch.sequence_cache import SequenceCache
from serving.messages import (
    DraftBatch,
    DraftBatchOutcome,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    ForwardWork,
    SequenceSlice,
    SliceOutcome,
    Span,
    Verdict,
    Work,
)
from tests.support.tiny_models import VARIANTS, VOCABULARY

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICES = ("cpu", pytest.param("cuda", marks=needs_gpu))
ONE_TABLE = tuple(name for name in VARIANTS if name != "phi3_longrope")
SESSIONS = ("a", "b", "c", "d", "e")
LAYERS = 4
WHOLE = Span(0, LAYERS, embedding=True, lm_head=True)


class CountingCapture:
    """Captures on a GPU; elsewhere each replay runs the grid's operations."""

    def __init__(self, device: str) -> None:
        self.shapes: list[GridShape] = []
        self.num_replays = 0
        self._capture = GraphCapture(torch.device(device)) if device == "cuda" else lambda grid: grid.run

    def __call__(self, grid: Any) -> Callable[[], torch.Tensor]:
        self.shapes.append(grid.shape)
        replay = self._capture(grid)

        def counted() -> torch.Tensor:
            self.num_replays += 1
            return replay()

        return counted


def make_model(causal: Any, variant: str, device: str) -> DecomposedModel:
    return decompose(copy.deepcopy(causal(variant)), device=device)


def make_engines(model: DecomposedModel, device: str) -> tuple[TorchEngine, TorchEngine, CountingCapture]:
    """One that replays, one that does not."""
    capture = CountingCapture(device)
    replaying, plain = (TorchEngine(model, cuda_graphs=False) for _ in range(2))
    replaying._runner._graphs = CudaGraphs(model, capture)
    return replaying, plain, capture


def texts(random: Random) -> dict[str, list[int]]:
    return {session: [random.randrange(3, VOCABULARY) for _ in range(random.randrange(1, 40))] for session in SESSIONS}


def drafts(texts: dict[str, list[int]], cached: dict[str, int]) -> DraftBatch:
    """A token for each session."""
    return DraftBatch(
        tuple(
            DraftWork(session, cached[session], tuple(text[cached[session] :]), DraftStopRule(1, "confidence", 0.0))
            for session, text in texts.items()
        )
    )


def verification(texts: dict[str, list[int]], cached: dict[str, int], random: Random) -> ForwardWork:
    """Drafts by chance, of another number for each session."""
    pieces = []
    for session, text in texts.items():
        guesses = [random.randrange(3, VOCABULARY) for _ in range(random.randrange(4))]
        tokens = (*text[cached[session] :], *guesses)
        pieces.append(SequenceSlice(session, cached[session], len(tokens), tokens, len(guesses), "greedy"))
    return ForwardWork(WHOLE, tuple(pieces), ("",) * len(pieces))


def outcomes(engine: TorchEngine, work: Work) -> tuple[Any, ...]:
    found, _ = engine.execute(work)
    return found.outcomes if isinstance(found, DraftBatchOutcome) else found  # type: ignore[return-value]


def equal_token(ours: Any, theirs: Any) -> int:
    """The token that both chose; their scores differ by rounding at most."""
    if isinstance(ours, DraftOutcome):
        assert ours.tokens == theirs.tokens
        for name, values in theirs.scores.items():
            assert ours.scores[name] == pytest.approx(values, abs=1e-4)
        return ours.tokens[0]
    assert isinstance(ours, SliceOutcome)
    assert isinstance(ours.verdict, Verdict)
    assert ours == theirs
    return ours.verdict.next_token


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("variant", ONE_TABLE)
def test_drafts_and_verdicts_of_uneven_sessions_are_those_of_plain_passes(
    causal: Any, variant: str, device: str
) -> None:
    replaying, plain, capture = make_engines(make_model(causal, variant, device), device)
    random = Random(3)
    drafted, verified = texts(random), texts(random)
    cached, checked = dict.fromkeys(SESSIONS, 0), dict.fromkeys(SESSIONS, 0)
    for _ in range(12):
        work = drafts(drafted, cached)
        for one, ours, theirs in zip(work.works, outcomes(replaying, work), outcomes(plain, work), strict=True):
            cached[one.session] = len(drafted[one.session])
            drafted[one.session].append(equal_token(ours, theirs))
        forward = verification(verified, checked, random)
        found = outcomes(replaying, forward), outcomes(plain, forward)
        for piece, ours, theirs in zip(forward.slices, *found, strict=True):
            token = equal_token(ours, theirs)
            accepted = piece.tokens[piece.num_tokens - piece.num_drafts :][: ours.verdict.accepted]
            verified[piece.session] += [*accepted, token]
            checked[piece.session] = len(verified[piece.session]) - 1
    assert {shape.num_rows for shape in capture.shapes} >= {1, 5}
    assert capture.num_replays >= 15


@pytest.mark.parametrize("device", DEVICES)
def test_a_chain_of_drafts_is_that_of_plain_passes(causal: Any, device: str) -> None:
    """Over the end of a context, behind which another graph is captured; with importance, which none observes."""
    replaying, plain, capture = make_engines(make_model(causal, "llama", device), device)
    prompt = tuple(5 + i % 80 for i in range(240))
    work = DraftWork("a", 0, prompt, DraftStopRule(40), requested_scores=("confidence",))
    (ours, _), (theirs, _) = replaying.execute(work), plain.execute(work)
    assert isinstance(ours, DraftOutcome)
    assert isinstance(theirs, DraftOutcome)
    assert ours.tokens == theirs.tokens
    assert ours.scores["confidence"] == pytest.approx(theirs.scores["confidence"], abs=1e-4)
    assert capture.shapes == [GridShape(1, 1, 256), GridShape(1, 1, 512)]
    observed = DraftWork("a", 240, (*ours.tokens, 7), DraftStopRule(8), requested_scores=("importance",))
    before = capture.num_replays
    (ours, _), (theirs, _) = replaying.execute(observed), plain.execute(observed)
    assert ours == theirs
    assert capture.num_replays == before


@pytest.mark.parametrize("device", DEVICES)
@torch.inference_mode()
def test_a_session_does_not_read_what_lies_behind_it(causal: Any, device: str) -> None:
    """Slots that no token was written to may hold anything."""
    model = make_model(causal, "llama", device)
    replaying, plain, capture = make_engines(model, device)
    for engine in (replaying, plain):
        outcomes(engine, drafts({"a": [5, 6, 7], "b": [8]}, {"a": 0, "b": 0}))
    (extent,) = replaying.cache._pools[0, LAYERS]._extents
    for session in ("a", "b"):
        cache = replaying.cache._caches[session, None]
        _, first = cache.place() or (None, 0)
        extent[..., first + cache.length : first + cache.capacity, :] = float("nan")
    for token in (9, 10, 11):
        work = DraftBatch(
            tuple(
                DraftWork(session, start + token - 9, (token,), DraftStopRule(1))
                for session, start in (("a", 3), ("b", 1))
            )
        )
        assert outcomes(replaying, work) == outcomes(plain, work)
    assert capture.num_replays == 2


def test_scattered_caches_take_the_plain_pass(causal: Any, scattered: Any) -> None:
    model = make_model(causal, "llama", "cpu")
    replaying, plain, capture = make_engines(model, "cpu")
    replaying.cache._pools[0, LAYERS] = scattered(model)
    work = DraftWork("a", 0, (5, 6, 7, 8, 9), DraftStopRule(6))
    assert replaying.execute(work)[0] == plain.execute(work)[0]
    assert not capture.shapes


def test_a_grid_is_the_smallest_that_holds_a_pass_and_is_not_mostly_filling(causal: Any) -> None:
    cache = SequenceCache(make_model(causal, "llama", "cpu"), 0, LAYERS)

    def shape(*sizes: int, start: int = 0) -> GridShape | None:
        return grid_shape([ChainInput(cache, size, start) for size in sizes])

    assert shape(1) == (1, 1, 256)
    assert shape(1, 1, 1, start=255) == (4, 1, 256)
    assert shape(1, start=256) == (1, 1, 512)
    assert shape(5, 5, 9) == (4, 16, 256)
    assert shape(33) is None  # a prefill fills the GPU by itself
    assert shape(32, 1, 1, 1, 1) is None  # 256 rows for 36 tokens
    assert shape(*[4] * 65) is None
    assert shape(1, start=8192) is None


def test_models_on_a_cpu_are_not_captured(causal: Any) -> None:
    model = make_model(causal, "llama", "cpu")
    assert not captures(model)
    assert TorchEngine(model)._runner._graphs is None


@needs_gpu
def test_models_on_a_gpu_are_captured_unless_they_have_two_rotary_tables(causal: Any) -> None:
    assert TorchEngine(make_model(causal, "llama", "cuda"))._runner._graphs is not None
    assert not captures(make_model(causal, "phi3_longrope", "cuda"))
