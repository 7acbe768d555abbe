"""A search over policies on cells whose metrics are a formula of their words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import optuna
import pytest

from pipeline.answers.candidates import Candidate, CandidateSpace
from pipeline.answers.cell import CellResult
from pipeline.answers.choose import Answer, Effort, NoAnswerError, Question, Search
from pipeline.answers.evaluation import LOSSY, Evaluator
from pipeline.answers.front import pareto_front
from pipeline.answers.ranking import broken, excess, promoted, ranked
from pipeline.answers.requirements import Requirements
from pipeline.answers.rows import Row
from pipeline.errors import ConfigError

COST, SERVICE, TTFT = "cost/usd_per_million_tokens", "latency/service_s_per_token/mean", "latency/ttft_s/p90"
EFFORT = Effort(24, (4, 8, 16), (6, 3), (0, 1), batch=4)
POLICIES: dict[str, dict[str, Any]] = {
    "cloud": {},
    "drafts": {"policy.draft.k": "range(1,9)"},
    "routes": {"policy.offload.budget": "interval(0.0,1.0)"},
}


def options(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def formula(words: tuple[str, ...]) -> CellResult:
    """Drafts are cheapest with k = 5, and cost more on held-out requests; their first token takes k tenths."""
    given = options(words)
    policy, k = given["policy"], int(given.get("policy.draft.k", 2))
    if policy == "broken" or (policy == "drafts" and k == 8):
        return CellResult(words, problem="no such chip")
    held = 1.5 if given["workload.seed"] == "1000" else 1.0
    devices = int(given.get("workload.devices", 4))
    cost = {"cloud": 10.0, "drafts": (4.0 + (k - 5) ** 2) * held, "routes": 1.0}[policy]
    metrics = {
        COST: cost * (1 + 0.1 * devices * (policy == "drafts")),
        SERVICE: {"cloud": 0.03, "drafts": 0.02 + 0.01 * k, "routes": 0.01}[policy],
        TTFT: {"cloud": 0.2, "drafts": 0.1 * k, "routes": 0.1}[policy],
    }
    quality = {"quality/mean": 0.6 if policy == "routes" else 0.9} if given.get("runtime") == "emulated" else {}
    return CellResult(words, metrics | quality, "folder", policy, policy != "routes")


@dataclass
class FormulaEvaluator(Evaluator):
    """Serves cells by a formula, and notes what was asked."""

    formula: Callable[[tuple[str, ...]], CellResult] = formula
    asked: list[tuple[str, list[tuple[str, ...]]]] = field(default_factory=list)

    def evaluate(self, name: str, cells: Sequence[Sequence[str]]) -> list[CellResult]:
        self.asked.append((name, [tuple(words) for words in cells]))
        return [self.formula(tuple(words)) for words in cells]

    def build_inputs(self, cells: Sequence[Sequence[str]], only_lossless: bool = False) -> dict[tuple[str, ...], str]:
        lossy = {tuple(words): LOSSY for words in cells if only_lossless and "policy=routes" in words}
        return lossy | {tuple(words): "needs a package" for words in cells if "policy=absent" in words}


def question(**require: Any) -> Question:
    return Question(
        Requirements(**require), POLICIES, (COST, SERVICE),
        base=("runtime=simulated",), search=("workload.seed=0",), held_out=("workload.seed=1000",),
        text=("runtime=emulated",),
        sensitivity={"devices": {"1": ("workload.devices=1",), "64": ("workload.devices=64",)}},
    )  # fmt: skip


def evaluator() -> FormulaEvaluator:
    return FormulaEvaluator(workers=None)  # type: ignore[arg-type]


def search(asked: Question, served: FormulaEvaluator | None = None) -> Answer:
    return Search(asked, EFFORT, served or evaluator()).run()


def test_it_finds_the_cheapest_options_and_leaves_lossy_policies_out() -> None:
    found = search(question())
    assert found.claimed.candidate == Candidate("drafts", (("policy.draft.k", "5"),))
    assert found.left_out == {"routes": LOSSY}
    assert found.failed["no such chip"] == 1


def test_a_requirement_keeps_faster_candidates_though_they_cost_more() -> None:
    found = search(question(ttft_p90_s=0.45))
    assert found.claimed.candidate == Candidate("drafts", (("policy.draft.k", "4"),))
    assert broken(found.claimed, found.question.require) == []


def test_where_nothing_keeps_the_requirements_the_nearest_candidate_is_named() -> None:
    found = search(question(ttft_p90_s=0.01))
    assert found.claimed.candidate.values == (("policy.draft.k", "1"),)
    assert excess(found.claimed, found.question.require) > 0


def test_the_answer_is_checked_on_requests_and_seeds_that_the_search_did_not_see() -> None:
    served = evaluator()
    found = search(question(), served)
    names = [name for name, _ in served.asked]
    last = next(cells for name, cells in served.asked if name == "held-out requests")
    assert {(options(words)["workload.seed"], options(words)["seed"]) for words in last} == {
        ("1000", "1000"), ("1000", "1001"),
    }  # fmt: skip
    assert not [words for name, cells in served.asked if name in names[: names.index("held-out requests")]
                for words in cells if "workload.seed=1000" in words]  # fmt: skip
    assert found.chosen_held_out is not None
    assert found.chosen_held_out.metrics[COST] == pytest.approx(1.5 * found.claimed.metrics[COST])
    assert found.held_out[0].candidate == found.claimed.candidate
    assert {row.candidate for row in found.held_out} >= {Candidate("cloud"), Candidate("drafts")}


def test_regret_names_the_row_that_is_best_afterwards() -> None:
    def dearer_later(words: tuple[str, ...]) -> CellResult:
        found = formula(words)
        worse = "policy.draft.k=5" in words and "workload.seed=1000" in words
        return replace(found, metrics={**found.metrics, COST: 50.0}) if worse else found

    served = FormulaEvaluator(workers=None, formula=dearer_later)  # type: ignore[arg-type]
    found = search(question(), served)
    assert found.claimed.candidate.values == (("policy.draft.k", "5"),)
    assert found.held_out[0].candidate != found.claimed.candidate


def test_a_higher_rung_has_more_requests_and_the_last_one_all_seeds() -> None:
    served = evaluator()
    search(question(), served)
    by_name = dict(served.asked)
    assert {options(words)["workload.num_prompts"] for words in by_name["defaults"]} == {"4"}
    assert {options(words)["workload.num_prompts"] for words in by_name["second rung"]} == {"8"}
    assert {(options(words)["workload.num_prompts"], options(words)["seed"]) for words in by_name["last rung"]} == {
        ("16", "0"), ("16", "1"),
    }  # fmt: skip
    assert len(by_name["second rung"]) == 6
    assert len(by_name["last rung"]) == 6


def test_the_same_question_draws_the_same_candidates() -> None:
    first, second = evaluator(), evaluator()
    search(question(), first)
    search(question(), second)
    assert first.asked == second.asked
    other = evaluator()
    search(replace(question(), seed=1), other)
    assert other.asked != first.asked


def test_the_best_policy_at_each_value_of_what_is_varied() -> None:
    found = search(question())
    best = {value: rows[0].candidate.policy for value, rows in found.takeovers["devices"]}
    assert best == {"1": "drafts", "64": "cloud"}


def test_quality_of_a_lossy_policy_is_measured_on_text() -> None:
    served = evaluator()
    poor = search(question(lossless=False, quality_min=0.8), served)
    assert poor.claimed.candidate.policy == "drafts"
    assert next(cells for name, cells in served.asked if name == "on text")
    good = search(question(lossless=False, quality_min=0.5))
    assert good.claimed.candidate.policy == "routes"
    assert good.claimed.metrics["quality/mean"] == 0.6


def test_a_quality_that_could_not_be_measured_breaks_the_limit() -> None:
    def without_text(words: tuple[str, ...]) -> CellResult:
        return CellResult(words, problem="no text") if "runtime=emulated" in words else formula(words)

    served = FormulaEvaluator(workers=None, formula=without_text)  # type: ignore[arg-type]
    found = search(question(lossless=False, quality_min=0.5), served)
    assert ("quality: not known", 1.0) in broken(found.claimed, found.question.require)
    assert broken(row("routes", 1, 1), found.question.require) == []  # no text was asked for


def test_a_seed_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^effort\.seeds has 1 twice"):
        replace(EFFORT, seeds=(0, 1, 1))


def test_an_objective_that_is_better_when_higher_is_refused() -> None:
    with pytest.raises(ValueError, match="better when lower"):
        replace(question(), objective=("quality/mean",))


def test_policies_that_cannot_be_served_are_named_and_the_others_go_on() -> None:
    asked = replace(question(), policies={**POLICIES, "absent": {}, "broken": {}})
    found = search(asked)
    assert found.left_out["absent"] == "needs a package"
    assert found.left_out["broken"] == "no such chip"
    with pytest.raises(NoAnswerError, match="broken: no such chip"):
        search(replace(asked, policies={"broken": {}}))


def row(policy: str, cost: float, service: float, ttft: float = 0.1, lossless: bool = True) -> Row:
    metrics = {COST: cost, SERVICE: service, TTFT: ttft}
    return Row(Candidate(policy), (CellResult((), metrics, "", policy, lossless),))


def test_rows_within_a_hundredth_of_the_first_objective_are_ordered_by_the_second() -> None:
    rows = [row("a", 1.0, 0.3), row("b", 1.005, 0.1), row("c", 2.0, 0.01)]
    order = [one.candidate.policy for one in ranked(rows, Requirements(), (COST, SERVICE))]
    assert order == ["b", "a", "c"]


def test_a_row_that_breaks_more_comes_later() -> None:
    rows = [row("late", 0.1, 0.1, ttft=0.9), row("later", 0.01, 0.1, ttft=2.0), row("kept", 9.0, 0.1, ttft=0.4)]
    order = [one.candidate.policy for one in ranked(rows, Requirements(ttft_p90_s=0.5), (COST,))]
    assert order == ["kept", "late", "later"]
    assert excess(rows[1], Requirements(ttft_p90_s=0.5)) == pytest.approx(3.0)
    assert excess(row("a", 1, 1, lossless=False), Requirements()) == 1.0
    assert excess(row("a", 1, 1), Requirements(energy_max_j=1.0)) == 1.0  # not known


def test_the_front_has_what_no_other_is_better_than() -> None:
    assert pareto_front([(1, 9), (2, 2), (9, 1), (3, 3), (2, 2)]) == [True, True, True, False, True]


def test_half_of_the_promoted_rows_at_most_come_from_the_front() -> None:
    rows = [row("cheap", 1, 9), row("middle", 2, 5), row("fast", 9, 1), row("near", 1.1, 9.5), row("next", 1.2, 9.6)]
    kept = promoted(rows, Requirements(), (COST, SERVICE), 4)
    assert [one.candidate.policy for one in kept] == ["cheap", "middle", "near", "next"]


def test_slots_come_before_the_options_of_what_they_chose() -> None:
    one = Candidate("wisp", (("policy.draft.k", "4"), ("policy/draft", "path")))
    assert one.words == ("policy=wisp", "policy/draft=path", "policy.draft.k=4")
    assert one.described == "wisp, draft.k=4, draft=path"


def drawn_values(sweep: str) -> list[float]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    space = CandidateSpace.parse({"sled": {"policy.x": sweep}})
    return [float(value) for _ in range(12) for _, value in space.draw(study.ask()).values]


def test_a_range_of_numbers_keeps_its_steps() -> None:
    assert set(drawn_values("range(0.0,1.0,0.25)")) <= {0.0, 0.25, 0.5, 0.75}
    assert set(drawn_values("range(0.1,0.5,0.1)")) <= {0.1, 0.2, 0.3, 0.4}


@pytest.mark.parametrize(
    ("sweep", "low", "high"),
    [
        ("tag(log,interval(1e-6,1e-4))", 1e-6, 1e-4),
        ("tag(log,interval(0.5,0.50001))", 0.5, 0.50001),
        ("interval(0.0,1e-5)", 0.0, 1e-5),
        ("interval(0.00001,0.00001)", 1e-5, 1e-5),
    ],
)
def test_numbers_of_a_narrow_interval_are_in_it_and_apart(sweep: str, low: float, high: float) -> None:
    values = drawn_values(sweep)
    assert low <= min(values) <= max(values) <= high
    assert len(set(values)) == (12 if low < high else 1)


def test_numbers_of_a_wide_interval_have_four_decimals() -> None:
    assert all(value == round(value, 4) for value in drawn_values("interval(0.02,0.6)"))


def test_a_space_keeps_fixed_options_and_knows_policies_that_it_does_not_list() -> None:
    space = CandidateSpace.parse({"sled": {"policy.draft.score": "confidence", "policy.draft.k": "range(2,3)"}})
    import optuna

    drawn = space.draw(optuna.create_study().ask())
    assert dict(drawn.values) == {"policy.draft.score": "confidence", "policy.draft.k": "2"}
    assert space.only(["mine"]).defaults == [Candidate("mine")]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"ttft_p90_s": 0}, "above 0"), ({"quality_min": 2}, "between 0 and 1"), ({"devices_min": 0}, "1 device or more")],
)
def test_requirements_that_nothing_can_keep_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Requirements(**options)


@pytest.mark.parametrize("word", ["workload.devices=8", "workload.devices=null"])
def test_fewer_devices_than_are_required_are_refused(word: str) -> None:
    """A cell would be served with the devices of the command, and the answer would promise the others."""
    asked = question(devices_min=16)
    asked.check_devices(("workload.devices=16", "seed=0"))
    asked.check_devices(("+workload.devices=64",))
    question().check_devices((word,))
    with pytest.raises(ConfigError, match=rf"{word} contradicts require\.devices_min=16"):
        asked.check_devices((word,))
    with pytest.raises(ConfigError, match=r"Leave workload\.devices out"):
        replace(asked, own_words={"drafts": (word,)}).check_devices(())


def test_draws_go_on_until_as_many_candidates_are_new() -> None:
    found = search(replace(question(), policies={"cloud": {}, "drafts": {"policy.draft.k": "range(1,8)"}}))
    assert {row.candidate.values for row in found.tried if row.candidate.policy == "drafts"} == {
        (), *((("policy.draft.k", str(k)),) for k in range(1, 8)),
    }  # fmt: skip


def test_a_text_that_was_too_poor_takes_nothing_over() -> None:
    found = search(question(lossless=False, quality_min=0.8))
    best = {rows[0].candidate.policy for _, rows in found.takeovers["devices"]}
    assert found.claimed.candidate.policy == "drafts"
    assert "routes" not in best


def test_a_policy_that_fails_where_something_is_varied_is_not_left_out() -> None:
    def few(words: tuple[str, ...]) -> CellResult:
        lost = "policy=cloud" in words and "workload.devices=64" in words
        return CellResult(words, problem="no room") if lost else formula(words)

    found = search(question(), FormulaEvaluator(workers=None, formula=few))  # type: ignore[arg-type]
    assert "cloud" not in found.left_out
    assert "cloud" in {row.candidate.policy for row in found.held_out}
    assert "no room" not in found.failed


def test_a_limit_in_another_unit_is_noted() -> None:
    assert list(Requirements(ttft_p90_s=0.5, service_p90_s_per_token=0.1).unusual()) == []
    (note,) = Requirements(ttft_p90_s=500).unusual()
    assert note == "require.ttft_p90_s is 500 s, usually 0.01 to 60. Is it meant so?"
