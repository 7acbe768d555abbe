"""A made-up trace: acceptance depends on the previous draft, and confidence predicts it imperfectly."""

import random

import numpy as np

from serving.core.scores import LOGIT_SCORES, NUM_TOP_CANDIDATES
from serving.messages import EarlyExitRule
from serving.outcomes.trace import OutcomeTrace, RecordedSession, TraceTables, triangle_size
from serving.workload.prompt import Prompt

DEPTH = 4


def trace(
    sessions: int = 60, written: int = 40, seed: int = 0, after_right: float = 0.8, after_wrong: float = 0.5,
    exits: bool = False,
) -> OutcomeTrace:  # fmt: skip
    draw = random.Random(seed)
    recorded = []
    rows = sessions * (written + 1)
    targets, tops = np.zeros(rows, np.int32), np.zeros((rows, DEPTH, NUM_TOP_CANDIDATES), np.int32)
    drafts, counts = np.zeros((rows, DEPTH), np.int32), np.full(rows, DEPTH, np.int32)
    scores = np.array([draw.random() for _ in range(4 * rows * DEPTH)], np.float32).reshape(4, rows, DEPTH)
    attention = np.array([draw.random() for _ in range(rows * triangle_size(DEPTH))], np.float32).reshape(rows, -1)
    for number in range(sessions):
        path = tuple(draw.randrange(10, 90) for _ in range(6 + number % 3 + written))
        first, prompt, right = number * (written + 1), 6 + number % 3, True
        asked, limit = Prompt(f"p{number}", "?", ("a",), "t"), written + number % 2
        recorded.append(RecordedSession(f"r{number:05d}", asked, path, prompt, limit, first))
        for i in range(written + 1):
            target = path[prompt + i] if i < written else 5
            right = draw.random() < (after_right if right else after_wrong)
            targets[first + i] = target
            drafts[first + i] = [target if right else 99, 98, 97, 96]
            tops[first + i, 0] = [target, 3, 4] if right else [99, target, 4]
            scores[0, first + i, 0] = draw.betavariate(4, 2) if right else draw.betavariate(2, 3)
    depths = np.array([draw.choice((3, 4)) for _ in range(rows * DEPTH)], np.uint8).reshape(rows, DEPTH)
    tables = TraceTables(
        targets,
        counts,
        drafts,
        tops,
        dict(zip(LOGIT_SCORES, scores, strict=True)),
        depths if exits else np.full_like(depths, 4),
        np.stack([attention, 1 - attention], 1),
        np.zeros((len(targets), 0), np.int32),
        np.zeros((len(targets), 2, 0, 2), np.int32),
        np.zeros((len(targets), 2, 0), np.int32),
    )
    rule = EarlyExitRule("margin", 0.7, 0.25) if exits else None
    return OutcomeTrace(tuple(recorded), tables, None, 0, 4, 8, (1,), {"pair": "a made-up pair"}, rule)
