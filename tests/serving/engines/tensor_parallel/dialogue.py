"""Random work for an engine that follows from its earlier outcomes, as nodes would send it."""

from random import Random

from serving.messages import DraftStopRule, DraftWork, ForwardWork, SequenceSlice, Span

TOKENS = 90
BEHIND = 80
"""Tokens that are known of each answer: drafts are guessed with their help."""


class Talk:
    """One session's text, and what is cached of it."""

    def __init__(self, name, luck, write):
        self.name, self.luck = name, luck
        self.text = [luck.randrange(3, TOKENS) for _ in range(luck.randint(4, 24))]
        self.answer = [*self.text, *write(tuple(self.text))]
        self.cached, self.keep = 0, None

    def ask(self):
        """A part of what is not cached yet, or all of it with drafts, in a row or in a tree, most of them right."""
        luck, rest = self.luck, self.text[self.cached :]
        if len(rest) > 3 and self.keep is None and luck.random() < 0.5:
            n = luck.randint(1, len(rest) - 1)
            return SequenceSlice(self.name, self.cached, n, tuple(rest[:n]))
        tree, count = luck.random() < 0.5, luck.randint(0, 4)
        parents = [luck.randint(-1, i - 1) if tree else i - 1 for i in range(count)]
        drafts = self._guessed(parents)
        return SequenceSlice(
            self.name, self.cached, len(rest) + count, (*rest, *drafts), count, "greedy",
            parents=tuple(parents) if tree else None, kept_tree_nodes=self.keep,
        )  # fmt: skip

    def _guessed(self, parents):
        depths, drafts = [], []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
            right = self.luck.random() < 0.67
            drafts.append(self.answer[len(self.text) + depths[-1]] if right else self.luck.randrange(3, TOKENS))
        return drafts

    def hear(self, asked, verdict):
        self.keep = None
        if verdict is None:
            self.cached += asked.num_tokens
            return
        drafts = asked.tokens[len(asked.tokens) - asked.num_drafts :]
        stand = (
            drafts[: verdict.accepted]
            if verdict.kept_tree_nodes is None
            else [drafts[i] for i in verdict.kept_tree_nodes]
        )
        self.text += [*stand, verdict.next_token]
        self.cached, self.keep = len(self.text) - 1, verdict.kept_tree_nodes

    @property
    def over(self):
        return len(self.answer) - len(self.text) < 8


def writing(engine):
    """Prompt to answer, by an engine that is no party to the conversation."""

    def write(prompt):
        drafted, _ = engine.execute(DraftWork("writer", 0, prompt, DraftStopRule(BEHIND)))
        return drafted.tokens

    return write


def play(engine, layers, rounds, write, seed=0):
    """(verdicts, loads) of each round of several sessions at once, some of which end and begin anew."""
    luck, span = Random(seed), Span(0, layers, embedding=True, lm_head=True)
    talks = [Talk(f"s{i}", luck, write) for i in range(3)]
    said = []
    for _ in range(rounds):
        chosen = luck.sample(talks, luck.randint(1, len(talks)))
        asked = tuple(talk.ask() for talk in chosen)
        results, loads = engine.execute(ForwardWork(span, asked, ("last",) * len(asked)))
        said.append(([result.verdict for result in results], loads))
        for talk, rows, result in zip(chosen, asked, results, strict=True):
            talk.hear(rows, result.verdict)
        for i, talk in enumerate(talks):
            if talk.over or luck.random() < 0.03:
                engine.drop(talk.name, 0)
                talks[i] = Talk(talk.name, luck, write)
    return said
