"""A process that follows: it holds a share of a model and of its caches, and does what the one that leads does."""

import os
import signal
from collections import defaultdict
from contextlib import suppress
from multiprocessing.connection import Connection

import torch
from torch import distributed

from serving.engines.tensor_parallel.commands import FreeCache, InputSpec, OpenCache, RankConfig, RunLayers, TPCommand
from serving.engines.tensor_parallel.shard import leave_process_group, load_shard, load_unsharded
from serving.engines.torch.model import DecomposedModel
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import CacheHoleError, KVCacheManager


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
