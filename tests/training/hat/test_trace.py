"""A trace holds the engine's hidden states with their tokens."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serving.engines.torch.model import DecomposedModel
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import SequenceCache
from serving.workload.workload import Workload
from training.fitting.held_out import training_workload
from training.hat import trace
from training.hat.trace import hidden_states


def test_the_deep_state_follows_from_the_shallow_one_by_the_remaining_layers(
    found: trace.HiddenStateTrace, model: DecomposedModel
) -> None:
    assert found.shallow_layers == 2
    begin, end = found.span(3)
    stack, slot = ModelRunner(model, model.vocab_size), SequenceCache(model, 0, 8)
    shallow = stack.run(stack.embed(found.tokens[begin:end].tolist()), [RunnerInput(slot, end - begin)], 0, 2)
    assert torch.equal(found.shallow[begin:end], shallow.half())
    rest = SequenceCache(model, 2, 8)
    deep = stack.run(found.shallow[begin:end].float(), [RunnerInput(rest, end - begin)], 2, 8)
    apart = (found.deep[begin:end].float() - deep).norm() / deep.norm()
    assert apart < 2e-3


def test_a_hidden_state_predicts_the_next_token(found: trace.HiddenStateTrace, model: DecomposedModel) -> None:
    """The target's own head finds the answer it wrote, and nothing of the kind one place aside."""
    choices = model.lm_head(model.norm(found.deep.float())).argmax(-1)
    answers = torch.cat([torch.arange(found.span(i)[0] + int(found.prompt_lens[i]), found.span(i)[1])
                         for i in range(len(found))])  # fmt: skip
    written = found.tokens[answers]
    assert (choices[answers - 1] == written).float().mean() > 0.97
    assert (choices[answers] == written).float().mean() < 0.9


def test_texts_are_at_the_recorded_spans(found: trace.HiddenStateTrace, model: DecomposedModel) -> None:
    begin, end = found.span(7)
    assert begin == found.span(6)[1]
    shallow, deep = hidden_states(model, found.tokens[begin:end].tolist(), 2)
    assert torch.equal(shallow, found.shallow[begin:end])
    assert torch.equal(deep, found.deep[begin:end])


def test_every_text_is_in_one_part(found: trace.HiddenStateTrace) -> None:
    split = found.split(0)
    assert sorted((*split.train, *split.validation, *split.test)) == list(range(48))
    assert split != found.split(1)
    assert len(set(found.prompt_ids)) == 48
    few = replace(found, prompt_ids=found.prompt_ids[:2])
    with pytest.raises(ValueError, match=r"2 texts cannot be split .* raise workload\.profiling\.num_prompts"):
        few.split(0)


def test_a_damaged_trace_is_named(hidden: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"hidden\.json cannot be read .* train again"):
        trace.read(tmp_path)
    (tmp_path / trace.HEADER_FILE).write_bytes((hidden / trace.HEADER_FILE).read_bytes())
    (tmp_path / trace.TRACE_FILE).write_bytes((hidden / trace.TRACE_FILE).read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"hidden\.safetensors cannot be read .* train again"):
        trace.read(tmp_path)


def test_training_prompts_differ_from_served_prompts(found: trace.HiddenStateTrace, toy_workload: Workload) -> None:
    assert not {asked.prompt.id for asked in toy_workload.requests(1)} & set(found.prompt_ids)
    with pytest.raises(ValueError, match="prompt_factor is 0"):
        training_workload(toy_workload, 0)
