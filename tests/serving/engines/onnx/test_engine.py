"""The device's engine on onnxruntime has the outcomes and loads of the one on torch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.core.scores import LOGIT_SCORES, by_name
from serving.engines.models import Checkpoint
from serving.engines.onnx import header as headers
from serving.engines.onnx.engine import OnnxEngine
from serving.engines.onnx.header import MODEL_FILE, score_output, scorer_file
from serving.engines.onnx.session import OnnxScorer
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import load_model
from serving.hardware.executor import CacheHoleError
from serving.learned.router import ROUTE, TokenRouter
from serving.messages import DraftStopRule, DraftWork, EarlyExitRule, ForwardWork, SamplingParams, SequenceSlice, Span
from tests.support.learned_models import LinearScorer
from tests.support.tiny_models import VOCABULARY

PROMPT = (5, 17, 40, 8, 23, 61, 9, 30, 77)
WORKS = {
    "a draft": [DraftWork("a", 0, PROMPT, DraftStopRule(30), requested_scores=LOGIT_SCORES)],
    "a fill, then a draft": [
        DraftWork("a", 0, PROMPT[:-1], DraftStopRule(0)),
        DraftWork("a", 8, PROMPT[-1:], DraftStopRule(8)),
    ],
    "an empty fill": [DraftWork("a", 0, PROMPT, DraftStopRule(0)), DraftWork("a", 4, (), DraftStopRule(0))],
    "rollbacks": [
        DraftWork("a", 0, PROMPT, DraftStopRule(12)),
        DraftWork("a", len(PROMPT), (44, 3), DraftStopRule(6), requested_scores=("margin",)),
        DraftWork("a", 5, (1,), DraftStopRule(6)),
    ],
    "two sessions": [
        DraftWork("a", 0, PROMPT, DraftStopRule(3)),
        DraftWork("b", 0, PROMPT[::-1], DraftStopRule(3)),
        DraftWork("a", 10, (7,), DraftStopRule(3)),
    ],
    "samples": [
        DraftWork(
            "a", 0, PROMPT, DraftStopRule(12), requested_scores=LOGIT_SCORES, sampling=SamplingParams(0.9, 20, 0.95, 3)
        )
    ],
    "whole distributions": [DraftWork("a", 0, PROMPT, DraftStopRule(3), full_draft_probs=True)],
    "branches": [
        DraftWork("a", 0, PROMPT, DraftStopRule(0)),
        DraftWork(
            "a", 7, (), DraftStopRule(1), requested_scores=("confidence",), branches=((11,), (12, 13, 14), (12, 50))
        ),
        DraftWork("a", 7, (30, 77), DraftStopRule(4)),
    ],
    "sampled branches": [
        DraftWork("a", 0, PROMPT, DraftStopRule(0)),
        DraftWork("a", 7, (), DraftStopRule(1), branches=((11,), (12, 13)), sampling=SamplingParams(1.0, 0, 1.0, 3)),
    ],
}


@pytest.fixture(scope="module")
def on_torch(checkpoint: Checkpoint) -> TorchEngine:
    return TorchEngine(load_model(checkpoint.name_or_path))


@pytest.fixture(scope="module")
def on_onnx(exported: Path) -> OnnxEngine:
    return OnnxEngine(exported)


def check_same(works: list[DraftWork], *engines: Any) -> list[Any]:
    """Tokens, tops, ends, caches, bytes and loads are equal, scores nearly so; returns the outcomes of the first."""
    found = []
    for work in works:
        (one, its), (other, loads) = (engine.execute(work) for engine in engines)
        assert loads == its
        for name in ("tokens", "top_candidates", "stopped", "cached_len", "probs_support", "exit_depths"):
            assert getattr(other, name) == getattr(one, name)
        assert [blob.nbytes for blob in other.draft_probs] == [blob.nbytes for blob in one.draft_probs]
        assert other.scores.keys() == one.scores.keys()
        for name, values in one.scores.items():
            assert other.scores[name] == pytest.approx(values, abs=1e-4)
        found.append(one)
    for engine in engines:
        for work in works:
            engine.drop(work.session, None)
    return found


@pytest.mark.parametrize("name", WORKS)
def test_onnx_and_torch_engines_have_equal_outcomes_and_loads(
    name: str, on_torch: TorchEngine, on_onnx: OnnxEngine
) -> None:
    outcomes = check_same(WORKS[name], on_torch, on_onnx)
    assert outcomes
    assert len(on_onnx.cache) == 0


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("least", [0, 3])
def test_onnx_and_torch_engines_stop_at_the_same_token(
    keep: bool, least: int, on_torch: TorchEngine, on_onnx: OnnxEngine
) -> None:
    free = on_torch.execute(DraftWork("free", 0, PROMPT, DraftStopRule(12), requested_scores=("confidence",)))[0]
    on_torch.drop("free", None)
    lowest, second = sorted(free.scores["confidence"])[:2]
    rule = DraftStopRule(12, "confidence", (lowest + second) / 2, keep, least)
    (drafted,) = check_same([DraftWork("a", 0, PROMPT, rule)], on_torch, on_onnx)
    assert drafted.stopped
    assert 0 < len(drafted.tokens) <= 12


def test_onnx_and_torch_engines_end_at_an_end_token(on_torch: TorchEngine, on_onnx: OnnxEngine) -> None:
    free = on_torch.execute(DraftWork("free", 0, PROMPT, DraftStopRule(6)))[0]
    on_torch.drop("free", None)
    (drafted,) = check_same([DraftWork("a", 0, PROMPT, DraftStopRule(20), (free.tokens[2],))], on_torch, on_onnx)
    assert len(drafted.tokens) <= 3


def test_padding_of_the_vocabulary_is_never_written(checkpoint: Checkpoint, exported: Path) -> None:
    few = OnnxEngine(exported, vocab_size=20)
    check_same(
        [DraftWork("a", 0, PROMPT, DraftStopRule(20))],
        TorchEngine(load_model(checkpoint.name_or_path), vocab_size=20),
        few,
    )
    assert max(few.execute(DraftWork("a", 0, PROMPT, DraftStopRule(20)))[0].tokens) < 20
    with pytest.raises(ValueError, match=f"vocabulary is 98; the head of .* has {VOCABULARY} rows"):
        OnnxEngine(exported, vocab_size=98)


@pytest.fixture(scope="module")
def apart(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same export with scores in graphs of their own: the model's computes none."""
    import onnx

    folder = tmp_path_factory.mktemp("apart")
    graph = onnx.load(str(exported / MODEL_FILE))
    for name in (ROUTE, "doubt"):
        graph.graph.output.remove(next(each for each in graph.graph.output if each.name == score_output(name)))
        (folder / scorer_file(name)).symlink_to(exported / scorer_file(name))
    onnx.save(graph, str(folder / MODEL_FILE))
    replace(headers.load_header(exported), graphs="two").save(folder)
    return folder


