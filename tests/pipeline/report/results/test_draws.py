"""How often claims hold when the clock is drawn."""

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.artifacts.manifest import write_manifest
from pipeline.artifacts.stage import Stage
from pipeline.config import sources
from pipeline.config.arguments import conf_dir
from pipeline.report.exhibit.schema import Claim, Exhibit, ExhibitColumn, RelativeTo, RowTemplate
from pipeline.report.exhibit.sweep import SweepExhibit
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import Tracking
from pipeline.report.results.draws import DRAWS_FILE, summarise_tables, write_shares
from pipeline.report.results.kept import KeptResultError, drawn_exhibit, finished_jobs
from pipeline.report.results.kept_draws import current_draws, keep_draws, read_draws
from pipeline.report.results.verdicts import claim_key
from pipeline.report.sweep import finish_sweep
from pipeline.report.sweep_note import SweepNote
from pipeline.report.table import plain_lines
from serving.hardware.clock_draw import pool_identities
from serving.hardware.error_pools import DRAWN_FILE, ClockErrors
from serving.hardware.fleet import Fleet
from tests.support.conf_files import chip

EXHIBIT = Exhibit(
    "t",
    (
        ExhibitColumn("TBT, ms", "latency/tbt_s/mean", 1000),
        ExhibitColumn("of b", "latency/tbt_s/mean", relative=RelativeTo("b")),
    ),
    rows=RowTemplate("{policy}", pool_over="seed"),
    claims=(
        Claim("a is faster", "a", "TBT, ms", "below", baseline="b"),
        Claim("a takes half", "a", "of b", "equal", value=0.5, margin=0.1),
        Claim("a writes well", "a", "quality", "above", baseline="b"),
        Claim("c is faster", "c", "TBT, ms", "below", baseline="b"),
    ),
)


FILES = {"config": sources.file_digest("config")}


def sweep(folder, series):
    """A finished sweep, each of its jobs with these draws."""
    for number, ((policy, seed), values) in enumerate(series.items()):
        artifact = folder / "artifacts" / str(number)
        artifact.mkdir(parents=True)
        (artifact / DRAWS_FILE).write_text(json.dumps({"latency/tbt_s/mean": values}))
        words = (f"policy={policy}", f"seed={seed}")
        job = JobResult("complete", number, policy, words, artifact=str(artifact), files=FILES)
        job.write(folder / "sweep" / str(number))
    return folder / "sweep"


def shares_of(folder):
    """The current shares in a folder of results, by statement."""
    return {key.split(" / ")[1]: share for key, share in current_draws(folder)["synera/x"].claims.items()}


def test_a_claim_s_share_is_of_draws_over_the_mean_of_its_seeds(tmp_path):
    """Seed means of a: 1.5, 1, 3, 2; of b: 2, 2, 2, 4. a is below b in three of four, and near half of it in two."""
    series = {("a", 0): [1, 1, 2, 2], ("a", 1): [2, 1, 4, 2], ("b", 0): [2, 2, 2, 4], ("b", 1): [2, 2, 2, 4]}
    path = keep_draws(SweepExhibit(EXHIBIT), "synera/x", sweep(tmp_path, series), tmp_path / "results")
    assert path == tmp_path / "results" / "synera" / "x.draws"
    assert shares_of(tmp_path / "results") == {"a is faster": 0.75, "a takes half": 0.5}
    assert json.loads(path.read_text())["draws"] == 4


def test_another_margin_is_another_claim_which_was_not_drawn(tmp_path):
    keep_draws(SweepExhibit(EXHIBIT), "synera/x", sweep(tmp_path, {("a", 0): [1.0], ("b", 0): [2.0]}), tmp_path)
    known = current_draws(tmp_path)["synera/x"].claims
    asked = {"statement": "a takes half", "row": "a", "metric": "of b", "relation": "equal", "value": 0.5}
    assert claim_key({**asked, "margin": 0.1}) in known
    assert claim_key({**asked, "margin": 0.2}) not in known
    assert claim_key({**asked, "margin": 0.1, "relation": "above"}) not in known


def test_a_ratio_to_nothing_is_not_drawn(tmp_path):
    folder = sweep(tmp_path, {("a", 0): [1.0, 1.0], ("b", 0): [2.0, 0.0]})
    keep_draws(SweepExhibit(EXHIBIT), "synera/x", folder, tmp_path)
    assert list(shares_of(tmp_path)) == ["a is faster"]


