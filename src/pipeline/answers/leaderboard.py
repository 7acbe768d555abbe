"""`+experiment=leaderboard`: every policy in every setting that it can serve, under several seeds, in one table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pipeline.answers import leaderboard_page
from pipeline.answers.asked import Asked
from pipeline.answers.candidates import Candidate
from pipeline.answers.leaderboard_report import (
    Board,
    Setting,
    SettingResult,
    board_parts,
    left_out_notes,
    notes,
    page_text,
)
from pipeline.answers.rows import COST, SERVICE, Row, serve_rows
from pipeline.answers.words import check_each_once, joined, kept_by_none, unused_note
from pipeline.artifacts import fingerprint
from pipeline.errors import ConfigError
from pipeline.report.export.write import write_tables
from pipeline.report.plan import describe_plan
from pipeline.report.table import markdown, print_parts

MAX_CELLS = 1200


@dataclass(frozen=True)
class Leaderboard:
    """The options of a leaderboard, see conf/experiment/leaderboard.yaml. Raises ValueError for none of a kind.

    `own_words` are further words of single policies. `page` is a Markdown file that the board is written to as well.
    """

    KEYS: ClassVar[tuple[str, ...]] = ("leaderboard",)
    FOR_ONE_POLICY: ClassVar[str] = """"+leaderboard.own_words.{policy}=['{key}={value}']\""""

    policies: tuple[str, ...]
    settings: Mapping[str, Setting]
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
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
        if self.requests < 1:
            raise ValueError(f"leaderboard.requests is {self.requests}; each cell serves 1 request or more")
        unknown = [name for name in self.named_settings if name not in self.settings]
        if unknown:
            raise ValueError(f"leaderboard.in has {unknown[0]!r}; there are {', '.join(self.settings)}")
        check_each_once("leaderboard.in", self.named_settings)
        check_each_once("leaderboard.seeds", self.seeds)

    def answer(self, asked: Asked) -> None:
        """Serves the cells, prints the board, and writes it below OUTPUTS/leaderboard."""
        names = self.named_settings or tuple(self.settings)
        pairs = [(name, policy) for name in names for policy in self._policies(self.settings[name], asked.policies)]
        if not pairs:
            raise ConfigError(
                f"leaderboard: no setting of {', '.join(names)} compares {', '.join(asked.policies)}; name other "
                "settings (leaderboard.in=[NAME]) or policies (+policy=a,b)."
            )
        if len(pairs) * len(self.seeds) > MAX_CELLS:
            raise ConfigError(
                f"leaderboard: {len(pairs) * len(self.seeds)} cells are more than {MAX_CELLS}; name fewer policies "
                "(+policy=a,b), settings or seeds."
            )
        first = [self._cell(asked, name, policy, self.seeds[0]) for name, policy in pairs]
        if unused := kept_by_none(asked.words, first):
            where = "leaderboard.requests, leaderboard.seeds, leaderboard.settings"
            print(f"note: {unused_note(unused, where)}", file=asked.out, flush=True)
        if asked.plan_only:
            self._print_plan(asked, pairs, first)
            return
        board = self._serve(asked, pairs, asked.evaluator.build_inputs(first))
        self._write(asked, board)

    def _print_plan(self, asked: Asked, pairs: Sequence[tuple[str, str]], cells: Sequence[tuple[str, ...]]) -> None:
        """`cells` are the first of each pair of setting and policy. Raises ConfigError if none can be served."""
        stages, problems = asked.evaluator.planned_stages(cells)
        left_out = {(self.settings[name].title, policy): problems[words]
                    for (name, policy), words in zip(pairs, cells, strict=True) if words in problems}  # fmt: skip
        if left_out and len(left_out) == len(pairs):
            raise ConfigError(f"leaderboard: no cell can be served: {'; '.join(dict.fromkeys(left_out.values()))}")
        without = [f"{label} {text}" for label, text in left_out_notes(left_out)]
        cells_left = f"then {(len(pairs) - len(left_out)) * len(self.seeds)} cells of {self.requests} requests"
        print(describe_plan(stages), *without, cells_left, sep="\n", file=asked.out, flush=True)

    def _policies(self, setting: Setting, named: tuple[str, ...]) -> list[str]:
        """The setting's own policies, else the board's; of these the `named` ones, if there are any."""
        wanted = dict.fromkeys([*(named or setting.only or self.policies), *self.add])
        return [policy for policy in wanted if not setting.only or policy in setting.only]

    def _cell(self, asked: Asked, setting: str, policy: str, seed: int) -> tuple[str, ...]:
        number = (f"workload.num_prompts={self.requests}", f"seed={seed}")
        there = self.settings[setting]
        own = (self.own_words.get(policy, ()), there.words, there.own.get(policy, ()))
        return joined(self.base, asked.words, number, *own, Candidate(policy).words)

    def _serve(self, asked: Asked, pairs: Sequence[tuple[str, str]], problems: Mapping[tuple[str, ...], str]) -> Board:
        """Serves the pairs of setting and policy, but those with a problem."""
        left_out: dict[tuple[str, str], str] = {}
        rows: dict[str, list[Row]] = {name: [] for name, _ in pairs}
        cells = {pair: [self._cell(asked, *pair, seed) for seed in self.seeds] for pair in pairs}
        served = [pair for pair in pairs if cells[pair][0] not in problems]
        found = serve_rows(asked.evaluator, "leaderboard", [(Candidate(pair[1]), cells[pair]) for pair in served])
        known = dict(zip(served, found, strict=True))
        for name, policy in pairs:
            row = known.get((name, policy)) or problems[cells[name, policy][0]]
            if isinstance(row, Row):
                rows[name].append(row)
            else:
                left_out[self.settings[name].title, policy] = row
        ordered = {name: tuple(sorted(own, key=lambda row: not row.lossless)) for name, own in rows.items()}
        results = [SettingResult(name, self.settings[name], own) for name, own in ordered.items() if own]
        return Board(tuple(results), left_out)

    def _write(self, asked: Asked, board: Board) -> None:
        command = asked.command
        remarks = tuple(notes(board, command, self.requests, len(self.seeds)))
        parts = board_parts(board, remarks)
        print_parts(parts, asked.out)
        folder = asked.outputs / "leaderboard"
        folder.mkdir(parents=True, exist_ok=True)
        fingerprint.write_atomic(folder / "leaderboard.md", markdown(parts))
        fingerprint.write_atomic(folder / "leaderboard.html", leaderboard_page.html(board, remarks, command))
        tables = write_tables([result.table for result in board.results], ("latex", "csv"), folder, command)
        if self.page:
            fingerprint.write_atomic(Path(self.page), page_text(parts, command))
        print(f"\nwritten: {folder}: leaderboard.md, leaderboard.html, a .tex and a .csv of each setting",
              file=asked.out, flush=True)  # fmt: skip
        metrics = {f"{result.name}/{row.candidate.policy}/{key}": row.metrics[key] for result in board.results
                   for row in result.rows for key in (SERVICE, COST) if key in row.metrics}  # fmt: skip
        files = [folder / "leaderboard.md", folder / "leaderboard.html", *tables]
        asked.log("leaderboard", {"command": command[:400]}, metrics, files)
