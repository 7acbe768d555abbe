"""The stages at toy size: trajectories by references and by a router, and what is trained on them."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from serving.core.decoding import Decoding
from serving.engines.models import Checkpoint
from serving.engines.tokenizer import Tokenizer
from serving.learned.router import load
from serving.policy.slots.offload import NeverOffload, RandomOffload
from serving.progress import silent
from serving.workload.metrics import ExactMatch, Metric
from serving.workload.workload import Workload
from tests.support.fake_setup import queries
from tests.training.routing.conftest import Unanswered
from training.fitting.recipe import CoLLMRecipe
from training.fitting.trainer import Trainer
from training.routing import serving_eval
from training.routing.co_llm import (
    JointModule,
    _collate,
    _labelled_texts,
    linear_classifier,
    marginal_nll,
    reencode_states,
)
from training.routing.stages import check_record_routes, record_routes, train_citer, train_co_llm
from training.routing.states import PREFERENCE_REASONS, RoutingStates, concatenate, made_from, read, split, write
from training.wisp.mlp import MLP

BRIEF = MLP(hidden_sizes=(8,), epochs=2)


@pytest.fixture(scope="module")
def common(checkpoints_: dict[str, Checkpoint], workload: Workload) -> dict[str, Any]:
    return {"progress": silent, "workload": workload, "decoding": Decoding(), **checkpoints_}


@pytest.fixture(scope="module")
def first(common: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("routes")
    record_routes(out, max_comparisons=1, **common)
    return out


@pytest.fixture(scope="module")
def router(first: Path, common: dict[str, Any], one_thread: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("router")
    train_citer(out, routes=(first,), mlp=BRIEF, routed_share=0.2, trainer=one_thread, **common)
    return out


@dataclass(frozen=True)
class Unjudged(Unanswered):
    """Prompts without references and without a metric, as Spec-Bench's."""

    metrics: ClassVar[tuple[Metric, ...]] = ()
    measures_quality_of: ClassVar[str] = "none"


def test_without_a_metric_answers_are_judged_by_the_large_models_own(
    common: dict[str, Any], toy_corpus: Path, one_thread: Trainer, tmp_path: Path
) -> None:
    workload = replace(common["workload"], dataset=Unjudged(toy_corpus))
    stages = common | {"workload": workload}
    check_record_routes(**stages)
    routes, trained = tmp_path / "routes", tmp_path / "router"
    for folder in (routes, trained):
        folder.mkdir()
    record_routes(routes, max_comparisons=1, **stages)
    first_round = read(routes)
    large_only = first_round.reason == PREFERENCE_REASONS.index("large")
    assert large_only.any()
    assert not first_round.small_preferred[large_only].any()
    train_citer(trained, routes=(routes,), mlp=BRIEF, routed_share=0.2, trainer=one_thread, **stages)
    served = load(trained).metrics
    assert served["served/small_only_quality"] < 1  # ROUGE-1 with what the large model writes, which is 1 for itself


def choices(path: Path, states: RoutingStates, text: int) -> list[int]:
    """The next token of a model after each token of an answer, by `transformers`."""
    from transformers import AutoModelForCausalLM

    tokens, prompt = states.text_tokens(text)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(torch.tensor([tokens])).logits[0]
    return logits[prompt - 1 : -1].argmax(-1).tolist()


def test_the_first_trajectories_are_the_references(common: dict[str, Any], answered: Workload, tmp_path: Path) -> None:
    record_routes(tmp_path, max_comparisons=0, **common | {"workload": answered})
    states, tokenizer = read(tmp_path), Tokenizer(common["cloud"].name_or_path)
    known = {p.id: p.references[0] for p in replace(answered.dataset, split="train").prompts()}
    assert len(states.prompt_ids) == 6
    for text, name in enumerate(states.prompt_ids):
        tokens, prompt = states.text_tokens(text)
        assert known[name].startswith(tokenizer.decode(tokens[prompt:]))
    assert (states.reference_token >= 0).all()


