"""The device's model on onnxruntime: executes `Generate` as `serving.engines.torch.engine.Engine` does, and nothing
else.
"""

from dataclasses import replace
from pathlib import Path

import torch

from serving.core.scores import IMPORTANCE, ROUTE, UNTRAINED, Scorers
from serving.engines.onnx.session import Cache, Ran, RouterGraph, Session, Slot
from serving.engines.torch.draft import Chunk, Seen
from serving.engines.torch.tensor_store import Blobs
from serving.hardware.latency import Load, load
from serving.learned.mlp import sigmoid
from serving.messages import Drafted, Forward, Generate, Stop


class OnnxEngine:
    """Drafts; every session has its own cache.

    Args:
        folder: what the stage `device_graph` made.
        blobs: the store shared by all engines of a process; its own where absent.
        vocabulary: how many rows of the head are real tokens; the rest is padding and never written. All where absent.
        scorers: trained scores, by name. A router that was exported with the model is asked as a graph.
        threads: of onnxruntime.

    Raises ValueError for a vocabulary larger than the model's, and a folder that holds no export.
    """

    def __init__(
        self,
        folder: Path,
        *,
        blobs: Blobs | None = None,
        vocabulary: int | None = None,
        scorers: Scorers = UNTRAINED,
        threads: int = 1,
    ) -> None:
        self._session = Session(folder, threads)
        self.header = header = self._session.header
        if vocabulary is not None and not 0 < vocabulary <= header.vocabulary:
            raise ValueError(f"vocabulary is {vocabulary}; the head of {folder} has {header.vocabulary} rows")
        self.blobs = Blobs() if blobs is None else blobs
        self.cache = Cache(self._session.empty())
        self._vocabulary = vocabulary or header.vocabulary
        own = ROUTE in scorers and header.router == scorers[ROUTE].digest
        self._told = own and header.routes
        graph: Scorers = {ROUTE: RouterGraph(folder, scorers[ROUTE].digest, threads)} if own else UNTRAINED
        self._scorers: Scorers = {**scorers, **graph}

    @torch.inference_mode()
    def execute(self, work: Generate | Forward) -> tuple[Drafted, tuple[Load, ...]]:
        """Runs the work; beside the outcome, what each forward pass did, as the torch engine counts it.

        Raises TypeError for a `Forward`, ValueError for work that says too little or asks for what a graph does not
        show (early exit, importance), CacheHoleError for work that begins behind the end of a cache.
        """
        if isinstance(work, Forward):
            raise TypeError("a device's model on onnxruntime runs whole: it drafts, and has no spans of layers to run")
        if work.exit is not None or IMPORTANCE in work.probes:
            what = "early exit" if work.exit is not None else "importance"
            raise ValueError(f"session {work.session!r} asks for {what}, which a graph of onnxruntime does not show")
        slot = self.cache.open(work.session, work.start)
        if work.branches:
            return self._branches(Chunk(replace(work, stop=Stop(1)), self.blobs, self._scorers), slot)
        chunk = Chunk(work, self.blobs, self._scorers)
        loads = self._write(chunk, slot) if work.stop.cap else self._fill(work, slot)
        return chunk.drafted(slot.length, None), loads

    def drop(self, session: str, first: int | None) -> None:
        """Frees the drafter's cache, and what was drawn from."""
        if first is None:
            self.cache.drop(session)
        self.blobs.forget(f"odds/{session}")

    def _fill(self, work: Generate, slot: Slot) -> tuple[Load, ...]:
        if not work.feed:
            return ()
        did = self._load(slot, len(work.feed), 0)
        slot.grow(self._session.run(work.feed, (), slot.held()).present)
        return (did,)

    def _write(self, chunk: Chunk, slot: Slot) -> tuple[Load, ...]:
        work, feed, loads = chunk.work, chunk.work.feed, list[Load]()
        if not feed:
            raise ValueError(
                f"session {work.session!r} asks for {work.stop.cap} tokens with nothing to feed; a model needs a row"
            )
        while feed:
            loads.append(self._load(slot, len(feed), 1))
            ran = self._session.run(feed, (len(feed) - 1,), slot.held())
            slot.grow(ran.present)
            more = chunk.write(self._seen(ran), slot.length) and len(chunk.tokens) < work.stop.cap
            feed = (chunk.tokens[-1],) if more else ()
        return tuple(loads)

    def _branches(self, chunk: Chunk, slot: Slot) -> tuple[Drafted, tuple[Load, ...]]:
        """One token after each branch, which leave the cache as it was. They run one by one, and are counted as the
        one pass that a tree of them takes: what the named chip is charged is not what this runtime lacks.
        """
        work, past = chunk.work, slot.held()
        if not all(work.branches):
            raise ValueError(f"session {work.session!r} asks for a branch without tokens; a model needs a row")
        for branch in work.branches:
            ran = self._session.run(branch, (len(branch) - 1,), past)
            chunk.write(self._seen(ran), slot.length + len(branch))
        done = self._load(slot, sum(map(len, work.branches)), len(work.branches))
        return chunk.drafted(slot.length, None), (done,)

    def _seen(self, ran: Ran) -> Seen:
        told = {ROUTE: sigmoid(float(ran.route[0]))} if self._told and ran.route is not None else {}
        logits = torch.from_numpy(ran.logits)[:, : self._vocabulary]
        return Seen(logits, torch.from_numpy(ran.hidden), 1.0, told)

    def _load(self, slot: Slot, rows: int, head_rows: int) -> Load:
        return load(self.header.layers, [(slot.length, rows)], float(head_rows))
