"""The public data sets: examples of each format, real files in TANDEM_DATA, and malformed ones."""

import json
import sys
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from serving.studies.capacity.cases import BlankDataset
from serving.workload import dataset
from serving.workload.dataset import quality_note
from serving.workload.datasets.cnn_dailymail import CNNDailyMail
from serving.workload.datasets.commonsense_qa import CommonsenseQA
from serving.workload.datasets.gsm8k import GSM8K
from serving.workload.datasets.heysquad import HeySQuAD
from serving.workload.datasets.llqa import LLQA
from serving.workload.datasets.sensorqa import SensorQA
from serving.workload.datasets.spec_bench import SpecBench
from serving.workload.datasets.sst2 import SST2
from serving.workload.datasets.tiny import TinyTasks
from serving.workload.datasets.xsum import XSum
from serving.workload.prompt import check_prompts
from serving.workload.workload import Workload

REAL = {
    CommonsenseQA: ("commonsenseqa/dev.jsonl", 495),
    SST2: ("sst2/dev.tsv", 395),
    CNNDailyMail: ("cnn_dailymail/validation.csv", 200),
    XSum: ("xsum/xsum_0shot.jsonl", 200),
    LLQA: ("llqa/test_multiple.jsonl", 300),
    HeySQuAD: ("heysquad/human_transcribed.json", 284),
    SensorQA: ("sensorqa/val_shortened.json", 293),
    GSM8K: ("gsm8k/test.jsonl", 295),
    SpecBench: ("spec_bench/question.jsonl", 240),
}
HALVES = ("open", "sealed")
QUESTION = {
    "id": "q",
    "question": "Where?",
    "choices": {"label": ["A", "B"], "text": ["bank", "mall"]},
    "answerKey": "B",
}


