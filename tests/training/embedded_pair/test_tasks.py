from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from training.embedded_pair.tasks import (
    OBJECTS,
    RELATIONS,
    SPLITS,
    TASKS,
    SyntheticWorld,
    TaskItem,
    content_spans,
    sample_item,
    split_of,
    template_words,
)

WORLD = SyntheticWorld.sample(0)


def items(task: str, split: str, count: int, seed: int = 0) -> list[TaskItem]:
    rng = random.Random(seed)
    return [sample_item(task, split, rng, WORLD) for _ in range(count)]


@pytest.mark.parametrize("task", TASKS)
def test_splits_share_no_key_and_no_prompt(task: str) -> None:
    drawn = {split: items(task, split, 300) for split in SPLITS}
    for attribute in ("key", "prompt"):
        seen = [{getattr(item, attribute) for item in drawn[split]} for split in SPLITS]
        assert seen[0].isdisjoint(seen[1])
        assert seen[0].isdisjoint(seen[2])
        assert seen[1].isdisjoint(seen[2])


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_stands_in_the_reference(task: str) -> None:
    for item in items(task, "train", 100):
        assert all(part in item.reference for part in item.answer.split(", "))


@pytest.mark.parametrize("task", TASKS)
def test_a_prompt_has_one_reference(task: str) -> None:
    references: dict[str, str] = {}
    for item in items(task, "train", 500):
        assert references.setdefault(item.prompt, item.reference) == item.reference


def test_splits_have_their_shares_of_items() -> None:
    owners = [split_of(str(number)) for number in range(4000)]
    assert [round(owners.count(split) / 4000, 1) for split in SPLITS] == [0.8, 0.1, 0.2] or owners.count("train") > 2800


def test_a_world_knows_every_fact_and_differs_by_seed() -> None:
    assert set(WORLD.facts) == {(thing, relation) for thing in OBJECTS for relation in RELATIONS}
    assert SyntheticWorld.sample(0) == WORLD != SyntheticWorld.sample(1)


def test_the_same_seed_gives_the_same_items_in_another_process() -> None:
    program = (
        "import random; from training.embedded_pair.tasks import *; "
        "w = SyntheticWorld.sample(3);"
        "r = random.Random(5); print([sample_item(t, s, r, w) for t in TASKS for s in SPLITS])"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert printed[0]


def test_sentiment_follows_the_clause_that_counts() -> None:
    for item in items("sentiment", "train", 200):
        clause, label = item.reference.removesuffix(".").split(": ")
        review = item.prompt.split(": ")[1].lower()
        counts = (
            review.split("but ")[1]
            if ", but " in review
            else min(review.split(", "), key=lambda part: "although" in part)
        )
        assert clause.lower() in counts
        assert label == item.answer


def test_content_is_what_templates_do_not_explain() -> None:
    text = "The register says Mara red lantern Kelm. Answer: Kelm."
    assert [text[begin:end] for begin, end in content_spans(text)] == ["Mara", "red", "lantern", "Kelm", "Kelm"]
    assert {"register", "answer", "order"} <= template_words()
    assert not template_words() & {"positive", "negative", *OBJECTS}
