"""One process's shard of a model, and the loop of a worker process.

DeepSpeed's AutoTP shards the attention and MLP of the blocks, and nothing else.
"""

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
from serving.engines.torch.sequence_cache import KVCacheManager
from serving.hardware.executor import CacheHoleError
from serving.messages import Span

_ALL_REDUCED = {"gpt_neox": ("attention.dense", "mlp.dense_4h_to_h")}
"""Linear layers whose outputs are summed over the processes, by architecture; others are as in Llama."""
_LLAMA_ALL_REDUCED = ("self_attn.o_proj", "mlp.down_proj")


def load_unsharded(config: RankConfig) -> Any:
    """The whole checkpoint, on the CPU, before it is sharded. Raises ValueError as `load_causal_lm` does."""
    torch.set_num_threads(1)
    with _environment(config):
        import_module("deepspeed")  # takes seconds: now, while the other processes do the same
    return load_causal_lm(config.path, dtype=config.dtype)


def load_shard(causal: Any, config: RankConfig) -> DecomposedModel:
    """Joins the other processes and keeps this one's shard of the model that each has loaded.

    Raises RuntimeError if another process does not join.
    """
    join_process_group(config)
    with _environment(config):
        shard_model(causal, config)
    model = decompose(causal, device=config.device, name=config.path)
    span = config.span or Span(0, len(model.layers), embedding=True, lm_head=True)
    return model.restricted_to(span if config.rank == 0 else Span(span.start_layer, span.end_layer))


def join_process_group(config: RankConfig) -> None:
    """Joins the process group, over loopback only. Collectives that time out raise RuntimeError."""
    if config.device_type != "cpu":
        torch.cuda.set_device(config.rank)
    with _environment(config):
        distributed.init_process_group(
            "gloo" if config.device_type == "cpu" else "nccl", f"file://{config.rendezvous_file}", rank=config.rank,
            world_size=config.world_size, timeout=timedelta(seconds=config.timeout_s),
        )  # fmt: skip


def leave_process_group() -> None:
    """Ends the process group, so that another model can be loaded."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def shard_model(causal: Any, rank_config: RankConfig) -> None:
    """Shards the blocks of a loaded model in place, and updates its configuration to this shard.

    DeepSpeed gets the base model only, because it would shard the head, too.
    """
    import deepspeed  # type: ignore[import-untyped]
    from deepspeed.ops import __compatible_ops__ as operations  # type: ignore[import-untyped]

    operations["deepspeed_shm_comm"] = False  # else DeepSpeed compiles a kernel, and fails without a compiler
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
    """Gives DeepSpeed the process group; without it, DeepSpeed would reuse a group that ended."""

    group: Any

    def get_model_parallel_group(self) -> Any:
        return self.group


@contextmanager
def _environment(config: RankConfig) -> Iterator[None]:
    """Environment variables that torch and DeepSpeed read at start; hides DeepSpeed's deprecation warnings."""
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
    """The main function of a worker process; it ends with a None command, or with the death of rank 0.

    Sends None after reading the checkpoint, after sharding, and after each batch of commands; or an error text, once.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; rank 0 stops this one
    try:
        causal = load_unsharded(config)
        pipe.send(None)
        worker = TPWorker(load_shard(causal, config))
        del causal  # only rank 0 needs embedding and head
        pipe.send(None)
        while (commands := pipe.recv()) is not None:
            worker.execute(commands)
            pipe.send(None)
        leave_process_group()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # rank 0 is gone, and an orderly end would wait for it
    except Exception as problem:
        with suppress(OSError):
            pipe.send(f"{type(problem).__name__}: {problem}")
        os._exit(1)


class TPWorker:
    """Runs on its shard the cache operations and layers that rank 0 runs on its own."""

    def __init__(self, model: DecomposedModel) -> None:
        self._model, self._runner = model, ModelRunner(model, model.vocab_size)
        self._caches: defaultdict[int, KVCacheManager] = defaultdict(lambda: KVCacheManager(model))

    @torch.inference_mode()
    def execute(self, commands: tuple[TPCommand, ...]) -> None:
        for command in commands:
            match command:
                case OpenCache():
                    self._open(command)
                case FreeCache():
                    self._caches[command.cache_id].drop(command.session, command.start_layer)
                case RunLayers():
                    self._run(command)
        if self._model.device.type != "cpu":
            torch.cuda.synchronize()  # an acknowledged command is complete

    def _open(self, command: OpenCache) -> None:
        cache, session, layers = (
            self._caches[command.cache_id],
            command.session,
            (command.start_layer, command.end_layer),
        )
        cache.open(session, *layers, command.cached_len)  # rolled back as in rank 0 after the last verdict
        with suppress(CacheHoleError):  # rank 0 reports it
            cache.open(session, *layers, command.start, command.kept_tree_nodes)

    def _run(self, command: RunLayers) -> None:
        inputs = [self._runner_input(spec, self._caches[command.cache_id]) for spec in command.inputs]
        hidden = self._runner.empty_hidden.new_empty(sum(entry.num_tokens for entry in inputs), self._model.hidden_size)
        distributed.broadcast(hidden, 0)
        self._runner.run(hidden, inputs, command.start_layer, command.end_layer)

    def _runner_input(self, spec: InputSpec, cache: KVCacheManager) -> RunnerInput:
        session_cache = cache.open(spec.session, spec.start_layer, 0, spec.cached_len)
        session_cache.draft_start = spec.draft_start
        return RunnerInput(session_cache, spec.num_tokens, spec.parents, spec.num_cached)
