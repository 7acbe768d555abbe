"""A search as a command asks for it: notes, refusals, and the line that runs what was chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import api
from pipeline.answers.asked import Asked, check_no_option
from pipeline.answers.candidates import Candidate
from pipeline.answers.cell import CellResult
from pipeline.answers.choose import Effort, Question, Search
from pipeline.answers.choosing import Choosing
from pipeline.answers.evaluation import LOSSY, Evaluator
from pipeline.answers.leaderboard import Leaderboard
from pipeline.answers.requirements import Requirements
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import StoreError
from pipeline.errors import ConfigError, UserError
from pipeline.parallel.workers import LostTask
from pipeline.report.mlflow_store import Tracking
from pipeline.report.plan import PlannedStage
from tests.pipeline.answers.test_choose import COST, EFFORT, SERVICE, FormulaEvaluator, formula


def question(**require: Any) -> Question:
    return Question(
        Requirements(**require), {"sled": {"policy.draft.k": "range(1,9)"}}, (COST, SERVICE),
        base=("runtime=simulated", "runtime/outcomes=fitted"), search=("workload.seed=0",),
        held_out=("workload.seed=1000",), own_words={"sled": ("policy.draft.threshold=0.5", "policy/kv_cache=reuse")},
    )  # fmt: skip


def search(words: tuple[str, ...]) -> Search:
    return Search(question(), EFFORT, FormulaEvaluator(workers=None), words)  # type: ignore[arg-type]


def test_the_line_that_runs_the_choice_has_its_load_and_its_own_words_and_composes(tmp_path: Path) -> None:
    words = ("network=wifi", "runtime/outcomes=fitted_spec_bench", "runtime.detail=false", "workload.profiling.skip=9")
    chosen = Candidate("sled", (("policy.draft.k", "5"), ("policy/kv_cache", "none")))
    found = question(devices_min=16).words_beside(chosen, words)
    assert set(found) == {"network=wifi", "workload.devices=16", "policy.draft.threshold=0.5"}
    with api.composed(*chosen.words, *found, f"outputs={tmp_path}") as cfg:
        assert (cfg.workload.devices, cfg.policy.draft.k) == (16, 5)


def test_words_that_every_cell_sets_itself_are_noted_and_not_said_to_be_asked(tmp_path: Path) -> None:
    given = ("seed=7", "workload.seed=9", "+workload.num_prompts=1000", "network=wifi", "workload.devices=4")
    assert search(given).unused_words() == ["seed=7", "workload.seed=9", "+workload.num_prompts=1000"]
    assert search(("+seed=0", "workload.seed=1000", "workload.num_prompts=16")).unused_words() == []
    out = StringIO()
    served = FormulaEvaluator(workers=None, formula=lambda words: formula(_as_drafts(words)))  # type: ignore[arg-type]
    Choosing(question(), {"first": Effort(4, (4, 8, 16), (6, 3))}).answer(
        Asked(served, given, (), tmp_path, Tracking("none"), out=out)
    )
    printed = out.getvalue()
    assert "note: seed=7, workload.seed=9, +workload.num_prompts=1000: of no effect here" in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("run it:")]
    assert "network=wifi" in line
    assert "workload.devices=4" in line
    assert not any(word in line for word in ("seed=", "num_prompts", "runtime"))


def _as_drafts(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("policy=drafts" if word == "policy=sled" else word for word in words)


@pytest.mark.parametrize(
    ("asks", "instead"),
    [
        (Choosing, "\"++choose.policies.wisp={policy.draft.k:'5'}\""),
        (Leaderboard, "\"+leaderboard.own_words.wisp=['policy.draft.k=5']\""),
    ],
)
def test_an_option_of_the_command_s_policy_is_refused_with_the_word_that_says_whose_it_is(
    asks: type[Choosing | Leaderboard], instead: str
) -> None:
    with pytest.raises(ConfigError, match=r"policy\.draft\.k=5 is an option of one policy") as refused:
        check_no_option(["+policy=wisp", "policy.draft.k=5"], ["wisp"], asks.FOR_ONE_POLICY)
    assert str(refused.value).endswith(f"{instead}.")
    check_no_option(["+policy=wisp", "policy/draft=path", "network=wifi"], ["wisp"], asks.FOR_ONE_POLICY)


def test_a_command_may_ask_for_more_devices_than_are_required(tmp_path: Path) -> None:
    asked = Asked(FormulaEvaluator(workers=None), ("workload.devices=8",), (), tmp_path, Tracking("none"))  # type: ignore[arg-type]
    one = Choosing(question(devices_min=16), {"first": EFFORT})
    with pytest.raises(ConfigError, match="contradicts"):
        one.answer(asked)
    networks = Choosing(question(devices_min=16), {"first": EFFORT}, networks={"wifi": 3, "lte": 1})
    words = networks._search(replace(asked, words=("workload.devices=32",))).words
    (fleets,) = [word for word in words if word.startswith("+hardware.fleets")]
    assert "count:24,network:wifi" in fleets
    assert "count:8,network:lte" in fleets


@dataclass
class PlanningEvaluator(FormulaEvaluator):
    """Plans a stage for every cell but those of the policies in `refused`."""

    refused: Mapping[str, str] = field(default_factory=dict)

    def planned_stages(
        self, cells: Sequence[Sequence[str]], only_lossless: bool = False
    ) -> tuple[list[PlannedStage], dict[tuple[str, ...], str]]:
        policies = {tuple(words): dict(word.split("=", 1) for word in words)["policy"] for words in cells}
        problems = {words: self.refused[name] for words, name in policies.items() if name in self.refused}
        return [PlannedStage("model", "model-1", "train", "new", False, 4.0)], problems


def plan(folder: Path, refused: Mapping[str, str], policies: Sequence[str]) -> str:
    planning, out = PlanningEvaluator(workers=None, refused=refused), StringIO()  # type: ignore[arg-type]
    asked = Asked(planning, (), tuple(policies), folder, Tracking("none"), plan_only=True, out=out)
    Choosing(question(), {"first": EFFORT}).answer(asked)
    return out.getvalue()


def test_a_plan_says_which_policies_are_left_out_and_why(tmp_path: Path) -> None:
    printed = plan(tmp_path, {"wisp": "there is no 'nope'"}, ("sled", "wisp"))
    assert "1 of 1 stages to build" in printed
    assert "\nwithout wisp: there is no 'nope'\nthen 1 policies" in printed


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ({"sled": "there is no 'nope'"}, "choose: of sled none can be served here: there is no 'nope'"),
        ({"sled": LOSSY}, "choose: of sled none writes the cloud model's own text here"),
    ],
)
def test_a_plan_without_a_policy_says_the_reason(tmp_path: Path, refused: Mapping[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        plan(tmp_path, refused, ("sled",))


@pytest.mark.parametrize("problem", [ConfigError, StoreError])
def test_planning_tells_the_problem_of_a_cell_and_looks_at_each_once(
    problem: type[UserError], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    def refuse(words: Sequence[str], config_dir: str | None) -> None:
        asked.append(words)
        raise problem("there is no 'nope'.\nmore")

    monkeypatch.setattr("pipeline.answers.evaluation.composed_cell", refuse)
    evaluator, cells = Evaluator(workers=None), [["policy=sled"]] * 2  # type: ignore[arg-type]
    expected = {("policy=sled",): "there is no 'nope'."}
    assert evaluator.planned_stages(cells) == ([], expected)
    assert evaluator.build_inputs(cells) == expected
    assert asked == [("policy=sled",)] * 2


def test_a_fault_of_the_project_in_one_candidate_ends_no_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(words: Sequence[str], config_dir: str | None) -> None:
        raise IndexError("no such\nqueue")

    monkeypatch.setattr("pipeline.answers.cell.composed_cell", fail)
    monkeypatch.setattr("pipeline.answers.evaluation.composed_cell", fail)
    evaluator, words = Evaluator(Inline()), ("policy=sled",)
    assert [one.problem for one in evaluator.evaluate("cells", [words])] == ["IndexError: no such"]
    assert capsys.readouterr().err.count("Traceback") == 1
    assert evaluator.build_inputs([words]) == {words: "IndexError: no such"}


def test_a_fault_in_a_stage_is_the_problem_of_all_its_cells_and_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_stages: Sequence[Stage]) -> None:
        raise IndexError("no such queue")

    evaluator, job = Evaluator(Inline()), SimpleNamespace(run=fail)
    for _ in range(2):
        with pytest.raises(UserError, match="IndexError: no such queue"):
            evaluator._build(job, [Stage("corpus", "f", {})])  # type: ignore[arg-type]
    assert capsys.readouterr().err.count("Traceback") == 1


def test_a_cell_whose_worker_died_is_served_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.answers.evaluation.run_cell", lambda words, _: CellResult(words, {"x": 1.0}))
    out, one, other = StringIO(), ("seed=0",), ("seed=1",)
    once = Evaluator(Inline(lost=[other]), file=out)
    assert [found.metrics for found in once.evaluate("cells", [one, other])] == [{"x": 1.0}] * 2
    assert "1 tasks lost their worker and start again" in out.getvalue()
    always = Evaluator(Inline(lost=[other] * 3), file=out)
    assert [found.problem for found in always.evaluate("cells", [one, other])] == [None, "its host died"]


@dataclass
class Inline:
    """Calls in this process; `lost` has the words whose task is lost, once for each time."""

    lost: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, call: Any, tasks: Any, job_nbytes: float) -> Any:
        for index, task in enumerate(tasks):
            if task[0] in self.lost:
                self.lost.remove(task[0])
                yield index, LostTask("its host died")
            else:
                yield index, call(*task)
