"""What is learned is Eq. 4, and Medusa's loss, of the right tokens."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from serving.engines.torch.draft_heads import attached
from serving.engines.torch.model import Model
from serving.engines.torch.model_runner import Lot, Stack
from serving.engines.torch.sequence_cache import Slot
from training.hat.batches import Batch, Batches, Recipe, gather
from training.hat.distillation import Distillation, Foresight, _mask
from training.hat.trace import Trace

RECIPE, CPU = Recipe(steps=3), torch.device("cpu")


@pytest.fixture
def batch(found: Trace) -> Batch:
    return gather(found, (0, 5, 9), prompt_weight=0.25)


def drafted(model: Model, tokens: Tensor, distillation: Distillation) -> Tensor:
    """What the engine's draft model feeds its head with."""
    drafter = attached(model, 2, distillation.trained)
    stack = Stack(drafter, model.vocabulary)
    hidden = stack.run(stack.embed(tokens.tolist()), [Lot(Slot(drafter, 0, 3), len(tokens))], 0, 3)
    return stack.normed(hidden)


def smooth_l1(one: Tensor, other: Tensor) -> Tensor:
    apart = (one - other).abs()
    return torch.where(apart < 1, apart**2 / 2, apart - 0.5).mean()


def test_the_loss_is_equation_4(batch: Batch, found: Trace, model: Model) -> None:
    """Position by position, from the states that the engine's own draft model computes."""
    distillation = Distillation(model, 2, RECIPE, w_ce=0.1)
    total = weight = 0.0
    for text in (0, 5, 9):
        begin, end = found.span(text)
        engine = Distillation(model, 2, RECIPE, w_ce=0.1)
        for module in engine.trained.modules():
            if hasattr(module, "config"):
                module.config = model.layers[0].self_attn.config
        with torch.no_grad():
            own = drafted(model, found.tokens[begin:end], engine)
            deep = model.norm(found.deep[begin:end].float())
            for i in range(end - begin - 1):
                chances = model.head(deep[i]).softmax(-1)
                surprise = -(chances * model.head(own[i]).log_softmax(-1)).sum()
                counts = 1.0 if i >= found.prompts[text] - 1 else 0.25
                total += counts * float(smooth_l1(deep[i], own[i]) + 0.1 * surprise)
                weight += counts
    assert distillation.loss(batch).item() == pytest.approx(total / weight, rel=2e-3)


def test_only_the_adapter_learns(batch: Batch, model: Model) -> None:
    distillation = Distillation(model, 2, RECIPE, w_ce=0.1)
    distillation.loss(batch).backward()
    assert all(weight.grad is not None for weight in distillation.trained.parameters())
    assert all(weight.grad is None for part in (model.head, model.norm) for weight in part.parameters())
    assert sum(weight.numel() for weight in distillation.parameters()) == 4 * 64 * 64 + 64


def test_states_of_another_token_teach_something_else(batch: Batch, model: Model) -> None:
    distillation = Distillation(model, 8, RECIPE, w_ce=0.1)
    torch.nn.init.zeros_(distillation.trained.self_attn.o_proj.weight)  # nothing is added to what goes in
    same = replace(batch, shallow=batch.deep)
    assert distillation.agreement(same) == [pytest.approx(1.0)]
    assert distillation.agreement(replace(same, deep=batch.deep.roll(1, 1)))[0] < 0.95


def test_padding_changes_nothing(found: Trace, model: Model) -> None:
    distillation = Distillation(model, 2, RECIPE, w_ce=0.1)
    lengths = [found.span(i)[1] - found.span(i)[0] for i in range(len(found))]
    short, long = lengths.index(min(lengths)), lengths.index(max(lengths))
    alone, padded = gather(found, (short,), 0.0), gather(found, (short, long), 0.0)
    only = replace(padded, weights=torch.cat([alone.weights[0], torch.zeros(max(lengths) - min(lengths))])[None]
                   * torch.tensor([[1.0], [0.0]]))  # fmt: skip
    assert distillation.loss(only).item() == pytest.approx(distillation.loss(alone).item(), rel=1e-5)


def test_head_k_is_taught_the_token_k_behind_the_next(batch: Batch, found: Trace, model: Model) -> None:
    taught = Foresight(model, 3, RECIPE, decay=0.8).guesses(batch)
    for k, (logits, tokens, weights) in enumerate(taught, start=1):
        wanted, counted = [], []
        for row, text in enumerate((0, 5, 9)):
            begin, end = found.span(text)
            wanted += found.tokens[begin + 1 + k : end].tolist()
            counted += batch.weights[row, : end - begin - 1 - k].tolist()
        assert tokens.tolist() == wanted
        assert weights.tolist() == pytest.approx(counted)
        assert len(logits) == len(wanted)


def test_heads_begin_as_the_targets_own(batch: Batch, model: Model) -> None:
    """So they guess the next token at first, which is wrong for them."""
    heads = Foresight(model, 2, RECIPE, decay=0.5)
    own = model.head(model.norm(batch.deep))
    expected = sum(
        0.5**k * (F.cross_entropy(logits, tokens, reduction="none") * weights).sum()
        for k, (logits, tokens, weights) in enumerate(heads.guesses(batch), start=1)
    )
    used = (batch.weights > 0)[:, :-2] & (batch.tokens[:, 2:] >= 0)
    assert torch.allclose(heads.guesses(batch)[0][0], own[:, :-2][used])
    assert heads.loss(batch).item() == pytest.approx(torch.as_tensor(expected).item())


def test_shares_of_a_batch_make_the_whole(batch: Batch, model: Model) -> None:
    for study in (Distillation(model, 2, RECIPE, 0.1), Foresight(model, 2, RECIPE, 0.8)):
        parts = [study.loss(batch.share(rank, 2)).item() for rank in range(2)]
        assert sum(parts) / 2 == pytest.approx(study.loss(batch).item(), rel=1e-5)


def test_every_epoch_has_every_text_once(found: Trace) -> None:
    loader = Batches(found, range(12), rows=4, steps=6, prompt_weight=0.0, seed=0)
    order = [text for step in range(6) for text in loader._of(step)]
    assert sorted(order[:12]) == sorted(order[12:]) == list(range(12))
    assert order[:12] != order[12:]
    assert len(list(loader)) == len(loader) == 6


def test_a_window_is_seen_in_training_too() -> None:
    assert _mask(5, None, CPU) is None is _mask(5, 5, CPU)
    mask = _mask(3, 2, CPU)
    assert mask is not None
    assert mask[0, 0].tolist() == [[True, False, False], [True, True, False], [False, True, True]]
