"""What a plan prints: what is built, how long it takes, and one table for a sweep."""

import io
from pathlib import Path

import pytest

from pipeline.report import plan
from pipeline.report.plan import PlannedStage
from pipeline.report.table import LabelledTexts, Table, print_parts

CORPUS = PlannedStage("corpus", "corpus-1", "train", "cached (built today)", cached=True)


def missing(name: str, seconds: float, learned: bool = True) -> PlannedStage:
    return PlannedStage(name, f"{name}-1", "train", "new", False, seconds, 1.2e9, learned)


def test_a_plan_says_how_many_stages_are_built_how_long_and_with_how_much_memory():
    lines = plan.describe_plan([CORPUS, missing("model", 200), missing("serve", 4.4)]).splitlines()
    assert lines[0] == "2 of 3 stages to build, about 3 min, with up to 1.2 GB of memory"
    assert lines[2].split() == ["train", "corpus-1", "-", "cached", "(built", "today)"]
    assert lines[3].split() == ["train", "model-1", "3", "min", "new"]


def test_an_estimate_that_no_earlier_build_supports_is_marked():
    lines = plan.describe_plan([missing("model", 200, learned=False)]).splitlines()
    assert "(~: from sizes, not from an earlier build)" in lines[0]
    assert lines[2].split() == ["train", "model-1", "~3", "min", "new"]


def test_a_plan_without_work_says_so():
    assert plan.describe_plan([CORPUS]).startswith("nothing to build: all 1 stages are there")
    assert plan.describe_plan([]) == "nothing to build: no stage is needed"


@pytest.mark.parametrize(("seconds", "warned"), [(1700, False), (1900, True)])
def test_more_than_half_an_hour_gets_a_warning_that_names_the_longest_stage(seconds: float, warned: bool):
    text = plan.describe_plan([missing("model", seconds), missing("serve", 10)])
    assert ("warning: that is long; model alone takes about" in text) is warned


def test_the_plan_of_a_sweep_is_one_table_that_counts_a_shared_stage_once(tmp_path: Path):
    for number, policy in enumerate(("sled", "synera")):
        stages = [CORPUS, missing("model", 100), missing(f"serve_{policy}", 10)]
        (tmp_path / str(number)).mkdir()
        plan.write_plan(tmp_path / str(number), [f"policy={policy}", "seed=1"], stages)
    file = io.StringIO()
    print_parts(plan.sweep_parts(tmp_path), file)
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert ["0", "sled", "1", "of", "3", "110", "s"] in lines
    assert ["to", "build", "0:", "model,", "serve_sled"] in lines
    assert "3 of 4 stages to build, about 2 min" in file.getvalue()


def test_the_jobs_of_a_planned_sweep_have_their_own_numbers_where_one_could_not_be_planned(tmp_path: Path):
    for number, policy in ((0, "sled"), (2, "synera")):
        (tmp_path / str(number)).mkdir()
        plan.write_plan(tmp_path / str(number), [f"policy={policy}"], [CORPUS])
    table = plan.sweep_parts(tmp_path)[0]
    assert isinstance(table, Table)
    assert [row[:2] for row in table.rows] == [("0", "sled"), ("2", "synera")]


def test_a_planned_sweep_says_once_what_several_jobs_build_however_many_stages_that_are(tmp_path: Path):
    many = [missing(f"a_stage_with_a_long_name_{n}", 10) for n in range(20)]
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        overrides = [f"variant/of_a_long/group={'citer' if number == 3 else 'sled'}", f"training.seed={number}"]
        plan.write_plan(tmp_path / str(number), overrides, [CORPUS] if number == 3 else [CORPUS, *many])
    table, facts = plan.sweep_parts(tmp_path)
    assert isinstance(table, Table)
    assert len(table.split_to_width(80)) == 1
    assert isinstance(facts, LabelledTexts)
    assert [pair for pair in facts.pairs if pair[0] in ("to build", "")] == [
        ("to build", "0 to 2, 4: " + ", ".join(stage.name for stage in many))
    ]


@pytest.mark.parametrize("other", [None, "job.json", "0/figures/a.png"])
def test_what_was_only_planned_leaves_no_folder(tmp_path: Path, other: str | None):
    folder = tmp_path / "sweeps" / "2026-11-22" / "10-00-00"
    for name in ("multirun.yaml", "0/plan.json", "0/.hydra/config.yaml", *filter(None, [other])):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    plan.remove_planned(folder)
    assert (tmp_path / "sweeps").exists() is (other is not None)
