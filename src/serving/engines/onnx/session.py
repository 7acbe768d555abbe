"""An exported model opened by onnxruntime, and its KV caches by session."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from serving.engines.models import check_onnx_libraries
from serving.engines.onnx.header import MODEL_FILE, load_header, score_output, scorer_file
from serving.hardware.executor import CacheHoleError
from serving.learned.mlp import sigmoid

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class OnnxOutput:
    """The outputs of one pass of one session."""

    logits: Floats
    """(n, vocabulary)"""
    hidden_states: Floats
    """(n, hidden) after the last norm."""
    score_logits: dict[str, Floats]
    """By name, for the trained scores that the graph computes: (n,)."""
    present: list[Floats]
    """Keys and values, layer by layer, of shape (1, KV heads, tokens, head size)."""


class OnnxSession:
    """Runs model.onnx of a folder.

    Raises ValueError for a missing or damaged export, and for a graph that its header does not describe.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self.header = load_header(folder)
        self._session = open_session(folder / MODEL_FILE, threads)
        self._outputs = list(self.header.output_names)
        found = {each.name for each in self._session.get_inputs()}, {e.name for e in self._session.get_outputs()}
        if found != ({*self.header.input_names}, {*self._outputs}):
            raise ValueError(f"{folder / MODEL_FILE} is not the graph that its header describes; {_EXPORT_AGAIN}")

    def run(self, tokens: Sequence[int], output_positions: Sequence[int], past: Sequence[Floats]) -> OnnxOutput:
        """Runs one session's new tokens after its cache; the outputs are those of `output_positions` among them."""
        feeds: dict[str, Any] = dict(zip(self.header.past_names, past, strict=True))
        feeds["ids"], feeds["rows"] = np.array([tokens], np.int64), np.array(output_positions, np.int64)
        logits, hidden, *rest = self._session.run(self._outputs, feeds)
        scores = self.header.scores_of_graph
        score_logits = {name: each[0] for name, each in zip(scores, rest, strict=False)}
        return OnnxOutput(logits[0], hidden[0], score_logits, rest[len(scores) :])

    def empty_cache(self) -> list[Floats]:
        """The cache of a new session."""
        header = self.header
        return [np.zeros((1, header.kv_heads, 0, header.head_size), np.float32) for _ in header.past_names]


class OnnxScorer:
    """Scores hidden states with the score's own graph in a folder."""

    feature_kind: Literal["hidden"] = "hidden"

    def __init__(self, folder: Path, name: str, digest: str, threads: int = 1) -> None:
        self.name, self.digest = name, digest
        self._session = open_session(folder / scorer_file(name), threads)

    @property
    def num_features(self) -> int:
        """The width of the hidden states."""
        return int(self._session.get_inputs()[0].shape[-1])

    def probability(self, features: Any) -> float:
        return float(self.probabilities(np.asarray(features)[None])[0])

    def probabilities(self, features: Any) -> Any:
        (logits,) = self._session.run([score_output(self.name)], {"hidden": np.asarray(features, np.float32)})
        return np.array([sigmoid(logit) for logit in logits.tolist()], np.float64)


_EXPORT_AGAIN = "export again with force=[device_graph]"


def open_session(file: Path, threads: int) -> Any:
    """An onnxruntime session on the CPU. Raises ValueError for a file that is missing or damaged."""
    check_onnx_libraries()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.use_deterministic_compute = True
    options.log_severity_level = 3
    if not file.is_file():
        raise ValueError(f"there is no {file}; {_EXPORT_AGAIN}")
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # onnxruntime's errors share no class
        raise ValueError(f"{file} cannot be opened ({str(problem).splitlines()[0]}); {_EXPORT_AGAIN}") from problem


class OnnxSequenceCache:
    """Keys and values of one session; tokens 0..length-1 are valid, the rest is stale."""

    __slots__ = ("_arrays", "length")

    def __init__(self, empty: list[Floats]) -> None:
        self._arrays, self.length = empty, 0

    def keys_values(self) -> list[Floats]:
        """The input of the next pass; copied only after a rollback."""
        if self._arrays[0].shape[2] != self.length:
            self._arrays = [np.ascontiguousarray(one[:, :, : self.length]) for one in self._arrays]
        return self._arrays

    def update(self, present: list[Floats]) -> None:
        self._arrays, self.length = present, present[0].shape[2]

    def truncate(self, start: int, session: str) -> None:
        """Rolls back to `start` tokens. Raises CacheHoleError if fewer are cached."""
        if self.length < start:
            raise CacheHoleError(
                f"session {session!r} begins at token {start}, but only {self.length} tokens are cached"
            )
        self.length = start


class OnnxCacheManager:
    """The caches of one model, by session."""

    def __init__(self, empty: list[Floats]) -> None:
        self._empty = empty
        self._caches: dict[str, OnnxSequenceCache] = {}

    def __len__(self) -> int:
        return len(self._caches)

    def length(self, session: str) -> int:
        """How many tokens are cached; 0 for an unknown session."""
        cache = self._caches.get(session)
        return cache.length if cache else 0

    def open(self, session: str, start: int) -> OnnxSequenceCache:
        """A session's cache, rolled back to `start`. Raises CacheHoleError if the cache is shorter."""
        cache = self._caches.setdefault(session, OnnxSequenceCache(self._empty))
        cache.truncate(start, session)
        return cache

    def drop(self, session: str) -> None:
        self._caches.pop(session, None)

    def move(self, session: str, to: str) -> None:
        """The cache of `session`, if there is one, becomes that of `to`."""
        if session in self._caches:
            self._caches[to] = self._caches.pop(session)
