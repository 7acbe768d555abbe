"""A process's share of a model: DeepSpeed's AutoTP parts the attention and MLP of the blocks, and nothing else."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
from torch import distributed

from serving.engines.tensor_parallel.commands import Seat
from serving.engines.torch.model import DTYPES, Model, load, take_apart
from serving.messages import Span

_REDUCED = {"gpt_neox": ("attention.dense", "mlp.dense_4h_to_h")}
"""Linear layers whose products are summed over the processes, by architecture; those of all others are Llama's."""
_LLAMA = ("self_attn.o_proj", "mlp.down_proj")


def loaded(seat: Seat) -> Any:
    """The whole checkpoint, on the CPU: it is parted before it goes anywhere else. Raises ValueError as `load` does."""
    torch.set_num_threads(1)
    with _environment(seat):
        import_module("deepspeed")  # takes seconds: now, while others do the same
    return load(seat.path, dtype=seat.dtype)


def open_share(causal: Any, seat: Seat) -> Model:
    """Meets the other processes and keeps this one's share of a model that each has loaded.

    Raises RuntimeError when another one does not come.
    """
    meet(seat)
    with _environment(seat):
        part(causal, seat)
    model = take_apart(causal, device=seat.device, name=seat.path)
    span = seat.span or Span(0, len(model.layers), embed=True, head=True)
    return model.only(span if seat.rank == 0 else Span(span.first, span.last))


def meet(seat: Seat) -> None:
    """Joins the process group, over loopback alone. Collectives that nobody answers in time raise RuntimeError."""
    if seat.kind != "cpu":
        torch.cuda.set_device(seat.rank)
    with _environment(seat):
        distributed.init_process_group(
            "gloo" if seat.kind == "cpu" else "nccl", f"file://{seat.meeting}", rank=seat.rank, world_size=seat.ways,
            timeout=timedelta(seconds=seat.patience_s),
        )  # fmt: skip


def leave() -> None:
    """Ends the process group, so that another model can be shared."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def part(causal: Any, seat: Seat) -> None:
    """Parts the blocks of a loaded model in place; its configuration then tells what this process has.

    The base model is given to DeepSpeed without its head, which it would part, too.
    """
    import deepspeed  # type: ignore[import-untyped]
    from deepspeed.ops import __compatible_ops__ as operations  # type: ignore[import-untyped]

    operations["deepspeed_shm_comm"] = False  # else it compiles a kernel, and fails where it cannot
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    config, base, world = causal.config, causal.base_model, distributed.group.WORLD
    deepspeed.comm.init_distributed(dist_init_required=False, verbose=False)
    deepspeed.init_inference(
        base,
        dtype=DTYPES[seat.dtype],
        replace_with_kernel_inject=False,
        injection_policy={type(base.layers[0]): _REDUCED.get(config.model_type, _LLAMA)},
        tensor_parallel={"tp_size": seat.ways, "tp_group": world, "mpu": _World(world)},
    )
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads  # before there are fewer
    config.num_attention_heads = heads // seat.ways
    if kv_heads:
        config.num_key_value_heads = kv_heads // seat.ways


@dataclass(frozen=True)
class _World:
    """Who shares a model, as DeepSpeed asks for it; without it, it would remember a group that ended."""

    group: Any

    def get_model_parallel_group(self) -> Any:
        return self.group


@contextmanager
def _environment(seat: Seat) -> Iterator[None]:
    """What torch and DeepSpeed read while a group begins; deprecations that DeepSpeed walks into are not shown."""
    wanted = {"LOCAL_RANK": str(seat.rank), "RANK": str(seat.rank), "WORLD_SIZE": str(seat.ways)}
    if seat.kind == "cpu":
        wanted["DS_ACCELERATOR"] = "cpu"
    if sys.platform == "linux":
        wanted |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    found = {name: os.environ.get(name) for name in wanted}
    os.environ |= wanted
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for name, value in found.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