def written(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "data"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def beside(data: Path, kind: type) -> dict[str, Path]:
    """The further file that a data set comes with."""
    return {"descriptions": data / "llqa/descriptions.jsonl"} if kind is LLQA else {}


@pytest.mark.parametrize("kind", REAL, ids=lambda kind: kind.__name__)
def test_real_files_load_and_the_right_answer_scores_one(data, kind):
    name, count = REAL[kind]
    halves = [kind(path=data / name, evaluation=half, **beside(data, kind)).prompts() for half in HALVES]
    prompts = halves[0] + halves[1]
    assert len(prompts) == count == len({prompt.id for prompt in prompts})
    check_prompts(prompts, kind.name, is_scored=bool(kind.metrics))
    for prompt in prompts[:20]:
        right = prompt.answer or prompt.references[:1]
        for metric in kind.metrics:
            assert metric.score(f" {right if isinstance(right, str) else right[0]}", prompt) == pytest.approx(1)
            assert metric.score("", prompt) == 0


@pytest.mark.parametrize("kind", REAL, ids=lambda kind: kind.__name__)
def test_the_file_of_another_data_set_is_refused_with_its_line(data, kind):
    for other, (name, _) in REAL.items():
        if other is not kind:
            with pytest.raises(ValueError, match=rf"{name} line \d.*\. {kind.name} needs "):
                kind(path=data / name, **beside(data, kind)).prompts()


def test_commonsense_qa_in_both_published_forms(tmp_path):
    options = [{"label": "A", "text": "bank"}, {"label": "B", "text": "mall"}]
    first = {"id": "q", "answerKey": "B", "question": {"stem": "Where?", "choices": options}}
    for row in (QUESTION, first):
        (prompt,) = CommonsenseQA(path=written(tmp_path, row), shots=0).prompts()
        assert prompt.text.endswith("Question: Where?\nA. bank\nB. mall\nAnswer:")
        assert (prompt.answer, prompt.choices) == ("mall", ("bank", "mall"))


def test_worked_examples_are_the_first_records_and_no_questions(tmp_path):
    path = written(tmp_path, *(QUESTION | {"id": f"q{number}", "question": f"Where {number}?"} for number in range(4)))
    prompts = CommonsenseQA(path=path, shots=2).prompts()
    assert [prompt.id for prompt in prompts] == ["q2", "q3"]
    assert prompts[1].text.count("Answer: B. mall") == prompts[1].shots == 2
    assert [f"Where {number}?" in prompts[1].text for number in range(4)] == [True, True, False, True]
    elsewhere = CommonsenseQA(path=path, shots=1, shots_path=path).prompts()
    assert [prompt.id for prompt in elsewhere] == ["q1", "q2", "q3"]


def test_cnn_dailymail_reads_quoted_articles(tmp_path):
    path = written(tmp_path, "article,highlights,id", '"One ""two"",\nthree.","First .\nSecond .",x')
    (prompt,) = CNNDailyMail(path=path).prompts()
    assert prompt.text.startswith('Article: One "two",\nthree.\n\n')
    assert prompt.id == "x"


def test_xsum_gives_hub_rows_and_file_rows_the_same_prompt(tmp_path):
    wrapped = "###\nArticle: Rain.\n\nSummarize the above article in 1 sentence.\n"
    path = written(
        tmp_path, {"article": wrapped, "summary_gt": "It rained."}, {"document": "Rain.", "summary": "It rained."}
    )
    ours, hubs = XSum(path=path).prompts()
    assert ours.text == hubs.text == wrapped
    assert ours.extract_answer("It rained.\n###\nArticle: more") == "It rained."


def test_llqa_joins_descriptions_by_date_and_time(tmp_path):
    ask = {"question": "What?", "answers": ["run", "sit"], "answer_idx": 1, "date": "2015-03-11"}
    times = {"start_time": "2015/03/11 07:30:00+00", "end_time": "2015/03/11 07:40:00+00"}
    logs = [
        ("before. [07:00-07:29]", "2015-03-11"),
        ("into. [07:10-07:30]", "2015-03-11"),
        ("moment. [07:35]", "2015-03-11"),
        ("after. [07:41-07:50]", "2015-03-11"),
        ("other day. [07:35]", "2015-03-12"),
        ("no time", "2015-03-11"),
        (" ", "2015-03-11"),
    ]
    days = tmp_path / "descriptions.jsonl"
    days.write_text("\n".join(json.dumps({"desc": d, "date": day}) for d, day in logs))
    (prompt,) = LLQA(path=written(tmp_path, ask | times), descriptions=days).prompts()
    assert prompt.text.split("\n\n")[0].split("\n") == ["Log of the day:", "into. [07:10-07:30]", "moment. [07:35]"]
    with pytest.raises(ValueError, match=r"LLQA also needs the descriptions.*descriptions=FILE \(published as .*jsonl"):
        LLQA(path=tmp_path / "data")
    with pytest.raises(ValueError, match=r"LLQA also needs its log descriptions, not found at .*gone"):
        LLQA(path=written(tmp_path, ask | times), descriptions=tmp_path / "gone").prompts()
    with pytest.raises(ValueError, match=r'data line 1: no field "desc".*descriptions are JSON Lines'):
        LLQA(path=tmp_path / "data", descriptions=tmp_path / "data").prompts()


def test_heysquad_skips_impossible_questions_and_names_an_invalid_one(tmp_path):
    good = {"id": "1", "question": "who", "answers": [{"text": "Marie"}, {"text": "Marie"}, {"text": "Curie"}]}
    article = {"paragraphs": [{"context": "Marie Curie.", "qas": [good, {"id": "2", "is_impossible": True}]}]}
    (prompt,) = HeySQuAD(path=written(tmp_path, {"data": [article]}), shots=0).prompts()
    assert prompt.references == ("Marie", "Curie")
    article["paragraphs"][0]["qas"].append({"id": "3", "question": "who"})
    with pytest.raises(ValueError, match=r'data line 1 data 0 paragraphs\[0\] qas\[2\]: no field "answers"'):
        HeySQuAD(path=written(tmp_path, {"data": [article]}), shots=0).prompts()


def test_gsm8k_in_both_published_forms(tmp_path):
    rows = (
        {"question": "6 * 3?", "answer": "6*3=<<6*3=18>>18\n#### 18"},
        {"problem": "6 * 3?", "solution": "\\boxed{1,800}"},
    )
    first, second = GSM8K(path=written(tmp_path, *rows), shots=0).prompts()
    assert (first.answer, second.answer) == ("18", "1800")
    assert first.references == ("6*3=18\n#### 18",)


def test_spec_bench_uses_the_first_turn_or_all_and_groups_mt_bench(tmp_path):
    path = written(tmp_path, {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]})
    assert SpecBench(path=path).prompts()[0].text == "Write."
    everything = SpecBench(path=path, turns="all").prompts()[0]
    assert (everything.text, everything.task) == ("Write.\n\nAgain.", "multi_turn")


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        (CommonsenseQA, (QUESTION, QUESTION | {"answerKey": "C"}), "line 2: answerKey 'C' and 2 options labelled A, B"),
        (CommonsenseQA, (QUESTION, "{broken"), r"line 2: not JSON \(Expecting property name"),
        (CommonsenseQA, (QUESTION, {"id": "x"}), 'line 2: no field "choices"; has: id. CommonsenseQA needs JSON Lines'),
        (CommonsenseQA, (QUESTION, QUESTION), "two records of .* have the id 'q'"),
        (CommonsenseQA, (), "line 1: the file is empty"),
        (SST2, ("sentence\tlabel", "fine\t1", "dull\t2"), "line 3: label is 2, needed is 0 or 1"),
        (SST2, ("sentence\tlabel", "fine"), "line 2: 1 columns, the header has 2"),
        (SST2, ("sentence\tlabel",), "0 records are too few"),
        (GSM8K, ({"problem": "?", "solution": "it is 5"},), "line 1: no final number after ####"),
        (SensorQA, ('[{"question": "?"}]',), 'line 1 item 0: no field "answer"'),
        (SpecBench, ({"question_id": 1, "category": "qa", "turns": []},), 'line 1: field "turns" is'),
    ],
)
def test_a_broken_row_is_named_by_its_line(tmp_path, kind, rows, message):
    with pytest.raises(ValueError, match=message):
        kind(path=written(tmp_path, *rows), shots=0).prompts()


