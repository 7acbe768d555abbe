"""A chat model writes conversations with itself; the kept logits are those that a forward of the text gives."""

import gc
import shutil
import weakref
from pathlib import Path

import pytest
import torch

from serving.engines.models import Checkpoint
from serving.progress import silent
from serving.workload.datasets.self_asked import SelfAsked
from tests.support.tiny_models import save_checkpoint
from training.checkpoints import self_prompts, stages
from training.checkpoints.row_decoder import RowDecoder
from training.checkpoints.self_prompts import SelfPrompter, SelfPrompts, joined, read
from training.fitting.trainer import Trainer

FP32 = Trainer(threads=1, precision="fp32")


def recorded(out: Path, work: Path, model: Path, **options: int) -> SelfPrompts:
    out.mkdir(exist_ok=True)
    quiet = {"work": work, "progress": lambda *_: None, "trainer": FP32}
    stages.record_self_prompts(
        out, model=Checkpoint(path=model), rows=6, top_k=3, **{"answer_tokens": 60, **options}, **quiet
    )
    return read(out)


@pytest.fixture(scope="module")
def found(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> SelfPrompts:
    folder = tmp_path_factory.mktemp("prompts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self_prompts, "PART_ANSWER_TOKENS", 400)
        return recorded(folder / "out", folder / "work", chat_model, answer_tokens=400)


def test_the_kept_logits_are_the_models(chat_model: Path, found: SelfPrompts) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(chat_model, dtype=torch.float32).eval()
    assert len(found.top_tokens) >= 60
    for text, (first, last) in enumerate(found.answer_spans()):
        begin, end = found.span(text)
        start = int(found.answer_starts[text])
        assert last - first == end - begin - start
        with torch.no_grad():
            logits = model(found.tokens[begin:end][None].long()).logits[0, start - 1 : -1]
        assert torch.allclose(logits.topk(3).values, found.top_logits[first:last].float(), atol=2e-3)
        assert torch.equal(logits.argmax(-1).int(), found.top_tokens[first:last, 0])


def test_a_decoders_keys_and_values_end_with_it(chat_model: Path) -> None:
    """A cycle kept those of each part, 0.9 GB with SmolLM2, until a collection came, which took 7 GB."""
    from transformers import AutoModelForCausalLM

    decoder = RowDecoder(AutoModelForCausalLM.from_pretrained(chat_model).eval(), [1, 2], rows=2, capacity=8)
    with torch.inference_mode():
        decoder.logits()
    keys = weakref.ref(decoder._cache.layers[0].keys)
    gc.disable()
    try:
        del decoder
        assert keys() is None
    finally:
        gc.enable()


def test_the_greedy_answers_take_the_likeliest_token(found: SelfPrompts) -> None:
    """Every second row of a batch is greedy; rows that are too short are left out."""
    greedy = []
    for text, (first, last) in enumerate(found.answer_spans()):
        begin, end = found.span(text)
        answer = found.tokens[begin + int(found.answer_starts[text]) : end]
        greedy.append(bool(torch.equal(answer, found.top_tokens[first:last, 0])))
    assert any(greedy)
    assert not all(greedy)


def test_an_interrupted_recording_goes_on_from_its_parts(
    chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_prompts, "PART_ANSWER_TOKENS", 40)
    few = recorded(tmp_path / "few", tmp_path / "work", chat_model, answer_tokens=1)
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["0"]
    again = recorded(tmp_path / "again", tmp_path / "work", chat_model, answer_tokens=100)
    assert len(list((tmp_path / "work").iterdir())) > 1
    at_once = recorded(tmp_path / "at_once", tmp_path / "work2", chat_model, answer_tokens=100)
    assert torch.equal(again.tokens, at_once.tokens)
    assert torch.equal(again.tokens[: len(few.tokens)], few.tokens)
    assert not torch.equal(again.tokens[len(few.tokens) :][:20], few.tokens[:20])
    other = recorded(tmp_path / "other", tmp_path / "work3", chat_model, answer_tokens=1, seed=1)
    assert not torch.equal(other.tokens[:20], few.tokens[:20])


def test_joined_parts_keep_their_texts(found: SelfPrompts) -> None:
    twice = joined([found, found])
    begin, end = found.span(0)
    assert twice.span(len(found)) == (len(found.tokens), len(found.tokens) + end - begin)
    assert len(twice.top_tokens) == 2 * len(found.top_tokens)


def test_a_template_that_ends_turns_without_the_end_token_is_refused(chat_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(chat_model, copy)
    template = copy / "chat_template.jinja"
    text = template.read_text() if template.is_file() else (copy / "tokenizer_config.json").read_text()
    (template if template.is_file() else copy / "tokenizer_config.json").write_text(text.replace("<eos>{%", "is{%"))
    with pytest.raises(ValueError, match=r"does not begin with the end token '<eos>': the model cannot end its own"):
        recorded(tmp_path / "out", tmp_path / "work", copy)


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no chat template"):
        recorded(tmp_path / "out", tmp_path / "work", save_checkpoint(tmp_path / "plain"))


def test_a_model_asks_different_questions_that_are_a_data_set(chat_model: Path, tmp_path: Path) -> None:
    asked = {"model": Checkpoint(path=chat_model), "count": 12, "rows": 6, "progress": silent, "trainer": FP32}
    stages.record_questions(tmp_path, **asked)
    dataset = SelfAsked(questions=tmp_path)
    questions = [prompt.text for prompt in dataset.prompts()]
    assert dataset.is_built
    assert len(set(questions)) == len(questions) == 12
    assert all(len(question.split()) >= 4 for question in questions)
    (tmp_path / "again").mkdir()
    stages.record_questions(tmp_path / "again", **asked)
    assert [prompt.text for prompt in SelfAsked(questions=tmp_path / "again").prompts()] == questions


def test_a_model_that_ends_no_question_is_refused(chat_model: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(chat_model).eval(),
        AutoTokenizer.from_pretrained(chat_model),
    )
    with torch.no_grad():
        model.lm_head = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size)
        model.lm_head.bias[tokenizer.eos_token_id] = -1e9
    prompter = SelfPrompter(model, tokenizer, 2, 1)
    with pytest.raises(ValueError, match=r"asked 0 questions in .* steps; only a chat model asks"):
        prompter.ask(1, 0, silent)