def test_columns_relative_to_a_row_are_in_their_unit(tmp_path):
    """1 s minus 3 s are -2000 ms; 1 s of 4 s is 25 %."""
    columns = (
        ExhibitColumn("beyond b, ms", "latency/tbt_s/mean", 1000, relative=RelativeTo("b", "difference")),
        ExhibitColumn("of b, %", "latency/tbt_s/mean", 100, relative=RelativeTo("b")),
    )
    claims = (
        Claim("two seconds less", "a", "beyond b, ms", "equal", value=-2000.0, margin=1.0),
        Claim("a quarter", "a", "of b, %", "equal", value=25.0, margin=1.0),
    )
    folder = sweep(tmp_path, {("a", 0): [1.0, 1.0], ("b", 0): [3.0, 4.0]})
    exhibit = replace(EXHIBIT, columns=columns, claims=claims)
    keep_draws(SweepExhibit(exhibit), "synera/x", folder, tmp_path / "results")
    assert shares_of(tmp_path / "results") == {"two seconds less": 0.5, "a quarter": 0.5}


def test_columns_relative_to_columns_and_groups_are_drawn(tmp_path):
    """a's growth from seed 0 to 1 is 2 and 1 s, b's 1 and 2 s; a's time is twice b's in one draw and as long in one."""
    growth = RelativeTo(comparison="difference", groups={"1": "0"}, then=RelativeTo("b"))
    columns = (
        ExhibitColumn("TBT, ms", "latency/tbt_s/mean", 1000),
        ExhibitColumn("growth of b's", "latency/tbt_s/mean", relative=growth),
        ExhibitColumn("of b's in ms", "latency/tbt_s/mean", relative=RelativeTo("b", column="TBT, ms")),
    )
    claims = (
        Claim("a grows faster", "a", "growth of b's", "above", value=1.0, group="1"),
        Claim("a does not grow at first", "a", "growth of b's", "above", value=1.0, group="0"),
        Claim("a takes longer", "a", "of b's in ms", "above", value=1.0, group="0"),
    )
    exhibit = replace(EXHIBIT, columns=columns, claims=claims, rows=RowTemplate("{policy}", group="{seed}"))
    series = {("a", 0): [2.0, 2.0], ("a", 1): [4.0, 3.0], ("b", 0): [1.0, 2.0], ("b", 1): [2.0, 4.0]}
    keep_draws(SweepExhibit(exhibit), "synera/x", sweep(tmp_path, series), tmp_path / "results")
    assert shares_of(tmp_path / "results") == {"a grows faster": 0.5, "a takes longer": 0.5}


def test_a_metric_that_a_seed_lacks_decides_no_claim(tmp_path):
    folder = sweep(tmp_path, {("a", 0): [1.0], ("a", 1): [1.0], ("b", 0): [2.0]})
    (tmp_path / "artifacts" / "1" / DRAWS_FILE).write_text(json.dumps({"another metric": [1.0]}))
    with pytest.raises(KeptResultError, match="no claim of synera/x is decided"):
        keep_draws(SweepExhibit(EXHIBIT), "synera/x", folder, tmp_path / "results")


def test_draws_of_a_configuration_that_changed_decide_nothing_and_are_named(tmp_path):
    folder = sweep(tmp_path, {("a", 0): [1.0], ("b", 0): [2.0]})
    path = keep_draws(SweepExhibit(EXHIBIT), "synera/x", folder, tmp_path / "results")
    path.write_text(path.read_text().replace(FILES["config"], "0" * 12))
    (found,) = read_draws(tmp_path / "results")
    assert found.changes() == ["conf/config.yaml has changed"]
    assert current_draws(tmp_path / "results") == {}


def test_a_second_sweep_adds_the_claims_of_its_rows(tmp_path):
    first = sweep(tmp_path / "first", {("a", 0): [1.0, 3.0], ("b", 0): [2.0, 2.0]})
    second = sweep(tmp_path / "second", {("c", 0): [1.0, 1.0], ("b", 0): [2.0, 2.0]})
    for folder in (first, second):
        keep_draws(SweepExhibit(EXHIBIT), "synera/x", folder, tmp_path / "results")
    assert shares_of(tmp_path / "results") == {"a is faster": 0.5, "a takes half": 0.5, "c is faster": 1.0}


