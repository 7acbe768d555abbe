"""`+experiment=leaderboard`: every policy in every setting that it can serve, under several seeds, in one table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pipeline.answers import leaderboard_page, leaderboard_report
from pipeline.answers.asked import Asked
from pipeline.answers.board import Board, Setting
from pipeline.answers.candidates import Candidate
from pipeline.answers.ranking import Row
from pipeline.answers.words import joined
from pipeline.artifacts import fingerprint
from pipeline.errors import ConfigError
from pipeline.report.plan import describe_plan
from pipeline.report.table import csv_text, markdown, print_parts

MAX_CELLS = 600


@dataclass(frozen=True)
class Leaderboard:
    """The options of a leaderboard, see conf/experiment/leaderboard.yaml. Raises ValueError for none of a kind.

    `own_words` are further words of single policies. `page` is a Markdown file that the board is written to as well.
    """

    KEYS: ClassVar[tuple[str, ...]] = ("leaderboard",)

    policies: tuple[str, ...]
    settings: Mapping[str, Setting]
    seeds: tuple[int, ...] = (0, 1, 2)
    requests: int = 120
    base: tuple[str, ...] = ()
    own_words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    add: tuple[str, ...] = ()
    """Policies beside these, of a user's own package for example."""
    page: str | None = None
    named_settings: tuple[str, ...] = ()
    """Names of settings; empty: all."""

    def __post_init__(self) -> None:
        for name in ("policies", "settings", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"leaderboard.{name} is empty; a board needs one at least")
        unknown = [name for name in self.named_settings if name not in self.settings]
        if unknown:
            raise ValueError(f"leaderboard.in has {unknown[0]!r}; there are {', '.join(self.settings)}")

    def answer(self, asked: Asked) -> None:
        """Serves the cells, prints the board, and writes it below OUTPUTS/leaderboard."""
        policies = tuple(dict.fromkeys([*(asked.policies or self.policies), *self.add]))
        names = self.named_settings or tuple(self.settings)
        wanted = [(name, policy) for name in names for policy in policies if _belongs(self.settings[name], policy)]
        if len(wanted) * len(self.seeds) > MAX_CELLS:
            raise ConfigError(
                f"leaderboard: {len(wanted) * len(self.seeds)} cells are more than {MAX_CELLS}; name fewer policies "
                "(+policy=a,b), settings or seeds."
            )
        first = [self._cell(asked, name, policy, self.seeds[0]) for name, policy in wanted]
        if asked.plan_only:
            stages = asked.evaluator.planned_stages(first)
            cells = f"then {len(wanted) * len(self.seeds)} cells of {self.requests} requests"
            print(f"{describe_plan(stages)}\n{cells}", file=asked.out, flush=True)
            return
        board = self._serve(asked, wanted, asked.evaluator.build_inputs(first))
        self._write(asked, board)

    def _cell(self, asked: Asked, setting: str, policy: str, seed: int) -> tuple[str, ...]:
        number = (f"workload.num_prompts={self.requests}", f"seed={seed}")
        own = (self.own_words.get(policy, ()), self.settings[setting].words)
        return joined(self.base, asked.words, number, *own, Candidate(policy).words)

    def _serve(self, asked: Asked, wanted: Sequence[tuple[str, str]], problems: Mapping[tuple[str, ...], str]) -> Board:
        left_out = {
            (name, policy): problem
            for name, policy in wanted
            if (problem := problems.get(self._cell(asked, name, policy, self.seeds[0])))
        }
        served = [pair for pair in wanted if pair not in left_out]
        cells = [self._cell(asked, name, policy, seed) for name, policy in served for seed in self.seeds]
        results = asked.evaluator.evaluate("leaderboard", cells)
        rows: dict[str, list[Row]] = {name: [] for name, _ in wanted}
        for place, (name, policy) in enumerate(served):
            own = results[place * len(self.seeds) : (place + 1) * len(self.seeds)]
            wrong = [one.problem for one in own if one.problem]
            if wrong:
                left_out[name, policy] = wrong[0]
            else:
                rows[name].append(Row(Candidate(policy), tuple(own)))
        return Board(self.settings, {name: tuple(own) for name, own in rows.items()}, left_out)

    def _write(self, asked: Asked, board: Board) -> None:
        command = " ".join(["python -m pipeline +experiment=leaderboard", *asked.words])
        found = leaderboard_report.board_report(board, command, len(self.seeds), self.requests)
        print_parts(found.parts, asked.out)
        folder = asked.outputs / "leaderboard"
        folder.mkdir(parents=True, exist_ok=True)
        fingerprint.write_atomic(folder / "leaderboard.md", markdown(found.parts))
        fingerprint.write_atomic(folder / "leaderboard.csv", csv_text(found.records))
        fingerprint.write_atomic(folder / "leaderboard.json", json.dumps(found.records, indent=1) + "\n")
        fingerprint.write_atomic(folder / "leaderboard.html", leaderboard_page.html(found, board, command))
        if self.page:
            fingerprint.write_atomic(Path(self.page), leaderboard_report.page_text(found, command))
        print(f"\nwritten: {folder / 'leaderboard.md'}, .html, .csv, .json", file=asked.out, flush=True)


def _belongs(setting: Setting, policy: str) -> bool:
    return not setting.only or policy in setting.only
