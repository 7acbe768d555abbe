"""What opening a setup's models makes of them, on checkpoints of a few thousand weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from serving.core.decoding import Decoding
from serving.deployment.model_loading import load_models, load_side
from serving.engines.models import Checkpoint, ModelConfig, ModelPair
from serving.engines.torch import packed_layers
from serving.engines.torch.attention import attend_together
from serving.engines.torch.batch_invariance import attend_alone
from serving.engines.torch.model import DecomposedModel, load_model
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import SequenceCache
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


def test_weights_that_are_not_packed_are_torchs_own(pair: tuple[Checkpoint, Checkpoint]) -> None:
    asked = EngineRequirements().with_decoding(Decoding(packed_weights=False))
    models: Any = load_models(*pair, requirements=asked)
    for engine, checkpoint in zip((models.device, models.cloud), pair, strict=True):
        plain = load_model(checkpoint.name_or_path)
        assert [type(layer) for layer in engine.model.layers] == [type(layer) for layer in plain.layers]
        assert torch.equal(logits(engine.model), logits(plain))


@torch.inference_mode()
def logits(model: DecomposedModel) -> torch.Tensor:
    """Of the tokens of `ASKED`."""
    runner, depth = ModelRunner(model, model.vocab_size), len(model.layers)
    rows = [RunnerInput(SequenceCache(model, 0, depth), len(ASKED.tokens))]
    return runner.logits(runner.run(runner.embed(list(ASKED.tokens)), rows, 0, depth))


@pytest.mark.skipif(not packed_layers.packs(torch.float32), reason="this CPU multiplies no packed weights")
@pytest.mark.parametrize(
    ("sessions", "verifies", "packed"),
    [(1, True, (False, True)), (1, False, (False, False)), (4, False, (True, True)), (None, True, (True, True))],
)
def test_a_model_of_short_passes_keeps_its_weights_where_packed_ones_are_slower(
    pair: tuple[Checkpoint, Checkpoint],
    monkeypatch: pytest.MonkeyPatch,
    sessions: int | None,
    verifies: bool,
    packed: tuple[bool, bool],
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(packed_layers, "MIN_PACKED", 0)
    models: Any = load_models(*pair, requirements=EngineRequirements(sessions=sessions, verifies_drafts=verifies))
    heads = (models.device.model.lm_head, models.cloud.model.lm_head)
    assert tuple(isinstance(head, packed_layers.PackedLinear) for head in heads) == packed


@pytest.mark.parametrize("side", ["device", "cloud"])
def test_each_side_knows_the_width_of_the_large_model(pair: tuple[Checkpoint, Checkpoint], side: Any) -> None:
    made = setup("sled")
    models = [
        ModelConfig(path=each.path, timed_architecture=timed.timed_architecture)
        for each, timed in zip(pair, (made.pair.device, made.pair.cloud), strict=True)
    ]
    assert load_side(replace(made, pair=ModelPair(*models)), side, TensorStore()).hidden_size == 32
