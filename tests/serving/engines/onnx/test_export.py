"""Exported graphs against `transformers`, for every architecture; refusals and errors."""

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from serving.engines.checkpoint_architecture import ARCHITECTURES
from serving.engines.models import Checkpoint
from serving.engines.onnx import export as exporting
from serving.engines.onnx import header as headers
from serving.engines.onnx.export import check_export, export
from serving.engines.onnx.header import HEADER_FILE, MODEL_FILE, scorer_file
from serving.engines.onnx.session import OnnxSession
from serving.engines.torch.model import load_model
from serving.learned.mlp import sigmoid
from serving.learned.router import ROUTE, TokenRouter
from tests.support.learned_models import LinearScorer
from tests.support.tiny_models import VARIANTS, VOCABULARY

Save = Callable[..., Path]
FEEDS = (1, 24, 1, 1, 7, 1, 20)
"""Beyond the window of every model that has one, and beyond the original length of the one with two sets of angles."""
PROMPT = (5, 17, 40, 8, 23, 61, 9, 30, 77)


def fed(session: OnnxSession, text: Sequence[int], feeds: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(logits, hidden states) of the rows of each feed, behind those before."""
    past, at = session.empty_cache(), 0
    for length in feeds:
        ran = session.run(text[at : at + length], range(length), past)
        past, at = ran.present, at + length
        yield ran.logits, ran.hidden_states


def check_beside_transformers(path: Path, folder: Path, limit: float = 1e-3) -> None:
    causal, session = AutoModelForCausalLM.from_pretrained(path).eval(), OnnxSession(folder)
    generator = torch.Generator().manual_seed(3)
    text = torch.randint(VOCABULARY, (sum(FEEDS),), generator=generator).tolist()
    at, cache = 0, DynamicCache(config=causal.config)
    for logits, hidden in fed(session, text, FEEDS):
        ids = torch.tensor([text[at : at + len(logits)]])
        with torch.inference_mode():
            want = causal(ids, past_key_values=cache, output_hidden_states=True)
        assert np.abs(logits - want.logits[0].numpy()).max() < limit
        assert np.abs(hidden - want.hidden_states[-1][0].numpy()).max() < limit
        at += len(logits)
    check_greedy(causal, session)


def check_greedy(causal: torch.nn.Module, session: OnnxSession, n: int = 30) -> None:
    out = causal.generate(  # type: ignore[operator]
        torch.tensor([PROMPT]), max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    feed, past, written = PROMPT, session.empty_cache(), []
    for _ in range(n):
        ran = session.run(feed, (len(feed) - 1,), past)
        past, feed = ran.present, (int(ran.logits[0].argmax()),)
        written += feed
    assert written == out[0, len(PROMPT) :].tolist()


def test_a_graph_with_sliding_windows_equals_transformers(checkpoint: Checkpoint, exported: Path) -> None:
    assert checkpoint.path
    check_beside_transformers(checkpoint.path, exported)


@pytest.mark.slow
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_every_exported_architecture_equals_transformers(variant: str, save: Save, tmp_path: Path) -> None:
    path = save(variant, tmp_path / "model")
    (tmp_path / "graph").mkdir()
    header = export(Checkpoint(path=path), tmp_path / "graph")
    assert header.architecture == VARIANTS[variant]["model_type"]
    check_beside_transformers(path, tmp_path / "graph")


def test_every_supported_architecture_is_among_those_tested() -> None:
    assert {variant["model_type"] for variant in VARIANTS.values()} == {*ARCHITECTURES}


def test_sessions_of_one_length_may_share_a_pass(checkpoint: Checkpoint, exported: Path) -> None:
    session, texts = OnnxSession(exported), np.array([PROMPT, PROMPT[::-1], PROMPT])
    feeds = {
        name: np.repeat(empty, 3, 0)
        for name, empty in zip(session.header.past_names, session.empty_cache(), strict=True)
    }
    logits, hidden = session._session.run(["logits", "hidden"], {**feeds, "ids": texts, "rows": np.array([2, 8])})
    for text, ours, states in zip(texts.tolist(), logits, hidden, strict=True):
        alone = session.run(text, (2, 8), session.empty_cache())
        assert np.abs(alone.logits - ours).max() < 1e-5
        assert np.abs(alone.hidden_states - states).max() < 1e-5


def test_the_header_describes_the_graph_and_its_differences_from_torch(exported: Path, router: TokenRouter) -> None:
    header = headers.load_header(exported)
    assert (header.architecture, header.layers, header.kv_heads, header.head_size) == ("qwen2", 2, 2, 8)
    assert (header.hidden_size, header.vocab_size, header.int8, header.graphs) == (32, VOCABULARY, False, "one")
    assert header.scorer_digests == {ROUTE: router.digest, "doubt": LinearScorer.digest}
    assert header.score_output == "logit"
    assert header.checkpoint_name.endswith("mixed")
    assert 0 <= header.torch_differences["logits"] < 1e-4
    assert header.torch_differences["greedy"] == 1.0


def test_a_graph_of_an_older_version_is_exported_again(exported: Path, tmp_path: Path) -> None:
    first = json.loads((exported / HEADER_FILE).read_text()) | {"version": 2}
    (tmp_path / HEADER_FILE).write_text(json.dumps(first))
    with pytest.raises(ValueError, match=r"of version 2, this code reads 3.*force=\[device_graph\]"):
        headers.load_header(tmp_path)


def test_function_and_stage_export_one_graph_by_default() -> None:
    doors = (export, exporting.export_device)
    assert {inspect.signature(door).parameters["graphs"].default for door in doors} == {"one"}


def test_a_graph_that_differs_from_torch_is_refused(checkpoint: Checkpoint, exported: Path, tmp_path: Path) -> None:
    (tmp_path / MODEL_FILE).symlink_to(exported / MODEL_FILE)
    model, header = load_model(checkpoint.name_or_path), headers.load_header(exported)
    assert check_export(model, header, tmp_path).torch_differences == header.torch_differences
    with torch.no_grad():
        model.norm.weight.mul_(1.01)
    with pytest.raises(ValueError, match=r"differs from torch by .* 0.001 is allowed; serve it with model.device.back"):
        check_export(model, header, tmp_path)
    assert check_export(model, replace(header, int8=True), tmp_path).torch_differences["logits"] > 1e-3


def test_an_error_of_the_exporter_is_one_line(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("step 1 of 3 failed:\nlong story") from NotImplementedError("no rule for aten::riddle\nmore")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(ValueError, match="cannot be exported") as refused:
        export(checkpoint, tmp_path)
    said = str(refused.value)
    assert "mixed (architecture 'qwen2')" in said
    assert "NotImplementedError: no rule for aten::riddle." in said
    assert "model.device.backend=torch" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "bf16"}, "dtype is bf16; set model.device.dtype=fp32"),
        ({"adapter": Path("a/b")}, "drafts with an adapter .* set model.device.backend=torch, or choose another draft"),
    ],
)
def test_checkpoints_that_a_graph_would_compute_differently_are_refused(
    change: dict[str, object], message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        export(replace(checkpoint, **change), tmp_path)  # type: ignore[arg-type]


def test_a_router_of_another_model_is_refused(checkpoint: Checkpoint, router: TokenRouter, tmp_path: Path) -> None:
    narrow = replace(router, layers=((router.layers[0][0][:, :7], router.layers[0][1]), router.layers[1]),
                     mean=router.mean[:7], std=router.std[:7])  # fmt: skip
    with pytest.raises(ValueError, match=r"reads 7 numbers, and the hidden states of .* have 32"):
        export(checkpoint, tmp_path, [narrow])


def test_a_scorer_that_cannot_be_exported_is_refused_before_the_model_is_read(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "load_model", lambda *_: pytest.fail("the model was read"))

    class Opaque(LinearScorer):
        logit_module = None  # type: ignore[assignment]

    with pytest.raises(ValueError, match=r"computes 'doubt', cannot be exported .* a NumpyMLP, or give it a logit_mod"):
        export(checkpoint, tmp_path, [Opaque()])


def test_a_missing_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("serving.engines.models.find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ValueError, match=r"needs onnxscript, which .* install tandem-llm\[onnx\], or set model.device"):
        export(Checkpoint(hub="no/where"), tmp_path)


def test_a_folder_without_a_graph_or_with_a_damaged_one_is_refused(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no .*onnx.json; model.device.graph names a folder"):
        OnnxSession(tmp_path)
    headers.load_header(exported).save(tmp_path)
    with pytest.raises(ValueError, match=r"there is no .*model.onnx; export again"):
        OnnxSession(tmp_path)
    (tmp_path / MODEL_FILE).write_bytes((exported / MODEL_FILE).read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"model.onnx cannot be opened .* export again with force=\[device_graph\]"):
        OnnxSession(tmp_path)
    (tmp_path / MODEL_FILE).write_bytes((exported / scorer_file(ROUTE)).read_bytes())
    with pytest.raises(ValueError, match="is not the graph that its header describes"):
        OnnxSession(tmp_path)
    (tmp_path / "onnx.json").write_text('{"version": 9}')
    with pytest.raises(ValueError, match=r"onnx.json cannot be used .* export again"):
        headers.load_header(tmp_path)


def test_bytes_are_fewer_and_the_router_keeps_its_precision(
    checkpoint: Checkpoint, exported: Path, router: TokenRouter, tmp_path: Path
) -> None:
    with exporting._quiet_export():
        exporting._quantize(exported / MODEL_FILE, tmp_path / MODEL_FILE, external=False)
    header = check_export(
        load_model(checkpoint.name_or_path), replace(headers.load_header(exported), int8=True), tmp_path
    )
    assert (tmp_path / MODEL_FILE).stat().st_size < 0.8 * (exported / MODEL_FILE).stat().st_size
    assert header.torch_differences["logits"] > 1e-3
    assert 0.5 < header.torch_differences["greedy"] <= 1.0
    session = OnnxSession(tmp_path)
    ran = session.run(PROMPT, range(9), session.empty_cache())
    scores = [sigmoid(logit) for logit in ran.score_logits[ROUTE].tolist()]
    assert np.abs(scores - router.probabilities(ran.hidden_states)).max() < 1e-5


@pytest.mark.slow
def test_the_stage_writes_graphs_a_header_and_the_check_results(
    checkpoint: Checkpoint, router: TokenRouter, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    exporting.export_device(out, device=checkpoint, scorers=(router,), graphs="two", int8=True)
    assert headers.load_header(out).graphs == "two"
    assert "in int8, beside torch" in (out / "check.txt").read_text()
    assert sorted(file.name for file in out.iterdir()) == ["check.txt", MODEL_FILE, "onnx.json", scorer_file(ROUTE)]
    assert OnnxSession(out).run(PROMPT, (8,), OnnxSession(out).empty_cache()).score_logits == {}


@pytest.mark.slow
def test_large_weights_lie_beside_the_graph(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "MAX_INLINE_NBYTES", 1000)
    for int8 in (False, True):
        out = tmp_path / str(int8)
        out.mkdir()
        export(checkpoint, out, int8=int8)
        assert (out / f"{MODEL_FILE}.data").stat().st_size > 10_000
        assert len(OnnxSession(out).run(PROMPT, (8,), OnnxSession(out).empty_cache()).logits) == 1
