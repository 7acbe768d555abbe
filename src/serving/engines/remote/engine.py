"""An engine whose tokens come from a server; it keeps the text of each session instead of a KV cache."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from serving.core.keyed_random import key, uniform
from serving.engines.remote.dialect import RemoteSampling
from serving.engines.remote.errors import RemoteError
from serving.engines.remote.generator import RemoteGenerator
from serving.engines.remote.retry import NegativeCache
from serving.hardware.executor import CacheHoleError
from serving.hardware.latency import ForwardLoad, forward_load
from serving.messages import ForwardWork, SamplingParams, SequenceSlice, SliceOutcome, TokenIds, Verdict, Work

_SEED_RANGE = 1 << 31


class RemoteEngine:
    """Implements `serving.hardware.executor.Engine` with the outcomes of the torch engine.

    A session is the tokens that its slices brought; the server caches prefixes or nothing.
    """

    def __init__(self, generator: RemoteGenerator) -> None:
        self.generator = generator
        server = generator.client.server
        self._tokens_per_request, self._concurrency = server.tokens_per_request, server.concurrency
        self._texts: dict[str, TokenIds] = {}
        """Session -> the tokens that a KV cache would hold."""
        self._prefetched: dict[str, tuple[int, TokenIds, SamplingParams | None]] = {}
        """Session -> (start of the prefetched tokens, text with them, sampling)."""
        self._negative_cache = NegativeCache()
        self._pool: ThreadPoolExecutor | None = None

    def execute(self, work: Work) -> tuple[tuple[SliceOutcome, ...], tuple[ForwardLoad, ...]]:
        """Raises RemoteError, after which no session of the batch has changed; at once if the server rejected this
        request before. Raises CacheHoleError for a slice after a text's end, ValueError and TypeError for work that
        servers cannot do.
        """
        if not isinstance(work, ForwardWork):
            raise TypeError("a server drafts nothing: the drafter runs on the device")
        if len({seq.session for seq in work.slices}) < len(work.slices):
            raise ValueError("a session has two slices in one forward, but its text can only grow by one at a time")
        texts = [self._text(seq) for seq in work.slices]
        verdicts = self._verdicts(work.slices, texts)
        for seq, text, verdict in zip(work.slices, texts, verdicts, strict=True):
            end = len(text) - seq.num_drafts + verdict.accepted if verdict else len(text)
            self._texts[seq.session] = text[:end]
        return tuple(SliceOutcome(verdict, None) for verdict in verdicts), (forward_load(work),)

    def drop(self, session: str, first: int | None) -> None:  # noqa: ARG002
        self._texts.pop(session, None)
        self._prefetched.pop(session, None)

    def move(self, session: str, to: str) -> None:  # noqa: ARG002
        """Raises TypeError: only a draft model's caches are moved."""
        raise TypeError("a server drafts nothing: the drafter runs on the device")

    def copy(self, session: str, to: str, length: int) -> None:  # noqa: ARG002
        """Raises TypeError: only a draft model's caches are copied."""
        raise TypeError("a server drafts nothing: the drafter runs on the device")

    def stop(self) -> None:
        """Lets work under way fail soon: no request is repeated."""
        self.generator.client.stop()

    def close(self) -> None:
        """Waits for the requests under way."""
        self.stop()
        if self._pool:
            self._pool.shutdown()
        self.generator.client.close()

    def notes(self) -> tuple[str, ...]:
        """Notes on the server for the report."""
        failures = self.generator.client.num_failures
        return (f"{failures} questions to the server failed; the log says why",) if failures else ()

    def _text(self, seq: SequenceSlice) -> TokenIds:
        held = self._texts.get(seq.session, ())
        if seq.start > len(held):
            raise CacheHoleError(
                f"session {seq.session!r} begins at token {seq.start}, but only {len(held)} tokens are known"
            )
        if len(seq.tokens) != seq.num_tokens or seq.parents is not None or seq.kept_tree_nodes is not None:
            raise ValueError(f"session {seq.session!r} sent hidden states or a tree, which no server reads")
        return held[: seq.start] + seq.tokens

    def _verdicts(self, seqs: Sequence[SequenceSlice], texts: Sequence[TokenIds]) -> list[Verdict | None]:
        """The verdicts of concurrent requests, in order. Also if one fails, waits for all: a retry must not overlap
        with a request that is still running.
        """
        if sum(bool(each.rule) for each in seqs) < 2 or self._concurrency == 1:
            return [self._verdict(*each) for each in zip(seqs, texts, strict=True)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._concurrency, "server")
        futures = [self._pool.submit(self._verdict, *each) for each in zip(seqs, texts, strict=True)]
        wait(futures)
        return [each.result() for each in futures]

    def _verdict(self, seq: SequenceSlice, text: TokenIds) -> Verdict | None:
        if not seq.rule:
            return None
        if seq.num_drafts and seq.sampling:
            raise ValueError(f"session {seq.session!r} wants drafts judged as {seq.rule!r}, which no server does")
        question = text, seq.num_drafts
        self._negative_cache.check(seq.session, question)
        try:
            return self._request_verdict(seq, text)
        except RemoteError as problem:
            self._negative_cache.record(seq.session, question, problem)
            raise

    def _request_verdict(self, seq: SequenceSlice, text: TokenIds) -> Verdict:
        if seq.num_drafts:
            at = len(text) - seq.num_drafts
            return self.generator.verify(text[:at], text[at:])
        return Verdict(0, self._next_token(seq.session, text, seq.sampling))

    def _next_token(self, session: str, text: TokenIds, sampling: SamplingParams | None) -> int:
        """The prefetched token if the text went on as the server wrote it, else a new request."""
        n = len(text)
        start, ahead, how = self._prefetched.get(session, (0, (), None))
        if start <= n < len(ahead) and ahead[:n] == text and how == sampling:
            return ahead[n]
        new = self.generator.generate(text, self._tokens_per_request, remote_sampling(sampling, session, n))
        if len(new) > 1:
            self._prefetched[session] = (n, text + new, sampling)
        return new[0]


def remote_sampling(sampling: SamplingParams | None, session: str, position: int) -> RemoteSampling | None:
    """Sampling options with a seed per session and position."""
    if sampling is None:
        return None
    seed = int(uniform(key(sampling.seed, session), position, "server") * _SEED_RANGE)
    return RemoteSampling(sampling.temperature, sampling.top_p, sampling.top_k, seed)
