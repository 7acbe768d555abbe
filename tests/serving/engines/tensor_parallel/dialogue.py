"""Random work for an engine that follows from its earlier outcomes, as nodes would send it."""

from random import Random

from serving.messages import DraftStopRule, DraftWork, ForwardWork, SequenceSlice, Span

TOKENS = 90
ANSWER_TOKENS = 80
"""Tokens of each answer that are computed first; most drafts are taken from them."""


class RandomSession:
    """One session's text and the number of its cached tokens."""

    def __init__(self, name, rng, write):
        self.name, self.rng = name, rng
        self.text = [rng.randrange(3, TOKENS) for _ in range(rng.randint(4, 24))]
        self.answer = [*self.text, *write(tuple(self.text))]
        self.cached, self.keep = 0, None

    def next_slice(self):
        """A part of the uncached tokens, or all of them with drafts in a chain or a tree, most of them right."""
        rng, rest = self.rng, self.text[self.cached :]
        if len(rest) > 3 and self.keep is None and rng.random() < 0.5:
            n = rng.randint(1, len(rest) - 1)
            return SequenceSlice(self.name, self.cached, n, tuple(rest[:n]))
        tree, count = rng.random() < 0.5, rng.randint(0, 4)
        parents = [rng.randint(-1, i - 1) if tree else i - 1 for i in range(count)]
        drafts = self._guessed(parents)
        return SequenceSlice(
            self.name, self.cached, len(rest) + count, (*rest, *drafts), count, "greedy",
            parents=tuple(parents) if tree else None, kept_tree_nodes=self.keep,
        )  # fmt: skip

    def _guessed(self, parents):
        depths, drafts = [], []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
            right = self.rng.random() < 0.67
            drafts.append(self.answer[len(self.text) + depths[-1]] if right else self.rng.randrange(3, TOKENS))
        return drafts

    def apply_verdict(self, seq, verdict):
        self.keep = None
        if verdict is None:
            self.cached += seq.num_tokens
            return
        drafts = seq.tokens[len(seq.tokens) - seq.num_drafts :]
        stand = (
            drafts[: verdict.accepted]
            if verdict.kept_tree_nodes is None
            else [drafts[i] for i in verdict.kept_tree_nodes]
        )
        self.text += [*stand, verdict.next_token]
        self.cached, self.keep = len(self.text) - 1, verdict.kept_tree_nodes

    @property
    def ended(self):
        return len(self.answer) - len(self.text) < 8


def answers_of(engine):
    """A function from prompt to answer, by an engine that takes no part in the work."""

    def write(prompt):
        drafted, _ = engine.execute(DraftWork("writer", 0, prompt, DraftStopRule(ANSWER_TOKENS)))
        return drafted.tokens

    return write


def run_random_work(engine, layers, rounds, write, seed=0):
    """(verdicts, loads) of each round of several sessions at once, some of which end and are replaced."""
    rng, span = Random(seed), Span(0, layers, embedding=True, lm_head=True)
    sessions = [RandomSession(f"s{i}", rng, write) for i in range(3)]
    outcomes = []
    for _ in range(rounds):
        chosen = rng.sample(sessions, rng.randint(1, len(sessions)))
        slices = tuple(session.next_slice() for session in chosen)
        results, loads = engine.execute(ForwardWork(span, slices, ("last",) * len(slices)))
        outcomes.append(([result.verdict for result in results], loads))
        for session, seq, result in zip(chosen, slices, results, strict=True):
            session.apply_verdict(seq, result.verdict)
        for i, session in enumerate(sessions):
            if session.ended or rng.random() < 0.03:
                engine.drop(session.name, 0)
                sessions[i] = RandomSession(session.name, rng, write)
    return outcomes
