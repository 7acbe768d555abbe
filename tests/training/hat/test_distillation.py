"""The losses of adapter (Eq. 4) and Medusa heads, on the right tokens."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from serving.engines.torch.draft_heads import attach_adapter
from serving.engines.torch.model import DecomposedModel
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import SequenceCache
from training.fitting.recipe import HATRecipe
from training.fitting.token_subset import TokenSubset
from training.hat import distillation as distillation_module
from training.hat.distillation import AdapterDistillation, MedusaModule, _window_mask, loss_tokens
from training.hat.trace import HiddenStateTrace
from training.hat.train import HiddenStateBatch, HiddenStateLoader, collate

RECIPE, CPU = HATRecipe(steps=3), torch.device("cpu")


@pytest.fixture
def batch(found: HiddenStateTrace) -> HiddenStateBatch:
    return collate(found, (0, 5, 9), prompt_loss_weight=0.25)


def drafted(model: DecomposedModel, tokens: Tensor, distillation: AdapterDistillation) -> Tensor:
    """The hidden states that the engine's draft model passes to its head."""
    drafter = attach_adapter(model, 2, distillation.trained_module)
    stack = ModelRunner(drafter, model.vocab_size)
    hidden = stack.run(stack.embed(tokens.tolist()), [RunnerInput(SequenceCache(drafter, 0, 3), len(tokens))], 0, 3)
    return stack.apply_norm(hidden)


def smooth_l1(one: Tensor, other: Tensor) -> Tensor:
    apart = (one - other).abs()
    return torch.where(apart < 1, apart**2 / 2, apart - 0.5).mean()


def test_the_loss_is_equation_4(batch: HiddenStateBatch, found: HiddenStateTrace, model: DecomposedModel) -> None:
    """Position by position, from the states that the engine's own draft model computes."""
    distillation = AdapterDistillation(model, 2, RECIPE, ce_weight=0.1)
    total = weight = 0.0
    for text in (0, 5, 9):
        begin, end = found.span(text)
        engine = AdapterDistillation(model, 2, RECIPE, ce_weight=0.1)
        for module in engine.trained_module.modules():
            if hasattr(module, "config"):
                module.config = model.layers[0].self_attn.config
        with torch.no_grad():
            own = drafted(model, found.tokens[begin:end], engine)
            deep = model.norm(found.deep[begin:end].float())
            for i in range(end - begin - 1):
                chances = model.lm_head(deep[i]).softmax(-1)
                surprise = -(chances * model.lm_head(own[i]).log_softmax(-1)).sum()
                counts = 1.0 if i >= found.prompt_lens[text] - 1 else 0.25
                total += counts * float(smooth_l1(deep[i], own[i]) + 0.1 * surprise)
                weight += counts
    assert distillation.loss(batch).item() == pytest.approx(total / weight, rel=2e-3)


def test_only_the_adapter_learns(batch: HiddenStateBatch, model: DecomposedModel) -> None:
    distillation = AdapterDistillation(model, 2, RECIPE, ce_weight=0.1)
    distillation.loss(batch).backward()
    assert all(weight.grad is not None for weight in distillation.trained_module.parameters())
    assert all(weight.grad is None for part in (model.lm_head, model.norm) for weight in part.parameters())
    assert sum(weight.numel() for weight in distillation.parameters()) == 4 * 64 * 64 + 64


def test_states_of_another_token_change_the_loss(batch: HiddenStateBatch, model: DecomposedModel) -> None:
    distillation = AdapterDistillation(model, 8, RECIPE, ce_weight=0.1)
    torch.nn.init.zeros_(distillation.trained_module.self_attn.o_proj.weight)  # nothing is added to what goes in
    same = replace(batch, shallow=batch.deep)
    assert distillation.top1_agreement(same) == [pytest.approx(1.0)]
    assert distillation.top1_agreement(replace(same, deep=batch.deep.roll(1, 1)))[0] < 0.95


def test_padding_does_not_change_the_loss(found: HiddenStateTrace, model: DecomposedModel) -> None:
    distillation = AdapterDistillation(model, 2, RECIPE, ce_weight=0.1)
    lengths = [found.span(i)[1] - found.span(i)[0] for i in range(len(found))]
    short, long = lengths.index(min(lengths)), lengths.index(max(lengths))
    alone, padded = collate(found, (short,), 0.0), collate(found, (short, long), 0.0)
    weights = torch.cat([alone.loss_weights[0], torch.zeros(max(lengths) - min(lengths))])[None]
    only = replace(padded, loss_weights=weights * torch.tensor([[1.0], [0.0]]))
    assert distillation.loss(only).item() == pytest.approx(distillation.loss(alone).item(), rel=1e-5)


