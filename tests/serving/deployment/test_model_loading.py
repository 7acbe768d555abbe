"""What opening a setup's models makes of them, on checkpoints of a few thousand weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.deployment.model_loading import load_models, load_side
from serving.engines.models import Checkpoint, ModelConfig, ModelPair
from serving.engines.torch.attention import attend_together
from serving.engines.torch.batch_invariance import attend_alone
from serving.engines.torch.tensor_store import TensorStore
from serving.learned.medusa import WEIGHTS, MedusaHeads
from serving.messages import MEDUSA_TREE, DraftOutcome, DraftStopRule, DraftWork, ForwardWork, SequenceSlice, Span
from serving.policy.policy import EngineRequirements
from tests.support.fake_setup import setup
from tests.support.tiny_models import save_checkpoint

WHOLE = Span(0, 3, embedding=True, lm_head=True)
ASKED = SequenceSlice("s", 0, 3, (2, 3, 4), 0, "greedy")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    """Models of different widths."""
    small = save_checkpoint(tmp_path / "small")
    large = save_checkpoint(tmp_path / "large", layers=3, hidden=32)
    return Checkpoint(path=small), Checkpoint(path=large)


@pytest.fixture
def medusa(pair: tuple[Checkpoint, Checkpoint], tmp_path: Path) -> MedusaHeads:
    """Heads of the large model, which begin as its own."""
    from safetensors.torch import save_file

    from serving.engines.torch.draft_heads import init_medusa_heads
    from serving.engines.torch.model import load_model

    heads = init_medusa_heads(load_model(pair[1].name_or_path), 2)
    save_file({name: weight.clone() for name, weight in heads.state_dict().items()}, tmp_path / WEIGHTS)
    return MedusaHeads(2, ((0,), (1,), (0, 0)), 1, str(tmp_path))


def test_medusa_heads_are_attached_to_every_end_of_the_target_only(
    pair: tuple[Checkpoint, Checkpoint], medusa: MedusaHeads
) -> None:
    models = load_models(*pair, requirements=EngineRequirements(medusa=medusa))
    for engine in (models.cloud, models.device_target):
        outcome, _ = engine.execute(ForwardWork(WHOLE, (ASKED,), ("last",), (MEDUSA_TREE,)))
        (result,) = outcome  # type: ignore[misc]
        assert result.verdict.next_tree.parents == (-1, -1, 0)
    drafted, _ = models.device.execute(DraftWork("s", 0, (2, 3), DraftStopRule(3)))
    assert isinstance(drafted, DraftOutcome)
    assert len(drafted.tokens) == 3


def test_exact_decoding_makes_the_target_batch_invariant_and_not_the_drafter(
    pair: tuple[Checkpoint, Checkpoint],
) -> None:
    models: Any = load_models(*pair, requirements=EngineRequirements(batch_invariant=True))
    used = [engine.model.attention_kernel for engine in (models.device, models.cloud, models.device_target)]
    assert used == [attend_together, attend_alone, attend_alone]


@pytest.mark.parametrize("side", ["device", "cloud"])
def test_each_side_knows_the_width_of_the_large_model(pair: tuple[Checkpoint, Checkpoint], side: Any) -> None:
    made = setup("sled")
    models = [
        ModelConfig(path=each.path, timed_architecture=timed.timed_architecture)
        for each, timed in zip(pair, (made.pair.device, made.pair.cloud), strict=True)
    ]
    assert load_side(replace(made, pair=ModelPair(*models)), side, TensorStore()).hidden_size == 32
