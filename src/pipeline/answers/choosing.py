"""`+experiment=choose`: the search of `choose.py` with its options, its report, and the policy file that it leaves."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pipeline.answers import choose_report
from pipeline.answers.asked import Asked
from pipeline.answers.candidates import Candidate
from pipeline.answers.cell import composed_cell
from pipeline.answers.choose import Answer, Effort, Question, Search
from pipeline.answers.chosen_policy import check_name, policy_text, write_policy
from pipeline.answers.evaluation import LOSSY
from pipeline.answers.front import front_figure
from pipeline.answers.ranking import excess, is_measured
from pipeline.answers.rows import COST, SERVICE
from pipeline.answers.words import joined, mixed_networks, sets_any, unused_note
from pipeline.artifacts import fingerprint
from pipeline.config.arguments import chosen_folder
from pipeline.config.preflight import check_chosen_on_open_prompts
from pipeline.errors import ConfigError
from pipeline.report import figures
from pipeline.report.export.write import write_tables
from pipeline.report.plan import describe_plan
from pipeline.report.table import markdown, print_parts

if TYPE_CHECKING:
    from omegaconf import DictConfig

NETWORK = ("network",)


@dataclass(frozen=True)
class Choosing:
    """The options of a search, see conf/experiment/choose.yaml. Raises ValueError for an unknown effort.

    `networks` are shares of devices by network; None: all devices have the run's network.
    """

    KEYS: ClassVar[tuple[str, ...]] = ("choose", "require")
    FOR_ONE_POLICY: ClassVar[str] = """"++choose.policies.{policy}={{{key}:'{value}'}}\""""

    question: Question
    efforts: Mapping[str, Effort]
    effort: str = "first"
    name: str = "chosen"
    networks: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.effort not in self.efforts:
            raise ValueError(f"choose.effort is {self.effort!r}; there are {', '.join(self.efforts)}")

    def answer(self, asked: Asked) -> None:
        """Searches, prints the answer, and writes it with its policy below OUTPUTS/chosen."""
        check_name(self.name)
        for note in self.question.require.unusual():
            print(f"note: {note}", file=asked.out, flush=True)
        search = self._search(asked)
        if unused := search.unused_words():
            where = "choose.efforts, choose.search, choose.held_out"
            print(f"note: {unused_note(unused, where)}", file=asked.out, flush=True)
            search.words = tuple(word for word in search.words if word not in unused)
        if asked.plan_only:
            stages = search.plan_inputs()
            if len(search.left_out) == len(search.question.policies):
                raise ConfigError(_nothing_to_choose(search))
            lines = [f"without {name}: {reason}" for name, reason in search.left_out.items()]
            lines.append(f"then {_planned_cells(search)}")
            print(describe_plan(stages), *lines, sep="\n", file=asked.out, flush=True)
        else:
            self._write(asked, search.words, search.run())

    def _search(self, asked: Asked) -> Search:
        """The search that the command asks for: its policies, its networks, and the same profiling for all cells."""
        question, effort = self.question, self.efforts[self.effort]
        if asked.policies:
            question = replace(question, policies={name: question.policies.get(name) for name in asked.policies})
        question.check_devices(asked.words)
        most = f"workload.num_prompts={effort.requests[2]}"
        first = question.words(Candidate(next(iter(question.policies), "")), asked.words, [most])
        with composed_cell(first, asked.evaluator.config_dir) as cfg:
            check_chosen_on_open_prompts(cfg, "choose")
            mixed, own_links = self._mixed_networks(cfg), bool(self.networks) or _all_have_links(cfg)
            profiling = f"workload.profiling.skip={cfg.workload.profiling.skip}"  # else by each rung's requests
        left = {}
        if own_links:
            varied = question.sensitivity
            own = [name for name in varied if any(sets_any(w, NETWORK) for v in varied[name].values() for w in v)]
            question = replace(question, sensitivity={name: v for name, v in varied.items() if name not in own})
            left = dict.fromkeys(own, "not varied: each device has a network of its own")
        return Search(question, effort, asked.evaluator, joined(asked.words, mixed, [profiling]), left)

    def _mixed_networks(self, cfg: "DictConfig") -> tuple[str, ...]:
        """The words of a testbed with devices on several networks; none where all have the run's."""
        if not self.networks:
            return ()
        device = cfg.hardware.get("device")
        if device is None:
            raise ConfigError("choose.networks splits the devices of hardware.device, and this testbed has none.")
        devices = cfg.workload.devices or device.count
        try:
            return mixed_networks(self.networks, {str(key): value for key, value in device.items()}, int(devices))
        except ValueError as problem:
            raise ConfigError(f"choose.{problem}.") from problem

    def _write(self, asked: Asked, words: tuple[str, ...], found: Answer) -> None:
        shown = found.question.words_beside(found.claimed.candidate, words)
        report = choose_report.answer_report(found, shown, self.name)
        print_parts(report.parts, asked.out)
        folder = chosen_folder(asked.outputs) / self.name
        folder.mkdir(parents=True, exist_ok=True)
        fingerprint.write_atomic(folder / "answer.md", markdown(report.parts))
        fingerprint.write_atomic(folder / "answer.json", json.dumps(report.data, indent=1) + "\n")
        tables = write_tables(report.tables, ("latex", "csv"), folder)
        front = self._draw_front(found, folder / "front.png")
        comments = [report.sentence, f"Chosen for: {found.question.require.describe()}; {' '.join(shown)}".rstrip("; ")]
        policy = write_policy(asked.outputs, self.name, policy_text(self.name, found.claimed.candidate, comments))
        run = shlex.join(["python", "-m", "pipeline", f"+policy={self.name}", *shown])
        print(f"\npolicy: {policy}\nrun it: {run}\nreport: {folder / 'answer.md'}, {front}", file=asked.out, flush=True)
        metrics = {f"claimed/{key}": value for key, value in found.claimed.metrics.items()}
        held_out = found.chosen_held_out.metrics if found.chosen_held_out else {}
        metrics |= {f"held_out/{key}": value for key, value in held_out.items()}
        params = {"require": found.question.require.describe(), "chosen": found.claimed.candidate.described}
        files = [folder / "answer.md", folder / "answer.json", *tables, front, policy]
        asked.log(f"choose {self.name}", params, metrics, files)

    def _draw_front(self, found: Answer, path: Path) -> Path:
        """By the first two objectives; with one, the second axis is the service time a token, or the cost."""
        x = found.question.objective[0]
        y = next(one for one in (*found.question.objective[1:], SERVICE, COST) if one != x)
        require = found.question.require
        kept = [row for row in found.tried if excess(row, require) == 0 and is_measured(row, require)]
        title = "Candidates of the first rung; the line: the front of those that keep the requirements"
        return figures.save_figure(front_figure(found.tried, kept, (x, y)), path, title)


def _nothing_to_choose(search: Search) -> str:
    named, reasons = ", ".join(search.left_out), list(dict.fromkeys(search.left_out.values()))
    if reasons == [LOSSY]:
        return (
            f"choose: of {named} none writes the cloud model's own text here; name others, or require.lossless=false."
        )
    return f"choose: of {named} none can be served here: {'; '.join(reasons)}"


def _all_have_links(cfg: "DictConfig") -> bool:
    """True for a testbed that gives each of its devices a link, so that the run's network has no say."""
    fleets = cfg.hardware.get("fleets") or [cfg.hardware.get("device")]
    return all(fleet is not None and fleet.get("network") is not None for fleet in fleets)


def _planned_cells(search: Search) -> str:
    effort, policies = search.effort, len(search.question.policies) - len(search.left_out)
    return (
        f"{policies} policies as they are and {effort.trials} drawn candidates with "
        f"{effort.requests[0]} requests each, the best {effort.keep[0]} with {effort.requests[1]}, {effort.keep[1]} "
        f"with {effort.requests[2]} under {len(effort.seeds)} seeds"
    )
