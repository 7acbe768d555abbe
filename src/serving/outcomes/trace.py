"""A recorded trace: per session the text, and at each position what both models would write there."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from serving.core.keyed_random import key, luck
from serving.core.scores import SCORES, Scorer
from serving.learned.medusa import Ranks
from serving.messages import Call, Exit
from serving.outcomes.outcomes import described
from serving.workload.prompt import Prompt

TOPS = 3


def triangle(depth: int) -> int:
    """Numbers of attention that give the importance of any part of a draft of `depth` tokens."""
    return 1 + depth * (depth - 1) // 2


@dataclass(frozen=True, slots=True)
class Recorded:
    """One session: its `path` is the prompt and the agreed text, `first` its first row in the tables.

    Behind the rows of its positions come those of its `asides`: wrong guesses that the recorded policy drafted on from
    while it waited. Each is (base, length, token): the text up to `base`, the recorded continuation from there up to
    `length`, and a token that neither has.
    """

    name: str
    prompt: Prompt
    path: tuple[int, ...]
    prompt_tokens: int
    limit: int
    first: int
    asides: tuple[tuple[int, int, int], ...] = ()

    @property
    def positions(self) -> int:
        """One row each, from the end of the prompt to the end of the text."""
        return len(self.path) - self.prompt_tokens + 1

    @property
    def rows(self) -> int:
        return self.positions + len(self.asides)


@dataclass(frozen=True, eq=False)
class Tables:
    """Per row (a position of a session, or an aside) what follows the text up to it, as NumPy arrays.

    Shapes: `targets` (rows), `counts` (rows), `drafts` (rows, depth), `tops` (rows, depth, 3), `scores` (4, rows,
    depth) in the order of `SCORES`, `depths` (rows, depth), `attention` (rows, triangle). A continuation is shorter
    than `depth` (`counts`) where it ran into an end token. `depths` says after how many layers each draft was read off.
    `attention` holds what the row that wrote the first draft pays to itself, then per fed-back draft i what it pays to
    drafts 0..i. Nobody asks the target behind an aside: its `targets` are 0. `proposals` (rows, tree) are what
    the target's heads propose beside the row's target, none without heads. `routes` (rows, depth) are a router's scores
    of the drafts, none (rows, 0) without one.
    """

    targets: Any
    counts: Any
    drafts: Any
    tops: Any
    scores: Any
    depths: Any
    attention: Any
    proposals: Any
    routes: Any

    @property
    def depth(self) -> int:
        return int(self.drafts.shape[1])

    def flat(self, name: str) -> Sequence[Any]:
        """A table end to end, as plain Python numbers when read."""
        return cast("Sequence[Any]", memoryview(getattr(self, name).reshape(-1)))

    def flat_score(self, name: str) -> Sequence[float]:
        return cast("Sequence[float]", memoryview(self.scores[SCORES.index(name)].reshape(-1)))

    def flat_trained(self, scorer: Scorer) -> Sequence[float]:
        """The same of a score that is told from all the recorded ones."""
        found = scorer.chances(self.scores.reshape(len(SCORES), -1).T)
        return cast("Sequence[float]", memoryview(found.astype("float64")))


@dataclass(frozen=True)
class Trace:
    """Outcomes as they were recorded.

    `policy` None: the target's own greedy text, which every lossless policy writes. Else the text that this policy
    wrote under `seed`, exact for it alone.
    """

    sessions: tuple[Recorded, ...]
    tables: Tables
    policy: str | None
    seed: int
    device_layers: int
    cloud_layers: int
    ends: tuple[int, ...]
    """Tokens after which there is nothing to write."""
    made_from: dict[str, str]
    exit: Exit | None = None
    """The rule by which the recorded drafts left layers early; None: they ran all."""
    tree: tuple[Ranks, ...] = ()
    """Whose candidates heads of the target proposed beside each of its tokens; (): it has no heads."""
    router: str = ""
    """The digest of the router whose scores were recorded; "": none were."""

    @property
    def described(self) -> str:
        text = f"text of policy {self.policy} under seed {self.seed}" if self.policy else "the target's own greedy text"
        text += f", drafts {described(self.exit)}" if self.exit else ""
        pair = self.made_from.get("pair", "a pair")
        return f"tokens are read from a trace of {pair}: {len(self.sessions)} sessions, {text}"

    @cached_property
    def _by_name(self) -> dict[str, Recorded]:
        return {session.name: session for session in self.sessions}

    @cached_property
    def _by_tokens(self) -> dict[tuple[int, ...], Recorded]:
        return {session.path[: session.prompt_tokens]: session for session in reversed(self.sessions)}

    @cached_property
    def _by_id(self) -> dict[str, Recorded]:
        return {session.prompt.id: session for session in reversed(self.sessions)}

    def session_for(self, call: Call, seed: int) -> Recorded:
        """The recorded session behind a call: of its name or else its prompt; without a prompt one dealt by luck.

        Raises ValueError for a prompt that was not recorded.
        """
        if not call.prompt:
            return self.dealt(call.session, seed)
        named = self._by_name.get(call.session)
        if named and named.path[: named.prompt_tokens] == call.prompt:
            return named
        try:
            return self._by_tokens[call.prompt]
        except KeyError:
            raise ValueError(
                f"request {call.session} asks a prompt of {len(call.prompt)} tokens that is not in the trace; record "
                "the workload that is simulated, or let the trace deal its own prompts"
            ) from None

    def named(self, name: str, prompt_id: str) -> Recorded | None:
        """The session recorded under this name, or for this prompt of the data set."""
        named = self._by_name.get(name)
        return named if named and named.prompt.id == prompt_id else self._by_id.get(prompt_id)

    def dealt(self, name: str, seed: int) -> Recorded:
        """One of the sessions, the same for this name and seed whoever asks."""
        return self.sessions[int(luck(key(seed, name), 0, "recorded session") * len(self.sessions))]
