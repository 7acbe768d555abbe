"""Opens a model in several processes: who cannot share it is told before any of them starts."""

from pathlib import Path
from tempfile import TemporaryDirectory

from serving.engines.tensor_parallel.seat import PATIENCE_S, Seat
from serving.engines.tensor_parallel.shard import loaded, open_share
from serving.engines.tensor_parallel.ways import check_heads
from serving.engines.tensor_parallel.worker_group import Team
from serving.engines.torch.model import Model, check_checkpoint
from serving.messages import Span


def open_shared(
    path: str,
    ways: int,
    *,
    dtype: str = "fp32",
    accelerator: str = "cpu",
    span: Span | None = None,
    patience_s: float = PATIENCE_S,
) -> tuple[Model, Team]:
    """This process's share of a checkpoint, and the team that holds the others; of a `span` that alone.

    Every process reads the whole checkpoint and keeps its share, so memory must hold `ways` copies for a moment.
    Raises ValueError for a model that cannot be parted so, too few GPUs, or a second one in this process; TeamError
    when a process does not come to its share.
    """
    check_checkpoint(path)
    _check_here(path, ways, accelerator)
    with TemporaryDirectory(prefix="tandem-") as folder:
        seats = [
            Seat(rank, ways, path, dtype, accelerator, str(Path(folder) / "meeting"), span, patience_s)
            for rank in range(ways)
        ]
        team = Team(seats[1:])
        try:
            causal = loaded(seats[0])
            team.loaded()
            with team.together():
                model = open_share(causal, seats[0])
        except BaseException:
            team.close()
            raise
    return model, team


def _check_here(path: str, ways: int, accelerator: str) -> None:
    import torch
    from torch import distributed
    from transformers import AutoConfig

    check_heads(ways, AutoConfig.from_pretrained(path).to_dict(), path)
    if distributed.is_initialized():
        raise ValueError(
            f"model.cloud.ways is {ways}, and this process shares a model already; close that first, or set ways=1"
        )
    if not accelerator.startswith("cpu") and torch.cuda.device_count() < ways:
        raise ValueError(
            f"model.cloud.ways is {ways}, and torch sees {torch.cuda.device_count()} GPUs here; each process needs one "
            "of its own"
        )