def test_too_few_records_for_the_worked_examples(tmp_path):
    with pytest.raises(ValueError, match="CommonsenseQA: 1 records are too few for 5 worked examples"):
        CommonsenseQA(path=written(tmp_path, QUESTION)).prompts()
    with pytest.raises(ValueError, match="shots of CommonsenseQA must be 0 or more, got -1"):
        CommonsenseQA(shots=-1)


# ---- the Hub


def test_without_a_file_and_without_the_package_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ValueError, match=r"tau/commonsense_qa .*needs the package `datasets` and a network.*workload.path"
    ):
        CommonsenseQA().prompts()


def test_a_data_set_that_is_not_on_the_hub_asks_for_a_file():
    with pytest.raises(ValueError, match=r"SensorQA needs a file: set workload.path=FILE \(a JSON list"):
        SensorQA().prompts()


class Stream(list):
    def select_columns(self, names):
        return [{name: fields[name] for name in names} for fields in self]


def hub_of(monkeypatch, *rows):
    asked = {}

    def load_dataset(name, config, **options):
        asked.update(options, name=name, config=config)
        return Stream(rows)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return asked


def test_a_data_set_without_file_and_package_is_refused_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setattr("serving.workload.dataset.find_spec", lambda name: None)
    advice = r"tau/commonsense_qa.*needs a file: set workload\.path=FILE .*tandem-llm\[hub\]"
    with pytest.raises(ValueError, match=advice):
        Workload(dataset=CommonsenseQA()).check_dataset()
    with pytest.raises(ValueError, match=r"needs a file: set workload\.path=FILE"):
        Workload(dataset=CommonsenseQA(hub=None)).check_dataset()
    monkeypatch.setattr("serving.workload.dataset.find_spec", lambda name: object())
    Workload(dataset=CommonsenseQA()).check_dataset()


def test_hub_rows_become_the_same_prompts_as_a_files(tmp_path, monkeypatch):
    asked = hub_of(monkeypatch, QUESTION)
    from_hub = CommonsenseQA(shots=0, revision="abc").prompts()
    assert from_hub == CommonsenseQA(shots=0, path=written(tmp_path, QUESTION)).prompts()
    assert asked == {
        "name": "tau/commonsense_qa", "config": None, "split": "validation", "revision": "abc", "streaming": True,
    }  # fmt: skip


def test_heysquad_audio_is_not_fetched(monkeypatch):
    text = {"id": "1", "context": "Marie.", "transcription": "who", "is_impossible": False}
    hub_of(monkeypatch, text | {"answers": {"text": ["Marie"], "answer_start": [0]}, "audio": b"..."})
    (prompt,) = HeySQuAD(shots=0).prompts()
    assert prompt.text.endswith("Passage: Marie.\nQuestion: who\nAnswer:")


def test_a_broken_hub_row_is_named_by_its_index(monkeypatch):
    hub_of(monkeypatch, QUESTION, {"id": "x"})
    with pytest.raises(ValueError, match="tau/commonsense_qa validation row 1: no field"):
        CommonsenseQA(shots=0).prompts()


