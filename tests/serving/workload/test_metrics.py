from fractions import Fraction

import numpy as np
import pytest

from serving.workload.metrics import (
    ChoiceAccuracy,
    ExactMatch,
    FinalNumber,
    Rouge1,
    check_metrics,
    checked_score,
    chosen_option,
    final_number,
)
from serving.workload.prompt import Prompt

PLACES = ("bank", "library", "department store", "mall", "department")


def prompt(answer="", reference="", rule="equals", choices=(), stop=()):
    return Prompt("1", "?", (reference,), "t", answer, choices, rule, stop=stop)


@pytest.mark.parametrize(
    ("rule", "text", "right"),
    [
        ("equals", " It is kept in the attic.\n", True),
        ("equals", "attic", False),
        ("ends_with", "The lamp is kept in the attic.", True),
        ("ends_with", "attic", True),
        ("ends_with", "It is in the oldattic.", False),
        ("ends_with", "The attic is full.", False),
        ("contains", "The attic is full.", True),
        ("contains", "The attics are full.", False),
        ("ends_with", "", False),
    ],
)
def test_exact_match_follows_the_rule_of_the_prompt(rule, text, right):
    asked = prompt(answer="attic", reference="It is kept in the attic.", rule=rule)
    assert ExactMatch().score(text, asked) == float(right)


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("B", "library"),
        ("(D) the mall", "mall"),
        ("D. mall", "mall"),
        ("D mall", "mall"),
        ("A mall", "mall"),
        ("I think the answer is (B), a library, not a bank", "library"),
        ("Answer: D", "mall"),
        ("The answer is A", "bank"),
        ("The answer is A mall", "mall"),
        ("The answer is B because one reads there", "library"),
        ("The Bank, not the library", "bank"),
        ("a department store", "department store"),
        ("the department", "department"),
        ("**B**", "library"),
        ("**D. mall**", "mall"),
        ("__B__", "library"),
        ("**Answer:** **(B)**", "library"),
        ("The correct option is **B**", "library"),
        ("My choice: B", "library"),
        ("The correct answer is: B.", "library"),
        ("The answer is:\n\nD. mall", "mall"),
        ("The choice is A mall", "mall"),
        ("B is correct.", "library"),
        ("B is the right one, not the bank", "library"),
        ("A is a mall", "mall"),
        ("banks", None),
        ("Z", None),
        ("", None),
        ("no idea\n\nmall", None),
    ],
)
def test_the_option_is_read_from_free_text(text, choice):
    assert chosen_option(text, PLACES, lettered=True) == choice


def test_without_lettered_options_a_letter_chooses_nothing():
    assert chosen_option("B", ("negative", "positive"), lettered=False) is None
    assert chosen_option("Positive!", ("negative", "positive"), lettered=False) == "positive"


def test_choice_accuracy_ignores_text_after_a_stop_string():
    asked = prompt(answer="mall", choices=PLACES, stop=("\nQuestion:",))
    assert ChoiceAccuracy().score(" somewhere\n\nQuestion: next?\nAnswer: D. mall", asked) == 0
    assert ChoiceAccuracy().score(" D. mall\n\nQuestion: next?\nAnswer: A. bank", asked) == 1


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5 + 3 = 8\n#### 8", 8),
        ("\\boxed{2,125}. That is 3 more.", 2125),
        ("The answer is $18.50 for 2 people", 18.5),
        ("60-15-25=20 cups", 20),
        ("from 5-8", 8),
        ("it is -3", -3),
        ("The answer is .5", 0.5),
        ("The answer is $.50.", 0.5),
        ("so -.25", -0.25),
        ("by 1.2.3", 3),
        ("It is so.5 in all", 5),
        ("wait...7", 7),
        ("12. Then 13.", 13),
        ("none", None),
    ],
)
def test_the_final_number_of_a_text_is_found(text, number):
    assert final_number(text) == number


def test_final_numbers_are_compared_as_numbers():
    assert FinalNumber().score("so $2,125.00", prompt(answer="2125")) == 1
    assert FinalNumber().score("so 212", prompt(answer="2125")) == 0
    assert FinalNumber().score("nothing", prompt(answer="2125")) == 0


def test_rouge1_uses_the_best_reference_and_stemming():
    asked = Prompt("1", "?", ("dogs sleeping", "a cat"), "t")
    assert Rouge1().score("dog sleeps", asked) == 1
    assert Rouge1().score("a cat sat here", asked) == pytest.approx(2 * (2 / 4) * 1 / (2 / 4 + 1))
    assert Rouge1().score("", asked) == 0


class Own:
    """A metric of a user's, which gives the same to every text."""

    name = "own"

    def __init__(self, found=0.5):
        self.found = found

    def score(self, text, prompt):
        return self.found


@pytest.mark.parametrize("found", [0, 1, True, 0.25, np.float32(0.25), np.bool_(True), np.array(0.25), Fraction(1, 4)])
def test_a_metric_may_return_any_number_from_0_to_1(found):
    score = checked_score(Own(found), "", prompt())
    assert type(score) is float
    assert score == found


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (1.5, r"1\.5"),
        (-0.1, r"-0\.1"),
        (None, "None"),
        ("0.5", "'0.5'"),
        (np.array([0.5, 0.5]), r"array\(\[0.5, 0.5\]\)"),
        ("x" * 1000, r"'x+\.\.\.x+'"),
    ],
)
def test_what_is_no_number_from_0_to_1_is_refused_with_metric_prompt_and_value(found, shown):
    message = rf"^Own.score returned {shown} for the prompt '1'; a number from 0 to 1 is wanted$"
    with pytest.raises(ValueError, match=message):
        checked_score(Own(found), "", prompt())


@pytest.mark.parametrize("metrics", [(), (Own(),), [Own()], (Own(), Rouge1()), (ExactMatch(), Rouge1())])
def test_a_data_set_has_one_metric_and_perhaps_rouge_1(metrics):
    check_metrics(metrics, "Riddles.metrics")


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ((ExactMatch(), Own()), "has ExactMatch and Own; a run scores its answers with the first metric"),
        ((Rouge1(), Own(), Own()), "has Rouge1 and Own, Own; a run scores"),
        (Own(), "is a Own; a tuple with one metric or none is wanted"),
        ((Own,), "holds <class .*Own.*>; an object with `name` and `score"),
        (("exact_match",), "holds 'exact_match'; an object with"),
    ],
)
def test_metrics_that_no_run_scores_are_refused_in_the_plan(metrics, message):
    with pytest.raises(ValueError, match=rf"^Riddles.metrics {message}"):
        check_metrics(metrics, "Riddles.metrics")
