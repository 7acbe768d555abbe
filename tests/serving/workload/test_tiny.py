import json

import pytest

from serving.workload.datasets.tiny import TinyTasks

ROWS = [
    {
        "id": "test-0",
        "task": "choice",
        "prompt": "Where?",
        "reference": "It is in the attic.",
        "answer": "attic",
        "match_rule": "ends_with",
    },
    {"id": "test-1", "task": "sort", "prompt": "Sort: 2 1", "reference": "1 2", "answer": "1 2", "key": "unused"},
]


def corpus(tmp_path, rows):
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_items_become_prompts_with_their_match_rule(tmp_path):
    choice, sort = TinyTasks(corpus=corpus(tmp_path, ROWS)).prompts()
    exact, rouge = TinyTasks.metrics
    assert (choice.text, choice.match_rule, sort.match_rule) == ("Where?", "ends_with", "equals")
    assert exact.score(" attic.", choice) == exact.score(" 1 2", sort) == 1
    assert rouge.score("It is in the cellar.", choice) == pytest.approx(0.8)


def test_the_tasks_option_selects_items(tmp_path):
    assert [prompt.id for prompt in TinyTasks(corpus=corpus(tmp_path, ROWS), tasks=("sort",)).prompts()] == ["test-1"]
    with pytest.raises(ValueError, match="unknown: sorting; known: choice, sort"):
        TinyTasks(corpus=tmp_path, tasks=("sorting",)).prompts()


def test_a_broken_row_is_named_by_its_line(tmp_path):
    with pytest.raises(
        ValueError, match=r"test.jsonl line 2: match_rule is 'almost', needed is one of equals, ends_with"
    ):
        TinyTasks(corpus=corpus(tmp_path, [ROWS[0], ROWS[1] | {"match_rule": "almost"}])).prompts()
    with pytest.raises(ValueError, match=r'test.jsonl line 1: no field "answer"; has: id, task'):
        TinyTasks(corpus=corpus(tmp_path, [{k: v for k, v in ROWS[0].items() if k != "answer"}])).prompts()


def test_a_file_that_changed_is_read_again(tmp_path, monkeypatch):
    """A builder may write the corpus anew between two plans of one process."""
    dataset = TinyTasks(corpus=corpus(tmp_path, ROWS))
    assert len(dataset.prompts()) == 2
    with monkeypatch.context() as patch:
        patch.setattr("serving.workload.records.json_lines", pytest.fail)
        assert len(TinyTasks(corpus=tmp_path).prompts()) == 2
    corpus(tmp_path, ROWS[:1])
    assert [prompt.id for prompt in dataset.prompts()] == ["test-0"]
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(ValueError, match=r"test\.jsonl"):
        dataset.prompts()