def test_a_claim_that_is_drawn_again_has_its_new_share_and_the_files_of_both(tmp_path):
    more = {"policy/synera": sources.file_digest("policy/synera")}
    for name, own, files in (("first", 3.0, FILES), ("second", 1.0, more)):
        folder = sweep(tmp_path / name, {("a", 0): [own], ("b", 0): [2.0]})
        for one in finished_jobs(folder):
            replace(one, files=files).write(folder / str(one.number))
        path = keep_draws(SweepExhibit(EXHIBIT), "synera/x", folder, tmp_path / "results")
    assert shares_of(tmp_path / "results")["a is faster"] == 1.0
    assert json.loads(path.read_text())["files"] == {**FILES, **more}


SARATHI = {"policy/u_sarathi": sources.file_digest("policy/u_sarathi")}


def with_sarathi(folder, policy):
    """The sweep, with policy/u_sarathi among the files of one row's jobs."""
    for one in finished_jobs(folder):
        if f"policy={policy}" in one.overrides:
            replace(one, files={**FILES, **SARATHI}).write(folder / str(one.number))
    return folder


def kept_of_three_rows(tmp_path):
    """The kept draws of a sweep whose row c alone has policy/u_sarathi."""
    folder = sweep(tmp_path / "three", {(row, 0): [own] for row, own in (("a", 1.0), ("b", 2.0), ("c", 1.0))})
    return keep_draws(SweepExhibit(EXHIBIT), "synera/x", with_sarathi(folder, "c"), tmp_path / "results")


@pytest.fixture
def exhibit_of_conf(monkeypatch):
    monkeypatch.setattr("pipeline.report.results.kept_draws.prepared_exhibit", lambda _: SweepExhibit(EXHIBIT))


def test_draws_of_a_row_that_changed_decide_nothing_and_those_of_others_stand(tmp_path, exhibit_of_conf):
    path = kept_of_three_rows(tmp_path)
    assert json.loads(path.read_text())["rows_of"] == {"policy/u_sarathi": ["c"]}
    assert set(shares_of(tmp_path / "results")) == {"a is faster", "a takes half", "c is faster"}
    path.write_text(path.read_text().replace(SARATHI["policy/u_sarathi"], "0" * 12))
    assert set(shares_of(tmp_path / "results")) == {"a is faster", "a takes half"}
    second = sweep(tmp_path / "second", {("c", 0): [3.0], ("b", 0): [2.0]})
    keep_draws(SweepExhibit(EXHIBIT), "synera/x", with_sarathi(second, "c"), tmp_path / "results")
    assert shares_of(tmp_path / "results") == {"a is faster": 1.0, "a takes half": 1.0, "c is faster": 0.0}


def test_a_column_relative_to_a_row_that_changed_decides_nothing(tmp_path, exhibit_of_conf):
    path = kept_of_three_rows(tmp_path)
    text = path.read_text().replace(SARATHI["policy/u_sarathi"], "0" * 12)
    path.write_text(text.replace('"policy/u_sarathi": ["c"]', '"policy/u_sarathi": ["b"]'))
    assert current_draws(tmp_path / "results") == {}  # all three claims read b, one by its column alone


def test_a_file_that_rows_of_both_sweeps_have_is_of_both(tmp_path, exhibit_of_conf):
    kept_of_three_rows(tmp_path)
    second = with_sarathi(sweep(tmp_path / "second", {("a", 0): [1.0], ("b", 0): [2.0]}), "a")
    path = keep_draws(SweepExhibit(EXHIBIT), "synera/x", second, tmp_path / "results")
    assert json.loads(path.read_text())["rows_of"] == {"policy/u_sarathi": ["a", "c"]}


def test_draws_of_another_number_are_replaced(tmp_path):
    first = sweep(tmp_path / "first", {("a", 0): [1.0, 3.0], ("b", 0): [2.0, 2.0]})
    second = sweep(tmp_path / "second", {("c", 0): [1.0], ("b", 0): [2.0]})
    for folder in (first, second):
        keep_draws(SweepExhibit(EXHIBIT), "synera/x", folder, tmp_path / "results")
    assert list(shares_of(tmp_path / "results")) == ["c is faster"]


