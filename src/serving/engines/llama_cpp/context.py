"""A GGUF model opened by llama.cpp's library interface, and the KV cache of its sessions."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from serving.engines.models import check_llama_cpp_libraries
from serving.hardware.executor import CacheFullError, CacheHoleError

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

    def open_context(self, cells: int, threads: int, sequences: int = MAX_SESSIONS + 1, tokens_a_pass: int = 0) -> Any:
        """A KV cache of `cells` tokens that all sequences share; 0 tokens a pass: as many as a batch holds."""
        options = self._library.LlamaContextParams()
        options.n_ctx, options.n_seq_max, options.kv_unified = cells, sequences, True
        options.n_batch, options.n_ubatch = _BATCH_TOKENS, tokens_a_pass or _BATCH_TOKENS
        options.n_threads = options.n_threads_batch = threads
        return self._library.LlamaContext(self._model, options)

    def new_batch(self) -> Any:
        return self._library.LlamaBatch(n_tokens=_BATCH_TOKENS, embd=0, n_seq_max=1)


class LlamaStore:
    """Sequences in one context, which grows as they do."""

    def __init__(self, model: LlamaModel, threads: int, max_sequences: int, tokens_a_pass: int = 0) -> None:
        self._model, self._options = model, (threads, max_sequences + 1, tokens_a_pass)
        self._cells, self._context = _FIRST_CELLS, model.open_context(_FIRST_CELLS, *self._options)
        self._batch, self._branch = model.new_batch(), max_sequences
        self._free, self._used = list(range(max_sequences)), dict[int, LlamaSequence]()

    def new_sequence(self) -> LlamaSequence | None:
        """None if there are as many as there may be."""
        if not self._free:
            return None
        found = LlamaSequence(self._free.pop())
        self._used[found.number] = found
        return found

    def drop(self, sequence: LlamaSequence) -> None:
        self.truncate(sequence, 0)
        self._free.append(self._used.pop(sequence.number).number)

    def truncate(self, sequence: LlamaSequence, length: int) -> None:
        if length < sequence.length:
            self._context.memory_seq_rm(sequence.number, length, -1)
            sequence.length = length

    def forward(self, parts: Sequence[Part]) -> list[list[Any]]:
        """Appends the new tokens of several sequences, as many in one pass as fit. Logits by part and position.

        After an error every sequence is as it was.
        """
        self._reserve(sum(len(part.tokens) for part in parts))
        rows: list[list[Any]] = [[] for _ in parts]
        waiting = [
            (i, part.sequence.number, token, part.sequence.length + at, at >= len(part.tokens) - part.num_outputs)
            for i, part in enumerate(parts)
            for at, token in enumerate(part.tokens)
        ]
        try:
            for first in range(0, len(waiting), _BATCH_TOKENS):
                self._decode(waiting[first : first + _BATCH_TOKENS], rows)
        except BaseException:
            for part in parts:
                self._context.memory_seq_rm(part.sequence.number, part.sequence.length, -1)
            raise
        for part in parts:
            part.sequence.length += len(part.tokens)
        return rows

    def peek(self, sequence: LlamaSequence, tokens: Sequence[int]) -> list[list[Any]]:
        """The logits after tokens that are not kept."""
        self._reserve(len(tokens))  # before the copy, which would not move to a larger context
        branch = LlamaSequence(self._branch, sequence.length)
        self._context.memory_seq_cp(sequence.number, branch.number, -1, -1)
        try:
            return self.forward([Part(branch, tokens, 1)])
        finally:
            self.truncate(branch, 0)

    def _decode(self, tokens: Sequence[tuple[int, int, int, int, bool]], rows: list[list[Any]]) -> None:
        self._batch.reset()
        for _, number, token, position, output in tokens:
            self._batch.add(token, position, [number], output)
        self._context.decode(self._batch)
        for place, (part, _, _, _, output) in enumerate(tokens):
            if output:
                rows[part].append(self._context.get_logits_ith(place))

    def _reserve(self, num_tokens: int) -> None:
        """Moves all texts to a context of twice the cells, until `num_tokens` more fit."""
        used = sum(sequence.length for sequence in self._used.values())
        while self._cells < used + num_tokens:
            self._cells *= 2
        if self._cells > self._context.n_ctx:
            larger = self._model.open_context(self._cells, *self._options)
            for sequence in self._used.values():
                if sequence.length:
                    larger.set_state_seq_data(self._context.get_state_seq_data(sequence.number), sequence.number)
            self._context = larger


class LlamaCache:
    """The texts of sessions.

    Args:
        vocab_size: how many rows of the head are real tokens.
        threads: of llama.cpp.
        batch_invariant: every session has a context of its own, in which every token is computed alone. Kernels then
            have one shape, and where a token lies in the cache does not depend on other sessions.
    """

    def __init__(self, model: LlamaModel, vocab_size: int, threads: int = 1, batch_invariant: bool = False) -> None:
        self._model, self._vocab_size, self._threads = model, vocab_size, threads
        self.batch_invariant = batch_invariant
        self._shared = None if batch_invariant else LlamaStore(model, threads, MAX_SESSIONS)
        self._found: dict[str, tuple[LlamaStore, LlamaSequence]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def length(self, session: str) -> int:
        """How many tokens are cached; 0 for an unknown session."""
        return self._found[session][1].length if session in self._found else 0

    def open(self, session: str, start: int) -> None:
        """Rolls a session's text back to `start` tokens.

        Raises CacheHoleError if it is shorter, CacheFullError for more than `MAX_SESSIONS` sessions.
        """
        store, sequence = self._found.get(session) or self._begin(session)
        if sequence.length < start:
            raise CacheHoleError(
                f"session {session!r} begins at token {start}, but only {sequence.length} tokens are cached"
            )
        store.truncate(sequence, start)

    def truncate(self, session: str, length: int) -> None:
        store, sequence = self._found[session]
        store.truncate(sequence, length)

    def drop(self, session: str) -> None:
        """Frees the session's text, if there is one."""
        if session in self._found:
            store, sequence = self._found.pop(session)
            store.drop(sequence)

    def move(self, session: str, to: str) -> None:
        """The text of `session`, if there is one, becomes that of `to`."""
        if session in self._found:
            self.drop(to)
            self._found[to] = self._found.pop(session)

    def forward(self, parts: Sequence[tuple[str, Sequence[int], int]]) -> list[torch.Tensor]:
        """Appends new tokens to several sessions: (session, tokens, outputs).

        Returns the logits by session after the last `outputs` of its tokens: (outputs, vocabulary).
        """
        if self._shared is not None:
            made = [Part(self._found[session][1], tokens, count) for session, tokens, count in parts]
            return [self._tensor(rows) for rows in self._shared.forward(made)]
        found = []
        for session, tokens, count in parts:
            store, sequence = self._found[session]
            found += [self._tensor(rows) for rows in store.forward([Part(sequence, tokens, count)])]
        return found

    def peek(self, session: str, tokens: Sequence[int]) -> torch.Tensor:
        """The logits (1, vocabulary) after tokens that the session's text does not keep."""
        store, sequence = self._found[session]
        return self._tensor(store.peek(sequence, tokens)[0])

    def _begin(self, session: str) -> tuple[LlamaStore, LlamaSequence]:
        store = self._shared or LlamaStore(self._model, self._threads, 1, tokens_a_pass=1)
        sequence = store.new_sequence()
        if sequence is None:
            raise CacheFullError(
                f"session {session!r} is one more than the {MAX_SESSIONS} that llama.cpp keeps at once; lower the "
                "number of devices or of their conversations at a time"
            )
        self._found[session] = store, sequence
        return store, sequence

    def _tensor(self, rows: Sequence[Any]) -> torch.Tensor:
        """Logits as the library gives them, in lists of numbers."""
        if not rows:
            return torch.empty(0, self._vocab_size)
        values = [torch.frombuffer(array("f", row), dtype=torch.float32) for row in rows]
        return torch.stack(values)[:, : self._vocab_size]
