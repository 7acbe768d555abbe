"""A server in the place of an engine: the text of each session is kept here, and its tokens come from there."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from serving.core.keyed_random import key, luck
from serving.engines.remote.dialect import Draw
from serving.engines.remote.errors import RemoteError
from serving.engines.remote.generator import Writer
from serving.engines.remote.retry import Refusals
from serving.hardware.estimator import forward_load
from serving.hardware.latency import Load
from serving.messages import Forward, Generate, Result, Rows, Sampling, Verdict

Tokens = tuple[int, ...]
_SEEDS = 1 << 31


class RemoteEngine:
    """What `serving.hardware.timed_executor.Engine` asks for, with the outcomes of the torch engine.

    The server keeps caches by prefix, or none; here a session is the tokens that the route has sent.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        server = writer.client.server
        self._span, self._concurrency = server.tokens_a_call, server.concurrency
        self._held: dict[str, Tokens] = {}
        """Session -> the tokens that a cache would hold."""
        self._ahead: dict[str, tuple[int, Tokens, Sampling | None]] = {}
        """Session -> a text, from where on the server wrote it, and how."""
        self._refusals = Refusals()
        self._pool: ThreadPoolExecutor | None = None

    def execute(self, work: Generate | Forward) -> tuple[tuple[Result, ...], tuple[Load, ...]]:
        """Raises RemoteError, after which nothing of the batch counts, and at once for a question that the server has
        refused before; CacheHoleError for rows behind a text's end;
        ValueError and TypeError for work that no server does.
        """
        if isinstance(work, Generate):
            raise TypeError("a server drafts nothing: the drafter runs on the device")
        if len({rows.session for rows in work.rows}) < len(work.rows):
            raise ValueError(
                "a session has rows twice in one forward, but its text can only grow by one part at a time"
            )
        texts = [self._text(rows) for rows in work.rows]
        verdicts = self._all(work.rows, texts)
        for rows, text, verdict in zip(work.rows, texts, verdicts, strict=True):
            stands = len(text) - rows.check + verdict.accepted if verdict else len(text)
            self._held[rows.session] = text[:stands]
        return tuple(Result(verdict, None) for verdict in verdicts), (forward_load(work),)

    def drop(self, session: str, first: int | None) -> None:  # noqa: ARG002
        self._held.pop(session, None)
        self._ahead.pop(session, None)

    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know of the server."""
        failures = self.writer.client.failures
        return (f"{failures} questions to the server failed; the log says why",) if failures else ()

    def _text(self, rows: Rows) -> Tokens:
        held = self._held.get(rows.session, ())
        if rows.start > len(held):
            from serving.engines.torch.sequence_cache import CacheHoleError

            raise CacheHoleError(
                f"session {rows.session!r} begins at token {rows.start}, but only {len(held)} tokens are known"
            )
        if len(rows.tokens) != rows.n or rows.parents is not None or rows.keep is not None:
            raise ValueError(f"session {rows.session!r} sent hidden states or a tree, which no server reads")
        return held[: rows.start] + rows.tokens

    def _all(self, rows: Sequence[Rows], texts: Sequence[Tokens]) -> list[Verdict | None]:
        """Of several sessions at once, in their order; where one fails, too, when all are answered: a question that is
        still under way would soon be asked again beside itself.
        """
        if sum(bool(each.rule) for each in rows) < 2 or self._concurrency == 1:
            return [self._verdict(*each) for each in zip(rows, texts, strict=True)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._concurrency, "server")
        asked = [self._pool.submit(self._verdict, *each) for each in zip(rows, texts, strict=True)]
        wait(asked)
        return [each.result() for each in asked]

    def _verdict(self, rows: Rows, text: Tokens) -> Verdict | None:
        if not rows.rule:
            return None
        if rows.rule == "tree" or (rows.check and rows.sampling):
            raise ValueError(f"session {rows.session!r} wants drafts judged as {rows.rule!r}, which no server does")
        question = text, rows.check
        self._refusals.check(rows.session, question)
        try:
            return self._asked(rows, text)
        except RemoteError as problem:
            self._refusals.note(rows.session, question, problem)
            raise

    def _asked(self, rows: Rows, text: Tokens) -> Verdict:
        if rows.check:
            at = len(text) - rows.check
            return self.writer.judge(text[:at], text[at:])
        return Verdict(0, self._next(rows.session, text, rows.sampling))

    def _next(self, session: str, text: Tokens, sampling: Sampling | None) -> int:
        """From what the server wrote already, as long as the text goes on like that."""
        n = len(text)
        begun, ahead, how = self._ahead.get(session, (0, (), None))
        if begun <= n < len(ahead) and ahead[:n] == text and how == sampling:
            return ahead[n]
        new = self.writer.write(text, self._span, draw(sampling, session, n))
        if len(new) > 1:
            self._ahead[session] = (n, text + new, sampling)
        return new[0]


def draw(sampling: Sampling | None, session: str, position: int) -> Draw | None:
    """With a seed of its own for each position of each session."""
    if sampling is None:
        return None
    seed = int(luck(key(sampling.seed, session), position, "server") * _SEEDS)
    return Draw(sampling.temperature, sampling.top_p, sampling.top_k, seed)