def test_draws_of_a_configuration_that_changed_are_replaced(tmp_path):
    first = sweep(tmp_path / "first", {("a", 0): [1.0], ("b", 0): [2.0]})
    second = sweep(tmp_path / "second", {("c", 0): [1.0], ("b", 0): [2.0]})
    path = keep_draws(SweepExhibit(EXHIBIT), "synera/x", first, tmp_path / "results")
    path.write_text(path.read_text().replace(FILES["config"], "0" * 12))
    keep_draws(SweepExhibit(EXHIBIT), "synera/x", second, tmp_path / "results")
    assert shares_of(tmp_path / "results") == {"c is faster": 1.0}


def test_jobs_without_draws_say_how_to_get_them(tmp_path):
    JobResult("complete", 0, "a", ("policy=a", "seed=0"), artifact=str(tmp_path)).write(tmp_path / "sweep" / "0")
    with pytest.raises(KeptResultError, match=r"job 0 has no draws of the clock .*\+draws=clock"):
        keep_draws(SweepExhibit(EXHIBIT), "synera/x", tmp_path / "sweep", tmp_path)


def test_rows_that_decide_no_claim_are_refused(tmp_path):
    with pytest.raises(KeptResultError, match="no claim of synera/x is decided"):
        keep_draws(SweepExhibit(EXHIBIT), "synera/x", sweep(tmp_path, {("a", 0): [1.0, 2.0]}), tmp_path)


def test_a_sweep_of_draws_shows_the_shares_in_place_of_an_exhibit_without_values(tmp_path):
    folder, printed = sweep(tmp_path, {("a", 0): [1.0, 3.0], ("b", 0): [2.0, 2.0]}), io.StringIO()
    finish_sweep(folder, Tracking(uri="none"), printed, SweepExhibit(EXHIBIT))
    lines = printed.getvalue().splitlines()
    assert "t: 2 draws of the clock" in lines
    assert "50.0 %  a is faster" in lines
    assert "50.0 %  a takes half" in lines
    assert not any(" | " in line or "not evaluated" in line for line in lines)
    assert not (folder / "exhibit.json").exists()
    with (folder / "draws.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [(one["statement"], one["share of draws"]) for one in found] == [
        ("a is faster", "0.5"),
        ("a takes half", "0.5"),
    ]


def test_shares_are_told_by_group_where_groups_differ(tmp_path):
    asked = (
        Claim("faster", "a", "TBT, ms", "below", baseline="b"),
        Claim("positive", "a", "TBT, ms", "above", value=0.0),
        Claim("twice", "a", "TBT, ms", "above", value=1500.0, group="1"),
        Claim("twice", "b", "TBT, ms", "above", value=1500.0, group="1"),
    )
    exhibit = replace(EXHIBIT, rows=RowTemplate("{policy}", group="{seed}"), claims=asked)
    values = {("a", 1): [1.0, 3.0], ("b", 1): [2.0, 2.0], ("a", 2): [1.0, 1.0], ("b", 2): [2.0, 2.0]}
    jobs = finished_jobs(sweep(tmp_path, values))
    shown = write_shares(SweepExhibit(exhibit), jobs, tmp_path)
    assert plain_lines(shown.parts)[4:8] == [
        "50.0 to 100.0 %  faster: 1 50.0, 2 100.0",
        "100.0 %          positive, in 2 groups",
        "50.0 %           twice (a, TBT, ms) (1)",
        "100.0 %          twice (b, TBT, ms) (1)",
    ]
    assert shown.metrics["draws/1/faster"] == 0.5


def test_a_sweep_of_draws_whose_rows_decide_no_claim_says_so(tmp_path):
    folder = sweep(tmp_path, {("a", 0): [1.0, 2.0]})
    shown = write_shares(SweepExhibit(EXHIBIT), finished_jobs(folder), folder)
    assert any(line.startswith("claims") and "none is about rows" in line for line in plain_lines(shown.parts))


def run(folder, tables):
    """A finished run that drew a table, one of these in each draw."""
    for draw, table in enumerate(tables):
        (folder / "drawn" / str(draw)).mkdir(parents=True)
        (folder / "drawn" / str(draw) / "rows.json").write_text(json.dumps(table))
    (folder / "draws").mkdir()
    summarise_tables(folder / "draws", drawn=folder / "drawn")
    words = ("experiment=synera/x", "draws=packing")
    JobResult("complete", None, "", words, artifact=str(folder / "draws"), files=FILES).write(folder / "run")
    return folder / "run"


