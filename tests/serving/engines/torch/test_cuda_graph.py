"""Passes over a grid beside those that launch each kernel; without a GPU the grid's operations run at each replay."""

import copy
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from serving.core.decoding import Decoding
from serving.engines.torch import cuda_graph, kv_pool
from serving.engines.torch.cuda_graph import CudaGraphs, GraphCapture, can_capture
from serving.engines.torch.draft_heads import attach_adapter, init_adapter
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.grid_pass import GridPass, GridShape, grid_shape
from serving.engines.torch.model import DecomposedModel, decompose
from serving.engines.torch.model_runner import AttentionMasks, RunnerInput
from serving.engines.torch.packed_layers import FUSED, pack_weights
from serving.engines.torch.sequence_cache import SequenceCache
from serving.messages import (
    DraftBatch,
    DraftBatchOutcome,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    EarlyExitRule,
    ForwardWork,
    SequenceSlice,
    SliceOutcome,
    Span,
    Verdict,
    Work,
)
from serving.policy.policy import NO_REQUIREMENTS
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
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("variant", ONE_TABLE)
def test_drafts_and_verdicts_of_uneven_sessions_are_those_of_plain_passes(
    causal: Any, variant: str, is_fused: bool, device: str
) -> None:
    model = make_model(causal, variant, device)
    if is_fused:
        if type(model.layers[0]).__name__ not in FUSED:
            pytest.skip("layers of this kind are not fused")
        pack_weights(model)
    replaying, plain, capture = make_engines(model, device)
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
    assert {shape.num_rows for shape in capture.shapes} >= {1, 3}
    assert capture.num_replays >= 15


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("variant", ONE_TABLE)
def test_chunks_in_several_parts_beside_verifications_give_the_verdicts_of_plain_passes(
    causal: Any, variant: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of 250 tokens, first 40 of them and then chunks of 70, beside sessions that draft."""
    monkeypatch.setattr(kv_pool, "_MIN_EXTENT_BLOCKS", 512)
    model = make_model(causal, variant, device)
    replaying, plain, capture = make_engines(model, device)
    random = Random(5)
    prompt = [random.randrange(3, VOCABULARY) for _ in range(250)]
    for turn in range(3):
        for first, last in ((0, 40), (40, 110), (110, 180), (180, 250)):
            chunk = SequenceSlice(f"chunked {turn}", first, last - first, tuple(prompt[first:last]), 0, "greedy")
            short = [
                SequenceSlice(f"{first} {name} {turn}", 0, 5, tuple(prompt[first + i : first + i + 5]), 4, "greedy")
                for i, name in enumerate("abc")
            ]
            forward = ForwardWork(WHOLE, (*short, chunk), ("",) * 4)
            for ours, theirs in zip(outcomes(replaying, forward), outcomes(plain, forward), strict=True):
                equal_token(ours, theirs)
    assert 8 in {shape.num_parts for shape in capture.shapes}
    assert capture.num_replays >= 8


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
        _, first = cache.extent_slot() or (None, 0)
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


def test_a_grid_is_the_cheapest_that_holds_a_pass_and_is_not_mostly_filling(causal: Any) -> None:
    cache = SequenceCache(make_model(causal, "llama", "cpu"), 0, LAYERS)

    def shape(*sizes: int, start: int = 0) -> GridShape | None:
        return grid_shape([RunnerInput(cache, size, num_cached=start) for size in sizes])

    assert shape(1) == (1, 1, 256)
    assert shape(1, 1, 1, start=255) == (4, 1, 256)
    assert shape(1, start=256) == (1, 1, 512)
    assert shape(5, 5, 9) == (4, 5, 256)  # of the nine tokens five are a part, and four
    assert shape(137) == (1, 256, 256)
    assert shape(5, 5, 5, 137) == (8, 32, 256)  # a verification beside a chunk of a prefill
    assert shape(257) is None  # a prefill fills the GPU by itself
    assert shape(32, 1, 1, 1, 1) == (8, 8, 256)
    assert shape(*[1] * 56, start=200) == (64, 1, 256)
    assert shape(*[4] * 65) is None
    assert shape(1, start=8192) is None
    near = [RunnerInput(cache, 1, num_cached=start) for start in (60, 17, 360)]
    assert grid_shape(near) == (4, 1, 512)  # 1,608 slots of filling cost less than launching each kernel
    mixed = [RunnerInput(cache, tokens, num_cached=start) for start, tokens in ((256, 5), (256, 5), (256, 5), (0, 100))]
    assert grid_shape(mixed) == (8, 32, 512)
    uneven = [RunnerInput(cache, 1, num_cached=start) for start in (4000, *[20] * 31)]
    assert grid_shape(uneven) is None  # 131,072 slots for 4,652 cached tokens


def draft_both(model: DecomposedModel, device: str, works: list[DraftWork]) -> CountingCapture:
    """Both engines draft the same for all works, one after the other."""
    replaying, plain, capture = make_engines(model, device)
    for work in works:
        ours, theirs = (engine.execute(work)[0] for engine in (replaying, plain))
        assert isinstance(ours, DraftOutcome)
        assert isinstance(theirs, DraftOutcome)
        assert (ours.tokens, ours.exit_depths) == (theirs.tokens, theirs.exit_depths)
    return capture


@pytest.mark.parametrize("device", DEVICES)
def test_exits_before_the_last_layer_are_those_of_plain_passes(causal: Any, device: str) -> None:
    exits = EarlyExitRule("confidence", 0.05, 0.5)
    work = DraftWork("a", 0, (5, 6, 7), DraftStopRule(30), requested_scores=("confidence",), early_exit=exits)
    capture = draft_both(make_model(causal, "llama", device), device, [work])
    assert capture.num_replays > 20


@pytest.mark.parametrize("device", DEVICES)
def test_an_adapter_behind_the_first_layers_drafts_the_same(causal: Any, device: str) -> None:
    whole = make_model(causal, "llama", device)
    model = attach_adapter(whole, 2, init_adapter(whole, 2))
    assert draft_both(model, device, [DraftWork("a", 0, (5, 6, 7), DraftStopRule(12))]).num_replays == 10


@pytest.mark.parametrize("device", DEVICES)
def test_spans_with_caches_of_their_own_give_the_texts_of_the_whole_model(causal: Any, device: str) -> None:
    model = make_model(causal, "llama", device)
    replaying, plain, capture = make_engines(model, device)
    first, last = Span(0, 1, embedding=True, lm_head=False), Span(1, LAYERS, embedding=False, lm_head=True)
    text = [5, 6, 7]
    for start in (0, 3, 4, 5, 6):
        new = tuple(text[start:])
        piece = SequenceSlice("a", start, len(new), new, 0, "greedy")
        (half,) = outcomes(replaying, ForwardWork(first, (replace(piece, rule=""),), ("all",)))
        (ours,) = outcomes(
            replaying, ForwardWork(last, (replace(piece, tokens=(), hidden_states=half.hidden_states),), ("",))
        )
        (theirs,) = outcomes(plain, ForwardWork(WHOLE, (piece,), ("",)))
        text.append(equal_token(ours, theirs))
    assert {shape.num_rows for shape in capture.shapes} == {1}
    assert capture.num_replays == 6  # both spans, from the third of four single tokens on


@torch.inference_mode()
def test_graphs_of_a_freed_extent_are_dropped(causal: Any) -> None:
    model = make_model(causal, "llama", "cpu")
    graphs = CudaGraphs(model, CountingCapture("cpu"))
    caches = [SequenceCache(model, 0, LAYERS) for _ in range(2)]
    hidden = torch.zeros(1, model.hidden_size)
    for cache in caches:
        cache.reserve(16)
        for start in range(3):
            graphs.run(hidden, [RunnerInput(cache, 1, num_cached=start)], 0, LAYERS)
    assert len(graphs) == 2
    del caches[0], cache
    other = SequenceCache(model, 0, LAYERS)
    other.reserve(16)
    for start in range(3):
        graphs.run(hidden, [RunnerInput(other, 1, num_cached=start)], 0, LAYERS)
    assert len(graphs) == 2


@torch.inference_mode()
def test_a_failed_capture_says_nothing_of_a_later_extent_of_the_same_number(
    causal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph, "id", lambda extent: 7, raising=False)
    model, capture, failing = make_model(causal, "llama", "cpu"), CountingCapture("cpu"), [True]

    def sometimes(grid: GridPass) -> Any:
        if failing.pop():
            raise torch.OutOfMemoryError("no memory is left")
        failing.append(False)
        return capture(grid)

    def num_captured(cache: SequenceCache) -> int:
        cache.reserve(16)
        for start in range(3):
            graphs.run(torch.zeros(1, model.hidden_size), [RunnerInput(cache, 1, num_cached=start)], 0, LAYERS)
        return len(graphs)

    graphs = CudaGraphs(model, sometimes)
    assert num_captured(SequenceCache(model, 0, LAYERS)) == 0
    failing.append(False)
    assert num_captured(SequenceCache(model, 0, LAYERS)) == 1


@torch.inference_mode()
def test_the_least_recently_used_graph_goes_first(causal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "MAX_GRAPHS", 2)
    model, capture = make_model(causal, "llama", "cpu"), CountingCapture("cpu")
    graphs, cache = CudaGraphs(model, capture), SequenceCache(model, 0, LAYERS)
    cache.reserve(32)

    def run(rows: int) -> bool:
        found = graphs.run(torch.zeros(rows, model.hidden_size), [RunnerInput(cache, rows, num_cached=0)], 0, LAYERS)
        return found is not None

    assert [run(rows) for rows in (1, 1, 3, 3, 1, 5, 5)] == [False, True, False, True, True, False, True]
    assert [run(rows) for rows in (1, 3, 3)] == [True, False, True]  # that of three rows was captured anew
    assert [shape.num_rows for shape in capture.shapes] == [1, 3, 5, 3]


def test_a_capture_that_fails_leaves_the_plain_pass(causal: Any, caplog: pytest.LogCaptureFixture) -> None:
    def fail(grid: GridPass) -> Any:
        grid.run()
        raise torch.OutOfMemoryError("no memory is left")

    replaying, plain, _ = make_engines(make_model(causal, "llama", "cpu"), "cpu")
    replaying._runner._graphs = CudaGraphs(replaying.model, fail)
    work = DraftWork("a", 0, (5, 6, 7), DraftStopRule(9), requested_scores=("confidence",))
    assert replaying.execute(work)[0] == plain.execute(work)[0]
    assert [record.message for record in caplog.records] == [
        f"{replaying.model.name}: GridShape(num_parts=1, num_rows=1, context=256) is not replayed: no memory is left"
    ]


def test_models_on_a_cpu_are_not_captured(causal: Any) -> None:
    model = make_model(causal, "llama", "cpu")
    assert not can_capture(model)
    assert TorchEngine(model)._runner._graphs is None


def test_models_of_two_rotary_tables_quantised_and_batch_invariant_ones_are_not_captured(causal: Any) -> None:
    """Devices that are named, and not used."""

    def on_gpu(model: DecomposedModel) -> DecomposedModel:
        return replace(model, device=torch.device("cuda"))

    assert can_capture(on_gpu(make_model(causal, "llama", "cpu")))
    assert not can_capture(on_gpu(make_model(causal, "phi3_longrope", "cpu")))
    assert not can_capture(on_gpu(decompose(copy.deepcopy(causal("llama")), batch_invariant=True)))
    assert not can_capture(replace(on_gpu(make_model(causal, "llama", "cpu")), dtype=torch.bfloat16))


def test_a_switch_turns_graphs_off() -> None:
    assert NO_REQUIREMENTS.with_decoding(Decoding()).cuda_graphs
    assert not NO_REQUIREMENTS.with_decoding(Decoding(cuda_graphs=False)).cuda_graphs


@needs_gpu
def test_models_on_a_gpu_are_captured(causal: Any) -> None:
    assert TorchEngine(make_model(causal, "llama", "cuda"))._runner._graphs is not None


@needs_gpu
def test_masks_on_a_gpu_begin_where_kernels_can_read_vectors() -> None:
    masks = AttentionMasks(torch.float16, torch.device("cuda"))
    assert [masks.causal(num_cached, 5, None).data_ptr() % 16 for num_cached in range(40)] == [0] * 40
