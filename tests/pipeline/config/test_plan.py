"""Which stages are planned, what changes whose identity, and what is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.own_code import code_digests
from pipeline.artifacts.stage import Stage
from pipeline.config.build import ConfigSchema, PendingArtifact, construct
from pipeline.config.plan import Plan, build_arguments, make_plan
from pipeline.errors import ConfigError

ME = __name__


def corpus(out: Path, *, seed: int = 0) -> None: ...


def model(out: Path, *, corpus: Path, rate: float = 0.1, threads: int = 0) -> None: ...


def thresholds(out: Path, *, model: Path) -> None: ...


def serve(out: Path, *, setup: dict[str, Any], progress: Any) -> None: ...


def check_serve(*, setup: dict[str, Any], **_: Any) -> None:
    if setup["network"] == 0:
        raise ValueError("network is 0, and there is a model to reach")


def unread_serve(*, setup: dict[str, Any], **_: Any) -> tuple[object, ...]:
    return (setup["model"], *setup["thresholds"]) if setup["network"] == 1 else ()


SCHEMA = ConfigSchema(lambda path: "sha", lambda target, name: None)


def nodes(**change: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        "unused": {"_target_": f"{ME}.corpus", "seed": 9},
        "serve": {
            "_target_": f"{ME}.serve",
            "_kind_": "serve",
            "setup": {"network": 8, "model": {"_stage_": "model"}, "thresholds": [{"_stage_": "thresholds"}]},
        },
        "thresholds": {"_target_": f"{ME}.thresholds", "_kind_": "profile", "model": {"_stage_": "model"}},
        "model": {"_target_": f"{ME}.model", "_resources_": {"threads": 2}, "corpus": {"_stage_": "corpus"}},
        "corpus": {"_target_": f"{ME}.corpus"},
    }
    for path, value in change.items():
        *parents, last = path.split("__")
        node: Any = found
        for parent in parents:
            node = node[parent]
        node[last] = value
    return found


def folder_of(stage: Stage) -> Path:
    return Path("/store") / stage.name


def planned(**change: Any) -> Plan:
    return make_plan(nodes(**change), SCHEMA, folder_of)


def changed(**change: Any) -> set[str]:
    before, after = planned(), planned(**change)
    return {name for name in after.stages if after.stages[name].digest != before.stages[name].digest}


def test_a_stages_check_refuses_incompatible_arguments() -> None:
    with pytest.raises(ConfigError, match="network is 0, and there is a model"):
        planned(serve__setup__network=0)


def test_only_needed_stages_are_planned_inputs_first() -> None:
    assert list(planned().stages) == ["corpus", "model", "thresholds", "serve"]


def test_every_stage_has_one_of_the_three_kinds() -> None:
    assert planned().kinds == {"corpus": "train", "model": "train", "thresholds": "profile", "serve": "serve"}
    with pytest.raises(ConfigError, match=r"stages.corpus._kind_ is 'fly'; allowed are train, profile, serve."):
        planned(corpus___kind_="fly")


@pytest.mark.parametrize(
    ("stop", "names"),
    [
        ("train", ["corpus", "model"]),
        ("profile", ["corpus", "model", "thresholds"]),
    ],
)
def test_the_stop_option_selects_the_goals_of_a_plan(stop: str, names: list[str]) -> None:
    assert [stage.name for stage in planned().goals(stop)] == names
    assert planned().serve.name == "serve"


def test_a_change_rebuilds_the_stage_and_its_descendants() -> None:
    assert changed(serve__setup__network=9) == {"serve"}
    assert changed(model__rate=0.2) == {"model", "thresholds", "serve"}
    assert changed(corpus__seed=1) == {"corpus", "model", "thresholds", "serve"}
    assert changed(thresholds___version_=2) == {"thresholds", "serve"}
    assert changed(model___version_=1) == set()


def test_unused_arguments_and_resources_rebuild_nothing() -> None:
    assert changed(model__rate=0.1) == changed(corpus__seed=0) == set()
    assert changed(model___resources_={"threads": 16}) == set()
    assert changed(unused__seed=3) == set()
    assert changed(model___kind_="train") == set()


def test_resources_are_passed_to_the_stage_function() -> None:
    stage = planned().stages["model"]
    assert (stage.args, stage.resources) == ({"corpus": {"_stage_": "corpus"}, "rate": 0.1}, {"threads": 2})
    folder = {"corpus": Path("/store/corpus")}
    assert build_arguments(stage, folder.__getitem__) == {"corpus": Path("/store/corpus"), "rate": 0.1, "threads": 2}


def test_an_input_that_is_not_read_is_not_planned_and_stays_in_the_identity() -> None:
    alone, whole = planned(serve__setup__network=1), planned(serve__setup__network=2)
    assert list(alone.stages) == ["serve"]
    assert alone.goals("profile") == []
    assert list(alone.serve.inputs) == list(whole.serve.inputs) == ["model", "thresholds"]
    other = planned(serve__setup__network=1, corpus__seed=1)
    assert other.serve.digest != alone.serve.digest
    made = build_arguments(alone.serve, lambda name: Path("/store", name))["setup"]
    assert isinstance(made["model"], PendingArtifact)


def test_what_is_refused_of_an_input_that_is_not_read_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise ValueError("the model's package is missing")

    monkeypatch.setitem(globals(), "check_model", refuse)
    assert list(planned(serve__setup__network=1).stages) == ["serve"]
    with pytest.raises(ConfigError, match="the model's package is missing"):
        planned(serve__setup__network=2)


def test_an_input_that_another_option_reads_is_planned() -> None:
    plan = planned(serve__setup__network=1, serve__setup__beside={"_stage_": "model"})
    assert list(plan.stages) == ["corpus", "model", "serve"]
    made = build_arguments(plan.serve, lambda name: Path("/store", name))["setup"]
    assert made["model"] == made["beside"] == Path("/store/model")


def test_a_cycle_of_stages_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^stages need each other in a circle: serve -> model -> corpus -> model.$"):
        planned(corpus={"_target_": f"{ME}.model", "corpus": {"_stage_": "model"}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model__corpus": {"_stage_": "corpse"}},
            r"^stage 'model' needs 'corpse', which is none of: corpus, model, serve,",
        ),
        ({"corpus": {"seed": 1}}, r"^stages.corpus: no _target_ says which function makes it.$"),
        ({"corpus": 3}, r"^stages.corpus: no _target_ says which function makes it.$"),
        ({"corpus__sed": 1}, r"^corpus: .*corpus has no option 'sed'. Its options: seed.$"),
        ({"model__rate": "fast"}, r"^model.rate: got 'fast'; a number is wanted.$"),
        ({"corpus___version_": "new"}, r"^stages.corpus: invalid literal"),
    ],
)
def test_invalid_stages_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(**change)


def test_an_unknown_goal_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^asked for is 'fly', which is none of: corpus"):
        make_plan(nodes(), SCHEMA, folder_of, ("fly",))


def test_a_plan_is_plain_data_until_its_objects_are_constructed() -> None:
    stage = planned().stages["serve"]
    made = construct(stage.args["setup"], lambda name: Path("/store", name))
    assert made == {"network": 8, "model": Path("/store/model"), "thresholds": (Path("/store/thresholds"),)}


def test_code_of_a_users_own_is_part_of_a_stages_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "lab_of_a_user.py"

    def digest_with(text: str) -> str:
        file.write_text(text, encoding="utf-8")
        plan = make_plan(nodes(corpus___target_="lab_of_a_user.corpus"), SCHEMA, folder_of)
        return plan.stages["corpus"].digest

    first = digest_with("def corpus(out): ...\n")
    assert digest_with("def corpus(out): ...\n") == first
    assert digest_with("def corpus(out): return None\n") != first


def test_code_of_the_project_and_of_installed_packages_is_no_part_of_it() -> None:
    assert code_digests(["pipeline.config.plan", "pytest", "json", "no.such.module"]) == {}
    assert ME in code_digests([ME, "json"])


def test_code_that_a_users_own_imports_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is imported, and in a function, too; what is installed is not imported for it."""
    monkeypatch.syspath_prepend(tmp_path)
    files = {
        "lab_a.py": "import lab_pack.direct\ndef f():\n    from lab_pack import lazy\n    import no_such_one, torch",
        "lab_pack/__init__.py": "raise RuntimeError('imported by the plan')",
        "lab_pack/direct.py": "from .relative import value",
        "lab_pack/relative.py": "value = 1",
        "lab_pack/lazy.py": "import lab_a  # in a circle",
        "lab_pack/other.py": "",
        "lab_broken.py": "def",
    }
    (tmp_path / "lab_pack").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    found = code_digests(["lab_a", "lab_broken"])
    named = ["lab_a", "lab_broken", "lab_pack", "lab_pack.direct", "lab_pack.lazy", "lab_pack.relative"]
    assert list(found) == named
    (tmp_path / "lab_pack" / "relative.py").write_text("value = 2", encoding="utf-8")
    assert [name for name, digest in code_digests(["lab_a", "lab_broken"]).items() if digest != found[name]] == [
        "lab_pack.relative"
    ]
    code = (
        "import sys; from pipeline.artifacts.own_code import code_digests; code_digests(['lab_a']); "
        "print('torch' in sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout == "False\n", shown.stderr