def test_references_end_with_the_end_of_a_text(common: dict[str, Any], answered: Workload, tmp_path: Path) -> None:
    record_routes(tmp_path, max_comparisons=0, **common | {"workload": replace(answered, max_new_tokens=40)})
    states, tokenizer = read(tmp_path), Tokenizer(common["cloud"].name_or_path)
    answers = [tokens[prompt:] for tokens, prompt in map(states.text_tokens, range(len(states.prompt_ids)))]
    short = [answer for answer in answers if len(answer) < 40]
    assert short
    assert {answer[-1] for answer in short} == {tokenizer.hf.eos_token_id}


def test_without_references_the_large_models_answers_are_the_references(first: Path, common: dict[str, Any]) -> None:
    states = read(first)
    for text in range(4):
        tokens, prompt = states.text_tokens(text)
        assert tokens[prompt:] == choices(Path(common["cloud"].name_or_path), states, text)


def test_preferences_are_those_of_the_models(first: Path, common: dict[str, Any]) -> None:
    states = read(first)
    for text in range(4):
        rows = np.flatnonzero(states.text_index == text)
        small, large = (choices(Path(common[side].name_or_path), states, text) for side in ("device", "cloud"))
        for row, a, b in zip(rows, small, large, strict=True):
            truth = states.reference_token[row]
            expected = "small" if a == truth else "large" if b == truth else "alike" if a == b else "compared"
            assert PREFERENCE_REASONS[states.reason[row]] == expected
            if expected in ("small", "large", "alike"):
                assert states.small_preferred[row] == (expected != "large")


def test_a_later_round_follows_the_routers_choices(router: Path, common: dict[str, Any], tmp_path: Path) -> None:
    record_routes(tmp_path, router=router, max_comparisons=1, **common)
    states, header = read(tmp_path), json.loads((tmp_path / "routes.json").read_text())
    assert header["made_from"]["trajectories"] == repr(load(router))
    assert (states.reference_token < 0).any()
    for text in range(len(states.prompt_ids)):
        known = (states.reference_token[states.text_index == text] >= 0).tolist()
        assert known == sorted(known, reverse=True)


def test_a_router_of_two_rounds_has_the_threshold_of_the_later_one(
    first: Path, common: dict[str, Any], one_thread: Trainer, tmp_path: Path
) -> None:
    earlier = read(first)
    later = replace(earlier, hidden=earlier.hidden[::-1].copy())
    folder, out = tmp_path / "later", tmp_path / "router"
    folder.mkdir()
    out.mkdir()
    write(folder, later, made_from(first))
    train_citer(out, routes=(first, folder), mlp=BRIEF, routed_share=0.2, trainer=one_thread, **common)
    parts, found = split(concatenate([earlier, later]).with_preference(), 0), load(out)
    held_out = later.for_prompts(parts.validation.used_prompt_ids)
    assert found.heldout_scores == pytest.approx(sorted(found.probabilities(held_out.hidden).tolist()))
    assert found.made_from["rounds"] == "2"


def test_states_that_were_not_asked_are_not_learned_from(
    first: Path, common: dict[str, Any], one_thread: Trainer, tmp_path: Path
) -> None:
    states = read(first)
    states.reason[::5] = PREFERENCE_REASONS.index("unasked")
    unasked = states.reason == PREFERENCE_REASONS.index("unasked")
    altered = replace(states, small_preferred=states.small_preferred ^ unasked)
    digests = set()
    for name, own in (("as recorded", states), ("altered", altered)):
        folder, out = tmp_path / name, tmp_path / f"router of {name}"
        folder.mkdir()
        out.mkdir()
        write(folder, own, made_from(first))
        train_citer(out, routes=(folder,), mlp=BRIEF, routed_share=0.2, trainer=one_thread, **common)
        digests.add(load(out).digest)
    assert len(digests) == 1