def test_a_table_of_one_run_decides_its_claims_draw_by_draw(tmp_path):
    """a is below b in the last of four alone; a text is no series."""
    b = {"latency/tbt_s/mean": 2.0, "bound": "memory"}
    tables = [{"a": {"latency/tbt_s/mean": own}, "b": b} for own in (4, 3, 2, 1)]
    path = keep_draws(SweepExhibit(EXHIBIT), "synera/x", run(tmp_path, tables), tmp_path / "results")
    kept = json.loads(path.read_text())
    assert (kept["draws"], kept["sweeps"][0]["jobs"]) == (4, 1)
    assert shares_of(tmp_path / "results") == {"a is faster": 0.25, "a takes half": 0.25}


def rows_of(a, b, c):
    return {row: {"latency/tbt_s/mean": cell} for row, cell in (("a", a), ("b", b), ("c", c))}


def test_a_cell_that_is_a_number_in_some_draws_alone_decides_no_claim(tmp_path):
    tables = [rows_of(None, 2, 1), rows_of(1, 2, 1), rows_of(3, 2, 3)]
    keep_draws(SweepExhibit(EXHIBIT), "synera/x", run(tmp_path, tables), tmp_path / "results")
    assert shares_of(tmp_path / "results") == {"c is faster": 0.6667}


def test_values_of_unlike_draws_are_not_compared(tmp_path):
    folder = run(tmp_path, [rows_of(None, 2, 1), rows_of(3, "any number", 1), rows_of(1, 2, 1)])
    with pytest.raises(KeptResultError, match="no claim of synera/x is decided"):
        keep_draws(SweepExhibit(EXHIBIT), "synera/x", folder, tmp_path / "results")


def test_a_run_without_draws_says_how_to_get_them(tmp_path):
    JobResult("complete", None, "a", ("draws=packing",), artifact=str(tmp_path)).write(tmp_path / "run")
    with pytest.raises(KeptResultError, match=r"the run has no draws of the clock .*\+draws=packing"):
        keep_draws(SweepExhibit(EXHIBIT), "synera/x", tmp_path / "run", tmp_path)


def test_other_draws_are_asked_for_again_by_their_name(tmp_path):
    folder = run(tmp_path, [rows_of(1, 2, 1)])
    (job,) = finished_jobs(folder)
    replace(job, files={"config": "0" * 12}).write(folder)
    with pytest.raises(KeptResultError, match=r"python -m pipeline \+experiment=synera/x \+draws=packing`"):
        keep_draws(SweepExhibit(EXHIBIT), "synera/x", folder, tmp_path / "results")


def test_the_exhibit_of_one_run_is_known_to_its_draws():
    assert {claim.row for claim in drawn_exhibit("synera/table3").exhibit.claims} >= {"llama2_13b", "yi_34b"}
    assert drawn_exhibit("synera/fig15").num_jobs > 1
    with pytest.raises(KeptResultError, match=r"\+experiment=compare has no exhibit"):
        drawn_exhibit("compare")


def test_draws_that_cannot_be_read_are_replaced(tmp_path):
    folder = sweep(tmp_path, {("a", 0): [1.0], ("b", 0): [2.0]})
    path = keep_draws(SweepExhibit(EXHIBIT), "synera/x", folder, tmp_path / "results")
    path.write_text("half a fi")
    keep_draws(SweepExhibit(EXHIBIT), "synera/x", folder, tmp_path / "results")
    assert shares_of(tmp_path / "results")["a is faster"] == 1.0


def noted(folder, pools, requests=60):
    """The jobs of the sweep, each with a note of these pools."""
    for one in finished_jobs(folder):
        note = {"pools": pools, "prompts": 60, "requests": requests + one.number}
        (Path(one.artifact) / DRAWN_FILE).write_text(json.dumps(note))
    return folder


def pools_of_today(mode="gpu"):
    errors = ClockErrors.read(conf_dir() / "hardware" / "measured" / "errors.json")
    return pool_identities([Fleet(chip("macbook_m1"), mode=mode), Fleet(chip("a100_80gb"), software="vllm")], errors)


def kept_draws(folder):
    (found,) = read_draws(folder)
    return found


PAIR = {("a", 0): [1.0, 3.0], ("b", 3): [2.0, 2.0]}


