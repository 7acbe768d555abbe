"""A job builds missing and forced stages."""

import re
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import api
from pipeline.artifacts.progress_display import NullObserver
from pipeline.config.compose import ConfigLibrary
from pipeline.config.own_classes import error_text
from pipeline.errors import ConfigError
from pipeline.report.job_summary import _group_choices, _policy_slots, _side_facts
from pipeline.running import Job, _job_context, create_job, run
from tests.support.tiny_models import save_checkpoints

TOY = ("model=toy", "workload=smoke")
STAGES = {
    "corpus": {"_target_": "tests.support.stage_functions.write_text", "text": "a"},
    "serve": {"_target_": "tests.support.stage_functions.write_text", "_kind_": "serve", "text": "b"},
}


def job(outputs: Path, force: Any = (), stages: Any = STAGES) -> Job:
    data = {"outputs": str(outputs), "stages": stages, "force": force, "accelerator": "cpu"}
    return Job(data, ConfigLibrary(None, {}), NullObserver())  # type: ignore[arg-type]


def built(one: Job) -> int:
    return len(one.run([one.plan().serve])[1])


@pytest.mark.parametrize("force", ["serve", ["serve"]])
def test_a_forced_stage_is_built_again(tmp_path: Path, force: Any) -> None:
    assert built(job(tmp_path)) == 1
    assert built(job(tmp_path)) == 0
    assert built(job(tmp_path, force)) == 1


def test_a_service_is_not_built_as_a_stage_is(tmp_path: Path) -> None:
    with (
        api.composed("+policy=sled", *TOY, "stage=page", f"outputs={tmp_path}") as cfg,
        pytest.raises(ConfigError, match=r"page is no stage that ends: .* Run python -m serving\.page with"),
    ):
        run(cfg)
    assert not (tmp_path / "artifacts").exists()
    with (
        api.composed("+policy=sled", *TOY, "stage=pages", f"outputs={tmp_path}") as cfg,
        pytest.raises(ConfigError, match=r"allowed are all, plan, train, profile, cloud_model, corpus, device_graph"),
    ):
        run(cfg)


@pytest.mark.parametrize("force", [True, [1], 3])
def test_force_without_the_name_of_a_stage_is_refused(tmp_path: Path, force: Any) -> None:
    with pytest.raises(ConfigError, match=r"^force has (True|1|3); name the stages to build again"):
        job(tmp_path, force).plan()


SEALED = {
    "_target_": "tests.support.stage_functions.read_questions",
    "dataset": {"_target_": "serving.workload.datasets.gsm8k.GSM8K", "evaluation": "sealed"},
}


def test_an_artifact_of_sealed_prompts_is_counted_when_it_is_made(tmp_path: Path) -> None:
    stages = {"serve": SEALED}
    one = job(tmp_path, stages=stages)
    for _ in range(2):
        one.run([one.plan().stages["serve"]])
    (artifact,) = (tmp_path / "artifacts" / "serve").iterdir()
    assert (tmp_path / "sealed_uses.txt").read_text() == f"gsm8k {artifact.name}\n"


def test_an_artifact_of_sealed_prompts_is_counted_although_a_later_stage_fails(tmp_path: Path) -> None:
    served = {"_target_": "tests.support.stage_functions.measure_after", "x": 1.0, "base": {"_stage_": "asked"}}
    one = job(tmp_path, stages={"asked": SEALED, "serve": {**served, "_kind_": "serve"}})
    with pytest.raises(ConfigError, match=r"measure_after \(.* AssertionError\. TANDEM_DEBUG=1 shows the traceback"):
        one.run([one.plan().serve])
    assert (tmp_path / "sealed_uses.txt").read_text().startswith("gsm8k ")


def test_a_search_on_sealed_prompts_is_refused() -> None:
    words = ("+policy=sled", "workload=gsm8k", "workload.dataset.evaluation=sealed", "+trial=default")
    with api.composed(*words) as cfg, pytest.raises(ConfigError, match="a search chooses"):
        run(cfg)


