"""A process that follows: it holds a share of a model and of its caches, and does what the one that leads does."""

import os
import signal
from collections import defaultdict
from contextlib import suppress
from multiprocessing.connection import Connection

import torch
from torch import distributed

from serving.engines.tensor_parallel.commands import Drop, Open, Order, Pass, Seat, Share
from serving.engines.tensor_parallel.shard import leave, loaded, open_share
from serving.engines.torch.model import Model
from serving.engines.torch.model_runner import Lot, Stack
from serving.engines.torch.sequence_cache import Cache, CacheHoleError


def follow(seat: Seat, line: Connection) -> None:
    """Its whole life: the leader decides when it ends, also by dying.

    It says None when the checkpoint is read, again when it has its share, and after each lot of orders; or, once, what
    went wrong.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal: the leader decides
    try:
        causal = loaded(seat)
        line.send(None)
        follower = Follower(open_share(causal, seat))
        del causal  # embedding and head are the leader's
        line.send(None)
        while (orders := line.recv()) is not None:
            follower.obey(orders)
            line.send(None)
        leave()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the leader is gone, and with it the group that an orderly end would wait for
    except Exception as problem:
        with suppress(OSError):
            line.send(f"{type(problem).__name__}: {problem}")
        os._exit(1)


class Follower:
    """Does with its share what the leader's engine does with its own, but for embedding, head and verdicts."""

    def __init__(self, model: Model) -> None:
        self._model, self._stack = model, Stack(model, model.vocabulary)
        self._caches: defaultdict[int, Cache] = defaultdict(lambda: Cache(model))

    @torch.inference_mode()
    def obey(self, orders: tuple[Order, ...]) -> None:
        for order in orders:
            match order:
                case Open():
                    self._open(order)
                case Drop():
                    self._caches[order.cache].drop(order.session, order.part)
                case Pass():
                    self._run(order)
        if self._model.device.type != "cpu":
            torch.cuda.synchronize()  # who answers has done it

    def _open(self, order: Open) -> None:
        cache = self._caches[order.cache]
        cache.open(order.session, order.part, order.last, order.length)  # as verdicts left the leader's
        with suppress(CacheHoleError):  # its node has heard of it
            cache.open(order.session, order.part, order.last, order.start, order.keep)

    def _run(self, order: Pass) -> None:
        lots = [self._lot(share, self._caches[order.cache]) for share in order.shares]
        hidden = self._stack.like.new_empty(sum(lot.n for lot in lots), self._model.hidden)
        distributed.broadcast(hidden, 0)
        self._stack.run(hidden, lots, order.first, order.last)

    def _lot(self, share: Share, cache: Cache) -> Lot:
        slot = cache.open(share.session, share.part, 0, share.length)
        slot.drafts_at = share.drafts_at
        return Lot(slot, share.n, share.parents, share.past)