def test_router_scores_are_equal_in_one_graph_in_two_and_in_numpy(
    checkpoint: Checkpoint, exported: Path, apart: Path, router: TokenRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs are asked where they are of this router, else numpy."""
    asked = []
    probability = TokenRouter.probability
    monkeypatch.setattr(
        TokenRouter, "probability", lambda self, features: asked.append(self) or probability(self, features)
    )
    work, scorers = DraftWork("a", 0, PROMPT, DraftStopRule(12), requested_scores=(ROUTE,)), {ROUTE: router}
    engines = [OnnxEngine(folder, scorers=scorers) for folder in (exported, apart)]
    one, two = (engine.execute(work)[0].scores[ROUTE] for engine in engines)
    assert asked == []
    other = replace(router, layers=((router.layers[0][0] * 2, router.layers[0][1]), router.layers[1]))
    OnnxEngine(exported, scorers={ROUTE: other}).execute(work)
    assert asked == [other] * 12
    torchs = TorchEngine(load_model(checkpoint.name_or_path), scorers=scorers)
    in_numpy = torchs.execute(work)[0].scores[ROUTE]
    assert len({*in_numpy}) > 6
    assert one == pytest.approx(in_numpy, abs=1e-5)
    assert two == pytest.approx(in_numpy, abs=1e-5)
    for engine in engines:
        below = sorted(in_numpy)[1] + 1e-6
        check_same([DraftWork("b", 0, PROMPT, DraftStopRule(12, ROUTE, below))], torchs, engine)


def test_two_scores_are_torchs_in_one_graph_and_in_their_own(
    checkpoint: Checkpoint, exported: Path, apart: Path, router: TokenRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = DraftWork("a", 0, PROMPT, DraftStopRule(12), requested_scores=("doubt", ROUTE, "margin"))
    scorers = by_name([router, LinearScorer()])
    want = TorchEngine(load_model(checkpoint.name_or_path), scorers=scorers).execute(work)[0].scores
    assert len({*want["doubt"]}) > 6
    monkeypatch.setattr(LinearScorer, "probability", lambda *_: pytest.fail("the graph computes it"))
    for folder in (exported, apart):
        found = OnnxEngine(folder, scorers=scorers).execute(work)[0].scores
        assert found.keys() == want.keys()
        for name, scores in want.items():
            assert found[name] == pytest.approx(scores, abs=1e-5)


def test_a_score_that_float32_rounds_to_one_is_still_below_a_threshold_of_one(
    checkpoint: Checkpoint, exported: Path, router: TokenRouter, tmp_path: Path
) -> None:
    """A threshold of 1.0 routes it, as in numpy, where the graph's float32 cannot tell them apart."""
    import onnx

    weight, bias = router.layers[-1]
    sure = replace(router, layers=(*router.layers[:-1], (weight, bias + 24)))
    for name in (MODEL_FILE, scorer_file(ROUTE)):
        model = onnx.load(str(exported / name))
        (last,) = (each for each in model.graph.initializer if each.name.endswith("linears.1.bias"))
        last.CopyFrom(onnx.numpy_helper.from_array(bias + 24, last.name))
        onnx.save(model, str(tmp_path / name))
    header = headers.load_header(exported)
    replace(header, scorer_digests={**header.scorer_digests, ROUTE: sure.digest}).save(tmp_path)
    scorers = {ROUTE: sure}
    engines = TorchEngine(load_model(checkpoint.name_or_path), scorers=scorers), OnnxEngine(tmp_path, scorers=scorers)
    work = DraftWork("a", 0, PROMPT, DraftStopRule(12), requested_scores=(ROUTE,))
    want, found = (engine.execute(work)[0].scores[ROUTE] for engine in engines)
    assert all(score < 1.0 for score in want)
    assert [1 - score for score in found] == pytest.approx([1 - score for score in want], rel=1e-3)
    states = np.ones((2, router.num_features), np.float32)
    ours = OnnxScorer(tmp_path, ROUTE, sure.digest).probabilities(states)
    assert (1 - ours).tolist() == pytest.approx((1 - sure.probabilities(states)).tolist(), rel=1e-3)
    for engine in engines:
        engine.drop("a", None)
    (drafted,) = check_same([DraftWork("a", 0, PROMPT, DraftStopRule(12, ROUTE, 1.0))], *engines)
    assert drafted.stopped


def test_work_that_a_graph_cannot_do_is_refused(on_onnx: OnnxEngine) -> None:
    with pytest.raises(TypeError, match="has no spans of layers to run"):
        on_onnx.execute(ForwardWork(Span(0, 2, embedding=True), (SequenceSlice("a", 0, 2, (5, 6)),), ("all",)))
    with pytest.raises(ValueError, match="asks for early exit, which a graph"):
        on_onnx.execute(DraftWork("a", 0, PROMPT, DraftStopRule(2), early_exit=EarlyExitRule("margin", 0.5, 0.5)))
    with pytest.raises(ValueError, match="asks for importance, which a graph"):
        on_onnx.execute(DraftWork("a", 0, PROMPT, DraftStopRule(2), requested_scores=("importance",)))
    with pytest.raises(ValueError, match="asks for 4 tokens with nothing to feed"):
        on_onnx.execute(DraftWork("a", 0, (), DraftStopRule(4)))
    with pytest.raises(ValueError, match="a branch without tokens"):
        on_onnx.execute(DraftWork("a", 0, (), DraftStopRule(4), branches=((),)))
    with pytest.raises(ValueError, match="score 'boldness' is not known"):
        on_onnx.execute(DraftWork("a", 0, PROMPT, DraftStopRule(4), requested_scores=("boldness",)))


def test_work_behind_the_end_of_a_cache_is_refused(on_onnx: OnnxEngine) -> None:
    on_onnx.execute(DraftWork("hole", 0, (5, 6, 7), DraftStopRule(0)))
    with pytest.raises(CacheHoleError, match="session 'hole' begins at token 4, but only 3 tokens are cached"):
        on_onnx.execute(DraftWork("hole", 4, (8,), DraftStopRule(1)))
    on_onnx.drop("hole", 0)
    assert on_onnx.cache.length("hole") == 3
    on_onnx.drop("hole", None)
    on_onnx.drop("unknown", None)
    assert on_onnx.cache.length("hole") == 0


def test_dropping_a_session_discards_its_distributions(on_onnx: OnnxEngine) -> None:
    on_onnx.execute(DraftWork("odds", 0, PROMPT, DraftStopRule(3), full_draft_probs=True))
    assert len(on_onnx.tensor_store) >= 3
    before = len(on_onnx.tensor_store)
    on_onnx.drop("odds", None)
    assert len(on_onnx.tensor_store) == before - 3


def test_a_session_goes_on_in_the_cache_that_it_was_given(exported: Path) -> None:
    engine = OnnxEngine(exported)
    engine.execute(DraftWork("a", 0, PROMPT, DraftStopRule(4)))
    engine.move("a", "b")
    assert engine.cache.length("a") == 0
    moved, _ = engine.execute(DraftWork("b", 6, (4, 2), DraftStopRule(4)))
    whole, _ = engine.execute(DraftWork("c", 0, (*PROMPT[:6], 4, 2), DraftStopRule(4)))
    assert moved == whole
