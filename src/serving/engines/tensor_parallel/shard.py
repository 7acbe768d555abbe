"""A process's share of a model: DeepSpeed's AutoTP parts the attention and MLP of the blocks, and nothing else."""

import logging
import os
import signal
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed

from serving.engines.tensor_parallel.commands import FreeCache, InputSpec, OpenCache, RankConfig, RunLayers, TPCommand
from serving.engines.torch.model import DTYPES, DecomposedModel, decompose, load_causal_lm
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import CacheHoleError, KVCacheManager
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


def run_worker(config: RankConfig, pipe: Connection) -> None:
    """Its whole life: the leader decides when it ends, also by dying.

    It says None when the checkpoint is read, again when it has its share, and after each lot of orders; or, once, what
    went wrong.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal: the leader decides
    try:
        causal = load_unsharded(config)
        pipe.send(None)
        follower = TPWorker(load_shard(causal, config))
        del causal  # embedding and head are the leader's
        pipe.send(None)
        while (orders := pipe.recv()) is not None:
            follower.execute(orders)
            pipe.send(None)
        leave_process_group()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the leader is gone, and with it the group that an orderly end would wait for
    except Exception as problem:
        with suppress(OSError):
            pipe.send(f"{type(problem).__name__}: {problem}")
        os._exit(1)


class TPWorker:
    """Does with its share what the leader's engine does with its own, but for embedding, head and verdicts."""

    def __init__(self, model: DecomposedModel) -> None:
        self._model, self._runner = model, ModelRunner(model, model.vocab_size)
        self._caches: defaultdict[int, KVCacheManager] = defaultdict(lambda: KVCacheManager(model))

    @torch.inference_mode()
    def execute(self, commands: tuple[TPCommand, ...]) -> None:
        for order in commands:
            match order:
                case OpenCache():
                    self._open(order)
                case FreeCache():
                    self._caches[order.cache_id].drop(order.session, order.start_layer)
                case RunLayers():
                    self._run(order)
        if self._model.device.type != "cpu":
            torch.cuda.synchronize()  # who answers has done it

    def _open(self, command: OpenCache) -> None:
        cache = self._caches[command.cache_id]
        cache.open(
            command.session, command.start_layer, command.end_layer, command.cached_len
        )  # as verdicts left the leader's
        with suppress(CacheHoleError):  # its node has heard of it
            cache.open(command.session, command.start_layer, command.end_layer, command.start, command.kept_tree_nodes)

    def _run(self, command: RunLayers) -> None:
        lots = [self._runner_input(share, self._caches[command.cache_id]) for share in command.inputs]
        hidden = self._runner.empty_hidden.new_empty(sum(lot.num_tokens for lot in lots), self._model.hidden_size)
        distributed.broadcast(hidden, 0)
        self._runner.run(hidden, lots, command.start_layer, command.end_layer)

    def _runner_input(self, spec: InputSpec, cache: KVCacheManager) -> RunnerInput:
        slot = cache.open(spec.session, spec.start_layer, 0, spec.cached_len)
        slot.draft_start = spec.draft_start
        return RunnerInput(slot, spec.num_tokens, spec.parents, spec.num_cached)