def test_a_run_whose_thresholds_saw_its_prompts_is_refused() -> None:
    words = ("+policy=synera", "model=toy", "workload.num_prompts=8", "workload.profiling.num_prompts=20",
             "workload.profiling.dataset=${workload.dataset}")  # fmt: skip
    with pytest.raises(ConfigError, match=r"stage thresholds learns from .* Set workload\.profiling\.skip=8\."):
        api.stages(words)


def test_a_stage_that_is_not_in_the_run_cannot_be_forced(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no stage 'corpse' in this run"):
        job(tmp_path, "corpse").plan()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("+policy=synera", "policy/verify=tree"),
            "policy/draft=window makes chains; policy/verify=tree judges trees, which policy/draft=tree, tree_lookup "
            "or medusa makes",
        ),
        (
            ("+policy=sled", "policy/offload=full"),
            "policy/offload=full would throw every draft of policy/draft=window away; choose policy/draft=none",
        ),
    ],
)
def test_conflicts_between_slots_are_said_in_the_names_of_conf(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        api.stages(words)


def test_too_many_prompts_are_found_once_the_corpus_is_there_and_before_any_model_is_trained(tmp_path: Path) -> None:
    words = ("+policy=sled", "model=toy", "workload.num_prompts=61", f"outputs={tmp_path}")
    message = r"num_prompts=61 is more than the data set's 60 prompts"
    with api.composed(*words) as cfg, pytest.raises(ConfigError, match=message):
        api.run(cfg)
    assert [folder.name for folder in (tmp_path / "artifacts").iterdir() if folder.name[0] != "."] == ["corpus"]
    with pytest.raises(ConfigError, match=r"num_prompts=61 is more than"):
        api.stages(words)


def test_a_report_from_python_has_the_names_of_conf() -> None:
    with api.composed("+policy=synera", "network=lte", "model=toy", "report=quiet") as cfg:
        context = _job_context(create_job(cfg))
    assert _group_choices(context) == ["jetson_orin", "lte", "tiny"]
    slots = _policy_slots(context)
    assert slots.startswith("draft window (k=4")
    assert "offload synera" in slots
    assert "SyneraOffload" not in slots
    assert "hydra" not in context.config


def test_a_report_shows_the_slots_of_the_policy_that_was_served() -> None:
    with api.composed("+policy=tandem", "model=toy", "report=quiet") as cfg:
        context = _job_context(create_job(cfg))
    assert "placement colocated" in _policy_slots(context)
    assert "k=6" in _policy_slots(context)
    there = _policy_slots(context, "device")
    assert "placement cloud_or_tiers" in there
    assert "draft rejection_predictor" in there
    assert "tandem_device" not in _policy_slots(context)


def test_a_side_without_a_model_has_none_in_the_report() -> None:
    """Drafts that are looked up in the text come from no model, whatever the pair has for the device."""
    models = {"cloud": {"wrote": "large", "timed_as": "itself"}}
    records: Any = SimpleNamespace(meta=SimpleNamespace(raw={"models": models}, timing={}), requests=[])
    with api.composed("+policy=sled", "policy/draft=lookup", "model=toy", "report=quiet") as cfg:
        context = _job_context(create_job(cfg))
    assert _side_facts(records, context, "cloud") == "large, timed as itself on rtx_a6000"
    assert _side_facts(records, context, "device") == "no model"


def timed_as(*words: str) -> Any:
    (serve,) = [stage for stage in api.stages(["+policy=sled", "workload=smoke", *words]) if stage.name == "serve"]
    return serve.args["setup"]["pair"]["device"]["timed_architecture"]


def test_a_checkpoint_given_by_its_path_is_timed_as_itself_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    folders = save_checkpoints(tmp_path)
    own = (f"model.device.path={folders['device']}", f"model.cloud.path={folders['cloud']}")
    assert timed_as()["name"] == "tinyllama_1_1b"
    assert timed_as(*own)["_target_"].endswith("checkpoint_architecture")
    assert timed_as(*own, "model.device.timed_architecture=llama_68m")["name"] == "llama_68m"


@pytest.mark.parametrize("kind", ["AttributeError", "KeyError", "ValueError", "SystemExit"])
def test_an_error_of_a_users_class_in_a_run_names_the_class_and_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / f"own_choice_{kind}.py").write_text(
        f"class Choice:\n    def decide(self):\n        raise {kind}('scoresx')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    choice = {"_target_": f"own_choice_{kind}.Choice"}
    stages = {"serve": {"_target_": "tests.support.stage_functions.decide", "_kind_": "serve", "choice": choice}}
    with pytest.raises(
        ConfigError, match=rf"serve\.choice: own_choice_{kind}\.Choice \(.*own_choice_{kind}.py line 3\)"
    ):
        built(job(tmp_path / "outputs", stages=stages))


def test_an_error_of_a_users_choice_in_a_child_process_names_its_line() -> None:
    """runtime=grpc runs nodes in processes of their own, whose tracebacks do not reach the parent."""

    class ChildError(RuntimeError):
        remote_frames = (("serving.nodes.worker", "worker.py", 7), ("lab.choice", "choice.py", 3))

    node = {"_target_": "lab.choice.Choice"}
    with pytest.raises(ChildError) as caught:
        raise ChildError("cloud-0: ZeroDivisionError: division by zero")
    assert error_text(caught.value, {"scheduler": node}, "serve") == (
        "serve.scheduler: lab.choice.Choice (choice.py line 3): ChildError: cloud-0: ZeroDivisionError: division by "
        "zero. TANDEM_DEBUG=1 shows the traceback."
    )
    assert error_text(caught.value, {"scheduler": {"_target_": "serving.Fifo"}}, "serve") is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return {}['rate']", r"line 2\): KeyError: 'rate'\. TANDEM_DEBUG=1 shows the traceback\.$"),
        ("raise ValueError('rate is 0')", r"line 2\): rate is 0$"),
        ("raise SystemExit", r"line 2\): SystemExit\. TANDEM_DEBUG=1"),
        ("raise ValueError", r"line 2\): ValueError\. TANDEM_DEBUG=1"),
        ("import json; json.dumps(out)", r"line 2\): TypeError: .*not JSON serializable\. TANDEM_DEBUG=1"),
        ("pass", r"line 1\) returned without writing anything; a stage function must write its files to the folder "),
        ("(out / 'stage.json').touch()", r"line 1\) wrote stage.json, which the store writes; a stage function must "),
    ],
)
def test_an_error_of_a_users_stage_names_the_function_and_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    module = f"own_stage_{zlib.crc32(body.encode())}"
    (tmp_path / f"{module}.py").write_text(f"def fit(out):\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    stages = {"fitted": {"_target_": f"{module}.fit", "_kind_": "serve"}}
    one = job(tmp_path / "outputs", stages=stages)
    with pytest.raises(ConfigError, match=rf"^fitted: {module}\.fit \(\S+{module}\.py {said}"):
        one.run([one.plan("fitted").stages["fitted"]])


def test_a_fault_of_the_project_in_a_run_stays_one(tmp_path: Path) -> None:
    """Here of a function that is given a folder without draws."""
    (tmp_path / "drawn").mkdir()
    (tmp_path / "drawn" / "no_draw.txt").write_text("1")
    target = "pipeline.report.results.draws.summarise_draws"
    stages = {"serve": {"_target_": target, "_kind_": "serve", "drawn": str(tmp_path / "drawn")}}
    with pytest.raises(TypeError, match="intersection"):
        built(job(tmp_path / "outputs", stages=stages))