def test_a_router_is_served_before_it_is_used(router: Path) -> None:
    found, shown = load(router), json.loads((router / "metrics.json").read_text())
    assert found.side == "below"
    assert shown["served/prompts"] == 5  # of 48: neither learned from, nor was the threshold
    assert 0 <= shown["served/routed_share"] <= 1
    assert shown["served/gain_low"] <= shown["served/gain"] <= shown["served/gain_high"]
    assert shown["threshold"] == found.threshold


def test_random_routing_has_the_routers_share(monkeypatch: pytest.MonkeyPatch) -> None:
    (query,) = queries(1)
    asked = []

    def served(policy: Any, *_: Any, **__: Any) -> dict[str, Any]:
        asked.append(policy.offload)
        answer = SimpleNamespace(tokens=[1], origins=["cloud", "device", "device", "device"])
        return {query.request.session: answer}

    monkeypatch.setattr(serving_eval, "run_untimed", served)
    monkeypatch.setattr(serving_eval, "RoutedOffload", lambda _: NeverOffload())
    models: Any = SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda _: "none"))
    router: Any = SimpleNamespace(name="route")
    found = serving_eval.evaluate_router(router, models, [query], ExactMatch(), 0, silent)
    assert found.routed_share == 0.25
    assert asked[-1] == RandomOffload(0.25)


def test_co_llm_trains_its_small_model_or_leaves_it(
    first: Path, common: dict[str, Any], one_thread: Trainer, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    recipe = CoLLMRecipe(epochs=2, joint_epochs=1, joint_batch_size=8)
    for joint in (False, True):
        out = tmp_path / str(joint)
        out.mkdir()
        train_co_llm(out, routes=first, joint=joint, recipe=recipe, routed_share=0.2, trainer=one_thread, **common)
        assert load(out).side == "above"
        assert (out / "config.json").is_file() is joint
    before, after = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
        for path in (common["device"].name_or_path, tmp_path / "True")
    )
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_a_small_model_sees_its_own_states_again(first: Path, common: dict[str, Any]) -> None:
    """One that was not trained: states, labels and tokens lie where they were."""
    from transformers import AutoModelForCausalLM

    states = read(first)
    model = AutoModelForCausalLM.from_pretrained(common["device"].name_or_path, dtype=torch.float32).eval()
    vocabulary = len(Tokenizer(common["device"].name_or_path))
    again = reencode_states(model, states, vocabulary)
    assert np.allclose(again.hidden, states.hidden, atol=1e-4)
    assert np.allclose(again.small_logprobs, states.small_logprobs, atol=1e-4)
    assert np.array_equal(again.small_preferred, again.small_logprobs >= again.large_logprobs)
    assert not np.array_equal(again.small_preferred, states.small_preferred)
    head = linear_classifier(states.hidden.shape[1])
    lesson = JointModule(
        model, head, torch.zeros(states.hidden.shape[1]), torch.ones(states.hidden.shape[1]), 1e-3, vocabulary
    )
    with torch.no_grad():
        loss = lesson.loss(_collate(_labelled_texts(states)))
    odds = [torch.from_numpy(each) for each in (states.small_logprobs, states.large_logprobs)]
    assert loss.item() == pytest.approx(marginal_nll(torch.zeros(len(states)), *odds).mean().item(), abs=1e-4)


def test_a_router_that_worsens_answers_is_refused() -> None:
    fair = serving_eval.RouterEvaluation(240, 0.07, 0.3, 0.31, 0.3, -0.01, -0.03, 0.01)
    serving_eval.check(fair)
    with pytest.raises(ValueError, match=r"worse than none: quality 0\.200 with 7\.0%.* 0\.310 without, on 240"):
        serving_eval.check(serving_eval.RouterEvaluation(240, 0.07, 0.2, 0.31, 0.3, -0.11, -0.16, -0.06))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.2])
def test_a_share_of_0_or_1_is_refused(share: float, first: Path, common: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="above 0, below 1"):
        train_citer(tmp_path, routes=(first,), routed_share=share, **common)
