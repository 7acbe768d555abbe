"""`model.device.backend=onnx` from configuration to answers; unsupported settings are refused before any work."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import api
from pipeline.errors import UserError
from serving.deployment.model_loading import load_models
from serving.engines.models import Checkpoint, ModelConfig, ModelPair
from serving.engines.onnx.engine import OnnxEngine
from serving.learned.router import ROUTE, TokenRouter
from serving.messages import DraftStopRule, DraftWork
from serving.policy.policy import EngineRequirements
from tests.support.conf_files import architecture
from tests.support.fake_setup import pair, setup

ONNX = "model.device.backend=onnx"
TOY = (
    "policy=hybrid",
    "model=toy",
    "workload.num_prompts=6",
    "workload.profiling.num_prompts=24",
    "trainer.threads=1",
    "tracking.uri=none",
)


def on_onnx(**settings: Any) -> ModelConfig:
    """Its graph is one that a stage will write."""
    timed = architecture("tinyllama_1_1b")
    given = {"timed_architecture": timed, "hub": "a/small", "backend": "onnx", "graph": "${stage:device_graph}"}
    return ModelConfig(**{**given, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"graph": None}, r"backend=onnx needs a graph, .* graph: \$\{device_graph"),
        ({"graph": Path("no/graph")}, "graph is no/graph, and there is no such folder; give the one that the stage"),
        ({"dtype": "bf16"}, "backend=onnx computes in fp32, and dtype is bf16"),
        ({"adapter": Path("a/b")}, "this device drafts with an adapter"),
    ],
)
def test_settings_that_the_onnx_backend_cannot_run_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        on_onnx(**settings)


def test_a_quantised_checkpoint_is_refused_with_the_graphs_own_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.engines.models.find_spec", lambda name: name)
    with pytest.raises(ValueError, match=r"cannot export quantization=nf4, .* model.stages.device_graph.int8=true"):
        on_onnx(quantization="nf4")


def test_a_missing_library_is_named_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.engines.models.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs onnx and onnxscript and onnxruntime, .* install tandem-llm\[onnx\]"):
        on_onnx()


def test_the_cloud_stays_on_torch() -> None:
    with pytest.raises(ValueError, match=r"model.cloud.backend is onnx, and the cloud verifies many sessions"):
        ModelPair(pair().device, on_onnx())


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            "synera",
            "policy.offload=.* reads importance, .* choose policy/offload=confidence, .* or set model.device.ba",
        ),
        ("sled", None),
        ("cloud_centric", None),
    ],
)
def test_policies_that_need_outputs_a_graph_lacks_are_refused(policy: str, message: str | None) -> None:
    exported = ModelPair(on_onnx(), pair().cloud)
    if message is None:
        assert setup(policy, pair=exported).pair is exported
    else:
        with pytest.raises(ValueError, match=message):
            setup(policy, pair=exported)


def test_early_exit_is_refused_by_its_slot() -> None:
    synera = setup("synera").policy
    with pytest.raises(
        ValueError, match=r"policy.early_exit=ProgressiveExit leaves .* choose policy/early_exit=none or sequence_wise"
    ):
        setup("sled", pair=ModelPair(on_onnx(), pair().cloud), override={"early_exit": synera.early_exit})


def test_opened_models_draft_on_onnxruntime_with_the_policys_router(
    checkpoint: Checkpoint, exported: Path, save: Callable[..., Path], router: TokenRouter, tmp_path: Path
) -> None:
    cloud = Checkpoint(path=save("llama", tmp_path / "cloud", seed=1, num_hidden_layers=3))
    device = on_onnx(hub=None, path=checkpoint.path, graph=exported)
    provision = EngineRequirements({ROUTE: router})
    graph, torchs = (load_models(one, cloud, requirements=provision) for one in (device, checkpoint))
    assert isinstance(graph.device, OnnxEngine)
    assert graph.device.tensor_store is graph.cloud.tensor_store  # type: ignore[attr-defined]
    assert (graph.device_layers, graph.cloud_layers) == (2, 3)
    work = DraftWork("a", 0, (5, 17, 40), DraftStopRule(8), requested_scores=(ROUTE,))
    (ours, loads), (theirs, others) = (models.device.execute(work) for models in (graph, torchs))
    assert loads == others
    assert ours.tokens == theirs.tokens  # type: ignore[union-attr]


def test_a_graph_of_another_model_is_refused(
    checkpoint: Checkpoint, exported: Path, save: Callable[..., Path], tmp_path: Path
) -> None:
    other = save("llama", tmp_path / "other", num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"was exported from .*mixed .*, and the device's model is .*other"):
        load_models(on_onnx(hub=None, path=other, graph=exported), checkpoint)


def test_a_graph_of_other_weights_is_refused_and_one_of_a_copy_is_not(
    checkpoint: Checkpoint, exported: Path, save: Callable[..., Path], tmp_path: Path
) -> None:
    assert checkpoint.path
    again = save("qwen2_mixed", tmp_path / "again", seed=1, num_hidden_layers=2, max_window_layers=1)
    with pytest.raises(ValueError, match=r"from .*mixed, whose weights are others than .*again; export again with fo"):
        load_models(on_onnx(hub=None, path=again, graph=exported), checkpoint)
    copy = shutil.copytree(checkpoint.path, tmp_path / "copy")
    models = load_models(on_onnx(hub=None, path=copy, graph=exported), checkpoint)
    assert isinstance(models.device, OnnxEngine)


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    return lambda *words: {stage.name: stage for stage in api.stages((*TOY, f"outputs={tmp_path}", *words))}


def test_the_onnx_backend_adds_an_export_stage_to_the_plan(planned: Callable[..., dict[str, Any]]) -> None:
    plain, onnx = planned(), planned(ONNX)
    assert {*onnx} - {*plain} == {"device_graph"}
    for name in {*plain} - {"serve"}:
        assert onnx[name].digest == plain[name].digest
    int8 = planned(ONNX, "model.stages.device_graph.int8=true")
    assert int8["device_graph"].digest != onnx["device_graph"].digest
    assert onnx["device_graph"].args["scorers"] == []


def test_the_policys_router_is_exported_with_the_model(planned: Callable[..., dict[str, Any]]) -> None:
    """Any artifact stands for one here: it is only planned."""
    routed = (
        "policy/offload=always",
        "policy.offload._target_=serving.policy.slots.routed_offload.RoutedOffload",
        "+policy.offload.scorer._target_=serving.learned.router.load",
        "+policy.offload.scorer.path=${stage:corpus}",
    )
    graph = planned(ONNX, *routed)["device_graph"]
    assert {*graph.inputs} == {"corpus", "device_model"}


def test_a_policy_that_a_graph_cannot_serve_is_refused_before_any_work(planned: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(UserError, match=r"policy.offload=.* reads importance"):
        planned(ONNX, "policy=synera")


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("runtime=grpc", "runtime.device_processes=1", "runtime.shaping=none")])
def test_a_run_on_onnx_writes_the_text_of_torch(more: tuple[str, ...], outputs: Path) -> None:
    texts, times = [], []
    for words in ((), (ONNX,)):
        with api.composed(*TOY, f"outputs={outputs}", *more, *words) as cfg:
            report = api.run(cfg)
        assert report is not None
        texts.append({one.prompt_id: one.text for one in report.records.requests})
        times.append([one.ended_s for one in report.records.requests])
    assert texts[0] == texts[1]
    assert any(texts[0].values())
    assert more or times[0] == times[1]
