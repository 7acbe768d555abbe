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

from serving.engines.tensor_parallel.commands import RankConfig
from serving.engines.torch.model import DTYPES, DecomposedModel, decompose, load_causal_lm
from serving.messages import Span

_ALL_REDUCED = {"gpt_neox": ("attention.dense", "mlp.dense_4h_to_h")}
"""Linear layers whose products are summed over the processes, by architecture; those of all others are Llama's."""
_LLAMA_ALL_REDUCED = ("self_attn.o_proj", "mlp.down_proj")


def load_unsharded(config: RankConfig) -> Any:
    """The whole checkpoint, on the CPU: it is parted before it goes anywhere else. Raises ValueError as `load` does."""
    torch.set_num_threads(1)
    with _environment(config):
        import_module("deepspeed")  # takes seconds: now, while others do the same
    return load_causal_lm(config.path, dtype=config.dtype)


def load_shard(causal: Any, config: RankConfig) -> DecomposedModel:
    """Meets the other processes and keeps this one's share of a model that each has loaded.

    Raises RuntimeError when another one does not come.
    """
    join_process_group(config)
    with _environment(config):
        shard_model(causal, config)
    model = decompose(causal, device=config.device, name=config.path)
    span = config.span or Span(0, len(model.layers), embedding=True, lm_head=True)
    return model.restricted_to(span if config.rank == 0 else Span(span.start_layer, span.end_layer))


def join_process_group(config: RankConfig) -> None:
    """Joins the process group, over loopback alone. Collectives that nobody answers in time raise RuntimeError."""
    if config.device_type != "cpu":
        torch.cuda.set_device(config.rank)
    with _environment(config):
        distributed.init_process_group(
            "gloo" if config.device_type == "cpu" else "nccl", f"file://{config.rendezvous_file}", rank=config.rank, world_size=config.world_size,
            timeout=timedelta(seconds=config.timeout_s),
        )  # fmt: skip


def leave_process_group() -> None:
    """Ends the process group, so that another model can be shared."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def shard_model(causal: Any, rank_config: RankConfig) -> None:
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
        dtype=DTYPES[rank_config.dtype],
        replace_with_kernel_inject=False,
        injection_policy={type(base.layers[0]): _ALL_REDUCED.get(config.model_type, _LLAMA_ALL_REDUCED)},
        tensor_parallel={"tp_size": rank_config.world_size, "tp_group": world, "mpu": _ModelParallelUnit(world)},
    )
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads  # before there are fewer
    config.num_attention_heads = heads // rank_config.world_size
    if kv_heads:
        config.num_key_value_heads = kv_heads // rank_config.world_size


@dataclass(frozen=True)
class _ModelParallelUnit:
    """Who shares a model, as DeepSpeed asks for it; without it, it would remember a group that ended."""

    group: Any

    def get_model_parallel_group(self) -> Any:
        return self.group


@contextmanager
def _environment(config: RankConfig) -> Iterator[None]:
    """What torch and DeepSpeed read while a group begins; deprecations that DeepSpeed walks into are not shown."""
    wanted = {"LOCAL_RANK": str(config.rank), "RANK": str(config.rank), "WORLD_SIZE": str(config.world_size)}
    if config.device_type == "cpu":
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