def test_medusa_head_k_learns_the_token_k_after_the_next(
    batch: HiddenStateBatch, found: HiddenStateTrace, model: DecomposedModel
) -> None:
    taught = MedusaModule(model, 3, RECIPE, decay=0.8).predictions(batch)
    for k, (logits, tokens, weights) in enumerate(taught, start=1):
        wanted, counted = [], []
        for row, text in enumerate((0, 5, 9)):
            begin, end = found.span(text)
            wanted += found.tokens[begin + 1 + k : end].tolist()
            counted += batch.loss_weights[row, : end - begin - 1 - k].tolist()
        assert tokens.tolist() == wanted
        assert weights.tolist() == pytest.approx(counted)
        assert len(logits) == len(wanted)


def test_medusa_heads_start_as_the_targets_head(batch: HiddenStateBatch, model: DecomposedModel) -> None:
    """So they guess the next token at first, which is wrong for them."""
    heads = MedusaModule(model, 2, RECIPE, decay=0.5)
    own = model.lm_head(model.norm(batch.deep))
    expected = sum(
        0.5**k * (F.cross_entropy(logits, tokens, reduction="none") * weights).sum()
        for k, (logits, tokens, weights) in enumerate(heads.predictions(batch), start=1)
    )
    used = (batch.loss_weights > 0)[:, :-2] & (batch.tokens[:, 2:] >= 0)
    assert torch.allclose(heads.predictions(batch)[0][0], own[:, :-2][used])
    assert heads.loss(batch).item() == pytest.approx(torch.as_tensor(expected).item())


def test_parts_of_a_batch_sum_to_its_loss(batch: HiddenStateBatch, model: DecomposedModel) -> None:
    for study in (AdapterDistillation(model, 2, RECIPE, 0.1), MedusaModule(model, 2, RECIPE, 0.8)):
        parts = [study.loss(batch.shard(rank, 2)).item() for rank in range(2)]
        assert sum(parts) / 2 == pytest.approx(study.loss(batch).item(), rel=1e-5)


def test_every_epoch_has_every_text_once(found: HiddenStateTrace) -> None:
    loader = HiddenStateLoader(found, range(12), batch_size=4, steps=6, prompt_loss_weight=0.0, seed=0)
    order = [text for step in range(6) for text in loader._batch_texts(step)]
    assert sorted(order[:12]) == sorted(order[12:]) == list(range(12))
    assert order[:12] != order[12:]
    assert len(list(loader)) == len(loader) == 6


def test_training_applies_the_sliding_window() -> None:
    assert _window_mask(5, None, CPU) is None is _window_mask(5, 5, CPU)
    mask = _window_mask(3, 2, CPU)
    assert mask is not None
    assert mask[0, 0].tolist() == [[True, False, False], [True, True, False], [False, True, True]]


def test_a_small_vocabulary_is_learned_whole_and_a_large_one_by_its_texts_tokens(
    found: HiddenStateTrace, model: DecomposedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loss_tokens(found, model.vocab_size) is None
    used = set(found.tokens.tolist())
    monkeypatch.setattr(distillation_module, "MAX_LOSS_TOKENS", len(used) + 3)
    tokens = loss_tokens(found, model.vocab_size)
    assert tokens is not None
    others = [token for token in range(model.vocab_size) if token not in used]
    assert tokens.tokens.tolist() == sorted([*used, *others[:3]])


def test_a_loss_over_all_tokens_is_the_loss(batch: HiddenStateBatch, model: DecomposedModel) -> None:
    whole, part = (
        AdapterDistillation(model, 2, RECIPE, ce_weight=0.1, tokens=tokens)
        for tokens in (None, TokenSubset(torch.arange(model.vocab_size), model.vocab_size))
    )
    assert part.loss(batch).item() == pytest.approx(whole.loss(batch).item(), rel=1e-5)
    assert part.top1_agreement(batch) == whole.top1_agreement(batch)
    used = TokenSubset(torch.unique(batch.tokens.clamp_min(0)), model.vocab_size)
    few = AdapterDistillation(model, 2, RECIPE, ce_weight=0.1, tokens=used)
    assert few.loss(batch).item() < whole.loss(batch).item()  # fewer tokens to be wrong about


def test_heads_that_learned_some_rows_are_whole_again(
    batch: HiddenStateBatch, model: DecomposedModel, found: HiddenStateTrace
) -> None:
    tokens = torch.unique(found.tokens.long())
    module = MedusaModule(model, 2, RECIPE, 0.8, TokenSubset(tokens, model.vocab_size))
    whole = MedusaModule(model, 2, RECIPE, 0.8)
    assert module.rank_accuracies(found, (0, 5)) == whole.rank_accuracies(found, (0, 5))  # as served, over all rows
    module.loss(batch).backward()
    with torch.no_grad():
        for weight in module.trained_module.parameters():
            weight -= 0.1 * weight.grad
    for head in module.whole_heads():
        changed = (head.out.weight - model.lm_head.weight).abs().sum(-1) > 0
        assert changed[tokens].any()
        assert not changed[[token for token in range(model.vocab_size) if token not in set(tokens.tolist())]].any()
