"""Which answers of a steady state were as fast as their class promises."""

from collections import defaultdict
from math import inf
from statistics import fmean
from typing import Literal

from serving.messages import INF
from serving.studies.capacity.meter import Answer, Meter
from serving.studies.capacity.offered_load import Load
from serving.workload.slo import SloClass

Speed = Literal["asked", "first_token"]
Counts = tuple[dict[str, int], dict[str, int], dict[str, float]]
"""Answers asked, those that were too slow, and mean tokens a second of complete ones, by class."""


class Answered:
    """Judges the answers of a load; speed counts from the question on (`asked`), or from the first token on."""

    def __init__(self, load: Load, rule: Speed) -> None:
        self._rule = rule
        self._promised = {query.call.session: query.slo for query in load.queries}
        self._limits = {query.call.session: query.call.limit for query in load.queries}

    def is_known(self, meter: Meter, now: float, enough: float) -> bool:
        """Have all answers ended, or are more than `enough` of them late already?"""
        answers = meter.answers.values()
        if all(answer.ended_s < INF for answer in answers):
            return True
        return sum(self._is_late(answer, now) for answer in answers) > enough * len(answers)

    def counts(self, meter: Meter) -> Counts:
        """What has not ended is late: the run lasts as long as the slowest class's answers may."""
        asked: dict[str, int] = defaultdict(int)
        violated: dict[str, int] = defaultdict(int)
        reached: dict[str, list[float]] = defaultdict(list)
        for answer in meter.answers.values():
            name, speed = self._class(answer).name, self._speed(answer)
            asked[name] += 1
            violated[name] += speed < self._class(answer).tokens_per_s
            if 0 < speed < inf:
                reached[name].append(speed)
        return dict(asked), dict(violated), {name: fmean(own) for name, own in reached.items()}

    def _is_late(self, answer: Answer, now: float) -> bool:
        rate = self._class(answer).tokens_per_s
        if answer.ended_s < INF:
            return self._speed(answer) < rate
        return self._rule == "asked" and now > answer.asked_s + self._limits[answer.session] / rate

    def _speed(self, answer: Answer) -> float:
        """Tokens a second; 0 where the answer has not ended."""
        if answer.ended_s == INF:
            return 0.0
        asked = self._rule == "asked"
        since_s, n = (answer.asked_s, answer.tokens) if asked else (answer.first_s, answer.tokens - 1)
        return n / (answer.last_s - since_s) if answer.last_s > since_s else inf

    def _class(self, answer: Answer) -> SloClass:
        promised = self._promised[answer.session]
        assert promised is not None
        return promised