def test_a_hub_that_fails_is_reported_with_its_reason(monkeypatch):
    def load_dataset(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(ValueError, match=r"needs a network \(ConnectionError: no route\); set workload.path=FILE"):
        CommonsenseQA().prompts()


# ---- what the quality column means


@pytest.mark.parametrize(
    ("dataset", "embedded", "note"),
    [
        (CommonsenseQA(), True, "does not measure quality"),
        (CommonsenseQA(), False, None),
        (TinyTasks(corpus=Path("corpus")), True, None),
        (TinyTasks(corpus=Path("corpus")), False, "only the embedded pair was trained on"),
        (SpecBench(), True, "no quality metric"),
        (SpecBench(), False, "no quality metric"),
    ],
)
def test_quality_note_explains_the_quality_column(dataset, embedded, note):
    said = quality_note(dataset, embedded)
    assert said is None if note is None else note in said


@pytest.mark.parametrize("kind", REAL, ids=lambda kind: kind.__name__)
def test_the_sealed_half_of_a_published_file_is_the_drawn_one(data, kind):
    """The draw used the question alone, which is the text where no worked examples precede it."""
    name, _ = REAL[kind]
    given = {"path": data / name, "shots": 0, **beside(data, kind)}
    whole, sealed = (kind(evaluation=each, **given).prompts() for each in HALVES)
    head = len(kind.instruction) + 2 if kind.instruction else 0
    luck = {
        prompt.id: sha256(b"sealed half: " + prompt.text[head:].encode()).digest()[0] % 2 for prompt in whole + sealed
    }
    assert {luck[prompt.id] for prompt in whole} == {0}
    assert {luck[prompt.id] for prompt in sealed} == {1}
    assert 0.4 < len(sealed) / (len(whole) + len(sealed)) < 0.6


@pytest.mark.parametrize("evaluation", HALVES)
def test_a_question_about_another_log_is_of_the_same_half(data, tmp_path, evaluation):
    rows = (data / "llqa/descriptions.jsonl").read_text(encoding="utf-8").splitlines()
    published, shorter = (
        LLQA(path=data / REAL[LLQA][0], descriptions=days, evaluation=evaluation).prompts()
        for days in (data / "llqa/descriptions.jsonl", written(tmp_path, *rows[::50]))
    )
    assert [prompt.id for prompt in published] == [prompt.id for prompt in shorter]
    assert [prompt.text for prompt in published] != [prompt.text for prompt in shorter]


@pytest.mark.parametrize("evaluation", HALVES)
def test_more_turns_of_a_conversation_are_of_the_same_half(data, evaluation):
    file = data / "spec_bench/question.jsonl"
    first, every = (SpecBench(path=file, evaluation=evaluation, turns=turns).prompts() for turns in ("first", "all"))
    assert [prompt.id for prompt in first] == [prompt.id for prompt in every]
    assert [prompt.text for prompt in first] != [prompt.text for prompt in every]


def test_worked_examples_are_of_the_open_half(data):
    file = data / "gsm8k/test.jsonl"
    (of_open,), (of_sealed,) = (
        {prompt.text.split("\n\n")[0] for prompt in GSM8K(path=file, shots=1, evaluation=each).prompts()}
        for each in HALVES
    )
    assert of_open == of_sealed


def test_what_a_worked_example_asks_is_no_question_where_the_file_asks_it_again(tmp_path):
    texts = ["Where?", "When?", "Where?", "Why?"]
    path = written(tmp_path, *(QUESTION | {"id": f"q{n}", "question": text} for n, text in enumerate(texts)))
    for shots_path in (None, path):
        prompts = CommonsenseQA(path=path, shots=1, shots_path=shots_path).prompts()
        assert [prompt.id for prompt in prompts] == ["q1", "q3"]


def test_missing_worked_examples_are_named_by_their_option(tmp_path):
    path = written(tmp_path, QUESTION)
    with pytest.raises(ValueError, match=r"gone does not exist; set workload\.dataset\.shots_path=FILE"):
        CommonsenseQA(path=path, shots=1, shots_path=tmp_path / "gone").prompts()


def test_another_list_of_sealed_questions_is_another_identity(monkeypatch):
    """Kept artifacts have today's lists: these add nothing to an identity. A data set without a list has none."""
    assert [kind.data_revision() for kind in REAL] == [None] * len(REAL)
    changed = {GSM8K.name: "0123456789ab", "Lab": "0123456789ab"}
    monkeypatch.setattr(dataset, "_sealed_list", lambda name: changed.get(name, ""))
    lab = type("Lab", (GSM8K,), {"name": "Lab"})
    assert GSM8K.data_revision() == lab.data_revision()
    assert len(GSM8K.data_revision()) == 12
    assert type("Other", (GSM8K,), {"name": "Other"}).data_revision() is None
    assert SST2.data_revision() is not None  # its list is gone


def test_a_file_of_ones_own_has_nothing_sealed(tmp_path):
    path = written(tmp_path, *(QUESTION | {"id": f"q{n}", "question": f"Where {n}?"} for n in range(40)))
    assert len(CommonsenseQA(path=path, shots=0).prompts()) == 40
    with pytest.raises(
        ValueError, match="0 records are too few for 0 worked examples and a question of the sealed half"
    ):
        CommonsenseQA(path=path, shots=0, evaluation="sealed").prompts()


def test_a_workload_without_text_is_refused_where_models_read_it() -> None:
    blank = Workload(dataset=BlankDataset())
    blank.check_dataset()
    with pytest.raises(ValueError, match="the prompts of blank have no text"):
        blank.check_dataset(with_text=True)
