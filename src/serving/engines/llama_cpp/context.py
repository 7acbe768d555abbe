"""A GGUF model opened by llama.cpp's library interface, and the KV cache of its sessions."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from serving.engines.models import check_llama_cpp_libraries
from serving.engines.torch.kv_pool import CacheFullError
from serving.engines.torch.sequence_cache import CacheHoleError

MAX_SESSIONS = 255
"""llama.cpp numbers up to 256 sequences; the last one is for branches."""
_FIRST_CELLS, _BATCH_TOKENS = 2048, 512


@dataclass(slots=True)
class LlamaSequence:
    """One session's text in the cache."""

    number: int
    length: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """New tokens of one sequence in a forward; the logits after the last `num_outputs` of them are read."""

    sequence: LlamaSequence
    tokens: Sequence[int]
    num_outputs: int


class LlamaModel:
    """The weights of a GGUF file, as they are stored. Raises ValueError for a file that llama.cpp does not open."""

    def __init__(self, file: Path) -> None:
        check_llama_cpp_libraries()
        from cyllama.llama import llama_cpp

        class Model(llama_cpp.LlamaModel):  # type: ignore[misc]
            """With the number that cyllama 0.2.18 reads logits by and does not define."""

            @property
            def n_vocab(self) -> int:
                return int(self.get_vocab().n_vocab)

        llama_cpp.disable_logging()
        options = llama_cpp.LlamaModelParams()
        options.n_gpu_layers = 0
        self.file, self._library = file, llama_cpp
        try:
            self._model = Model(str(file), options)
        except Exception as problem:  # the library's errors share no class
            raise ValueError(f"{file} cannot be opened by llama.cpp ({problem}); give another GGUF file") from problem
        self.layers, self.vocab_size = int(self._model.n_layer), self._model.n_vocab

    def open_context(self, cells: int, threads: int, one_by_one: bool = False) -> Any:
        """A KV cache of `cells` tokens that all sequences share; with `one_by_one` every token is computed alone."""
        options = self._library.LlamaContextParams()
        options.n_ctx, options.n_seq_max, options.kv_unified = cells, MAX_SESSIONS + 1, True
        options.n_batch, options.n_ubatch = _BATCH_TOKENS, 1 if one_by_one else _BATCH_TOKENS
        options.n_threads = options.n_threads_batch = threads
        return self._library.LlamaContext(self._model, options)

    def new_batch(self) -> Any:
        return self._library.LlamaBatch(n_tokens=_BATCH_TOKENS, embd=0, n_seq_max=1)


class LlamaCache:
    """The texts of sessions in one context, which grows as they do.

    Args:
        vocab_size: how many rows of the head are real tokens.
        threads: of llama.cpp.
        one_by_one: compute every token alone, so that it does not depend on the tokens of its pass.
    """

    def __init__(self, model: LlamaModel, vocab_size: int, threads: int = 1, one_by_one: bool = False) -> None:
        self._model, self._vocab_size, self._threads, self._one_by_one = model, vocab_size, threads, one_by_one
        self._cells, self._context = _FIRST_CELLS, model.open_context(_FIRST_CELLS, threads, one_by_one)
        self._batch = model.new_batch()
        self._sequences: dict[str, LlamaSequence] = {}
        self._free = list(range(MAX_SESSIONS))

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def tokens_a_pass(self) -> int:
        """How many tokens are computed together at most."""
        return int(self._context.n_ubatch)

    def length(self, session: str) -> int:
        """How many tokens are cached; 0 for an unknown session."""
        found = self._sequences.get(session)
        return found.length if found else 0

    def open(self, session: str, start: int) -> LlamaSequence:
        """A session's text, rolled back to `start` tokens.

        Raises CacheHoleError if it is shorter, CacheFullError for more than `MAX_SESSIONS` sessions.
        """
        found = self._sequences.get(session) or self._new_sequence(session)
        if found.length < start:
            raise CacheHoleError(
                f"session {session!r} begins at token {start}, but only {found.length} tokens are cached"
            )
        self.truncate(found, start)
        return found

    def truncate(self, sequence: LlamaSequence, length: int) -> None:
        if length < sequence.length:
            self._context.memory_seq_rm(sequence.number, length, -1)
            sequence.length = length

    def drop(self, session: str) -> None:
        """Frees the session's text, if there is one."""
        found = self._sequences.pop(session, None)
        if found is not None:
            self.truncate(found, 0)
            self._free.append(found.number)

    def forward(self, parts: Sequence[Part]) -> list[torch.Tensor]:
        """Appends the new tokens of several sequences, as many in one pass as fit. The cache grows before it is full.

        Returns the logits by part: (outputs, vocabulary).
        """
        self._reserve(sum(len(part.tokens) for part in parts))
        rows: list[list[torch.Tensor]] = [[] for _ in parts]
        waiting = [
            (
                index,
                part.sequence.number,
                token,
                part.sequence.length + place,
                place >= len(part.tokens) - part.num_outputs,
            )
            for index, part in enumerate(parts)
            for place, token in enumerate(part.tokens)
        ]
        for first in range(0, len(waiting), _BATCH_TOKENS):
            self._decode(waiting[first : first + _BATCH_TOKENS], rows)
        for part in parts:
            part.sequence.length += len(part.tokens)
        return [torch.stack(found) if found else torch.empty(0, self._vocab_size) for found in rows]

    def peek(self, sequence: LlamaSequence, tokens: Sequence[int]) -> torch.Tensor:
        """The logits (1, vocabulary) after tokens that the cache does not keep."""
        self._reserve(len(tokens))
        branch = LlamaSequence(MAX_SESSIONS, sequence.length)
        self._context.memory_seq_cp(sequence.number, branch.number, -1, -1)
        (logits,) = self.forward([Part(branch, tokens, 1)])
        self.truncate(branch, 0)
        return logits

    def _decode(self, tokens: Sequence[tuple[int, int, int, int, bool]], rows: list[list[torch.Tensor]]) -> None:
        self._batch.reset()
        for _, number, token, position, output in tokens:
            self._batch.add(token, position, [number], output)
        self._context.decode(self._batch)
        for place, (index, _, _, _, output) in enumerate(tokens):
            if output:
                rows[index].append(self._logits(place))

    def _logits(self, place: int) -> torch.Tensor:
        values = array("f", self._context.get_logits_ith(place))
        return torch.frombuffer(values, dtype=torch.float32)[: self._vocab_size]

    def _new_sequence(self, session: str) -> LlamaSequence:
        if not self._free:
            raise CacheFullError(
                f"session {session!r} is one more than the {MAX_SESSIONS} that llama.cpp keeps at once; lower the "
                "number of devices or of their conversations at a time"
            )
        found = self._sequences[session] = LlamaSequence(self._free.pop())
        return found

    def _reserve(self, num_tokens: int) -> None:
        """Moves all texts to a context of twice the cells, until `num_tokens` more fit."""
        used = sum(sequence.length for sequence in self._sequences.values())
        while self._cells < used + num_tokens:
            self._cells *= 2
        if self._cells > self._context.n_ctx:
            larger = self._model.open_context(self._cells, self._threads, self._one_by_one)
            for sequence in self._sequences.values():
                if sequence.length:
                    larger.set_state_seq_data(self._context.get_state_seq_data(sequence.number), sequence.number)
            self._context = larger
