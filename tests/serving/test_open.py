"""What opening a setup's models makes of them, on checkpoints of a few thousand weights."""

from pathlib import Path

import checkpoints
import pytest

from serving.deployment.model_loading import open_models
from serving.engines.models import Checkpoint
from serving.learned.medusa import WEIGHTS, Medusa
from serving.messages import HEADS, Drafted, Forward, Generate, Rows, Span, Stop
from serving.policy.engine_requirements import Provision

WHOLE = Span(0, 3, embed=True, head=True)
ASKED = Rows("s", 0, 3, (2, 3, 4), 0, "tree")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    """Models of different widths."""
    small = checkpoints.save(tmp_path / "small")
    large = checkpoints.save(tmp_path / "large", layers=3, hidden=32)
    return Checkpoint(path=small), Checkpoint(path=large)


@pytest.fixture
def medusa(pair: tuple[Checkpoint, Checkpoint], tmp_path: Path) -> Medusa:
    """Heads of the large model, which begin as its own."""
    from safetensors.torch import save_file

    from serving.engines.torch.draft_heads import blank_heads
    from serving.engines.torch.model import open_model

    heads = blank_heads(open_model(pair[1].where), 2)
    save_file({name: weight.clone() for name, weight in heads.state_dict().items()}, tmp_path / WEIGHTS)
    return Medusa(2, ((0,), (1,), (0, 0)), 1, str(tmp_path))


def test_heads_of_the_target_propose_wherever_it_ends_and_leave_the_drafter_alone(
    pair: tuple[Checkpoint, Checkpoint], medusa: Medusa
) -> None:
    models = open_models(*pair, provision=Provision(medusa=medusa))
    for engine in (models.cloud, models.here):
        outcome, _ = engine.execute(Forward(WHOLE, (ASKED,), ("last",), (HEADS,)))
        (result,) = outcome  # type: ignore[misc]
        assert result.verdict.proposal[1] == (-1, -1, 0)
    drafted, _ = models.device.execute(Generate("s", 0, (2, 3), Stop(3)))
    assert isinstance(drafted, Drafted)
    assert len(drafted.tokens) == 3