def test_kept_draws_say_how_they_were_drawn(tmp_path):
    folder = noted(sweep(tmp_path, PAIR), pools_of_today())
    for one in finished_jobs(folder):
        replace(one, revision="abc").write(folder / str(one.number))
    words = ["+experiment=synera/x", "+draws=clock", "seed=0,3", "tracking.uri=none", "data_root=/mine", "-m"]
    SweepNote(command=words).write(folder)
    path = keep_draws(SweepExhibit(EXHIBIT), "synera/x", folder, tmp_path / "results")
    (drawn,) = kept_draws(tmp_path / "results").sweeps
    assert drawn.command == "python -m pipeline +experiment=synera/x +draws=clock seed=0,3 -m"
    assert (drawn.revisions, drawn.seeds, drawn.jobs) == (["abc"], {"seed": ["0", "3"]}, 2)
    assert (drawn.prompts, drawn.requests) == ([60], [60, 61])
    assert drawn.pools == pools_of_today()
    assert '"requests": [60, 61]' in path.read_text()


def test_the_date_and_command_of_a_run_are_those_of_its_record(tmp_path):
    folder = run(tmp_path, [rows_of(1, 2, 1)])
    write_manifest(Stage("draws", "some.function", {}), tmp_path / "draws", 1.0)
    keep_draws(SweepExhibit(EXHIBIT), "synera/x", folder, tmp_path / "results")
    (drawn,) = kept_draws(tmp_path / "results").sweeps
    assert drawn.date == f"{datetime.now(UTC):%Y-%m-%d}"
    assert drawn.command == "python -m pipeline experiment=synera/x draws=packing"


def test_draws_from_pools_of_today_are_of_no_former_rule(tmp_path):
    keep_draws(SweepExhibit(EXHIBIT), "synera/x", noted(sweep(tmp_path, PAIR), pools_of_today("cpu")), tmp_path)
    kept = kept_draws(tmp_path)
    assert (kept.rule_text(), kept.former_claims) == ("", frozenset())


def test_draws_of_a_chip_from_another_pool_are_of_a_former_rule(tmp_path):
    """As the M1's CPU before 2026-11-28, which was drawn from the pool of its GPU modes."""
    pools = pools_of_today() | {"macbook_m1 cpu llama_cpp": pools_of_today()["macbook_m1 gpu llama_cpp"]}
    keep_draws(SweepExhibit(EXHIBIT), "synera/x", noted(sweep(tmp_path, PAIR), pools), tmp_path)
    kept = kept_draws(tmp_path)
    assert kept.rule_text() == "of a former rule for macbook_m1 cpu llama_cpp"
    assert kept.former_claims == set(kept.claims)


def test_a_chip_that_conf_lacks_is_of_no_former_rule(tmp_path):
    pools = {"my_chip default vllm": "another source 0", "a100_80gb default my_engine": "another source 0"}
    keep_draws(SweepExhibit(EXHIBIT), "synera/x", noted(sweep(tmp_path, PAIR), pools), tmp_path)
    assert kept_draws(tmp_path).rule_text() == ""


def test_claims_that_are_drawn_again_by_today_s_rule_leave_the_others_of_a_former_one(tmp_path):
    first = sweep(tmp_path / "first", {("a", 0): [1.0], ("b", 0): [2.0], ("c", 0): [1.0]})
    keep_draws(SweepExhibit(EXHIBIT), "synera/x", first, tmp_path / "results")
    assert kept_draws(tmp_path / "results").rule_text() == "of an unknown rule"
    second = noted(sweep(tmp_path / "second", {("c", 0): [3.0], ("b", 0): [2.0]}), pools_of_today())
    keep_draws(SweepExhibit(EXHIBIT), "synera/x", second, tmp_path / "results")
    kept = kept_draws(tmp_path / "results")
    assert {key.split(" / ")[1] for key in kept.former_claims} == {"a is faster", "a takes half"}
    assert shares_of(tmp_path / "results") == {"a is faster": 1.0, "a takes half": 1.0, "c is faster": 0.0}
    assert [len(one.claims) for one in kept.sweeps] == [2, 1]


def test_a_file_that_says_nothing_of_its_drawing_is_read_and_of_an_unknown_rule(tmp_path):
    former = {"experiment": "synera/x", "draws": 200, "jobs": 7, "files": FILES, "claims": {"a claim": 0.25}}
    (tmp_path / "x.draws").write_text(json.dumps(former))
    kept = kept_draws(tmp_path)
    assert (kept.claims, kept.sweeps[0].jobs) == ({"a claim": 0.25}, 7)
    assert (kept.rule_text(), kept.former_claims) == ("of an unknown rule", {"a claim"})
