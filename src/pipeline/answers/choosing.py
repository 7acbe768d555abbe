"""`+experiment=choose`: the search of `choose.py` with its options, its report, and the policy file that it leaves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pipeline.answers import choose_report
from pipeline.answers.asked import Asked
from pipeline.answers.candidates import CandidateSpace
from pipeline.answers.cell import composed_cell
from pipeline.answers.choose import Answer, Effort, Question, Search, Variation
from pipeline.answers.chosen_policy import check_name, policy_text, write_policy
from pipeline.answers.requirements import Requirements
from pipeline.answers.words import joined, mixed_networks, without
from pipeline.artifacts import fingerprint
from pipeline.config.arguments import chosen_folder
from pipeline.errors import ConfigError
from pipeline.report.mlflow_logger import MlflowLogger
from pipeline.report.mlflow_store import tolerate_mlflow_errors
from pipeline.report.plan import describe_plan
from pipeline.report.table import markdown, print_parts
from serving.metrics import definitions


@dataclass(frozen=True)
class Choosing:
    """The options of a search, see conf/experiment/choose.yaml. Raises ValueError for an unknown effort or objective.

    `networks` are shares of devices by network; empty: all devices have the run's network.
    """

    KEYS: ClassVar[tuple[str, ...]] = ("choose",)

    require: Requirements
    policies: Mapping[str, Any]
    efforts: Mapping[str, Effort]
    effort: str = "first"
    name: str = "chosen"
    objective: tuple[str, ...] = ("cost/usd_per_million_tokens", "latency/service_s_per_token/mean")
    networks: Mapping[str, float] = field(default_factory=dict)
    base: tuple[str, ...] = ()
    own_words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    search: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    sensitivity: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.effort not in self.efforts:
            raise ValueError(f"choose.effort is {self.effort!r}; there are {', '.join(self.efforts)}")
        if not self.objective:
            raise ValueError("choose.objective is empty; name one metric at least, such as cost/usd_per_million_tokens")
        for name in self.objective:
            metric = definitions.find(name)
            if metric is None or metric.better != "lower":
                raise ValueError(
                    f"choose.objective has {name!r}; name metrics that are better when lower, as `python -m pipeline "
                    "show metrics` lists them"
                )

    def answer(self, asked: Asked) -> None:
        """Searches, prints the answer, and writes it with its policy below OUTPUTS/chosen."""
        check_name(self.name)
        question = self._question(asked)
        words = joined(self._with_networks(asked, question), self._same_profiling(asked, question))
        search = Search(question, asked.evaluator, words)
        if asked.plan_only:
            space = CandidateSpace.parse(question.policies)
            stages = asked.evaluator.planned_stages(list(search.input_cells(space)), self.require.lossless)
            print(f"{describe_plan(stages)}\nthen {_planned_cells(question)}", file=asked.out, flush=True)
            return
        found = search.run()
        self._write(asked, found)

    def _question(self, asked: Asked) -> Question:
        policies: Mapping[str, Any] = self.policies
        if asked.policies:
            policies = {name: self.policies.get(name) for name in asked.policies}
        variations = {name: Variation(values) for name, values in self.sensitivity.items()}
        return Question(
            self.require, policies, self.efforts[self.effort], self.objective, self.base, self.search, self.held_out,
            self.text, variations, self.own_words, self.seed,
        )  # fmt: skip

    def _same_profiling(self, asked: Asked, question: Question) -> tuple[str, ...]:
        """The word that keeps all cells to the profiling prompts of the last rung: otherwise each number of requests
        would have a predictor of its own.
        """
        most = f"workload.num_prompts={question.effort.requests[2]}"
        words = joined(self.base, asked.words, [most, f"policy={next(iter(question.policies))}"])
        with composed_cell(words, asked.evaluator.config_dir) as cfg:
            return (f"workload.profiling.skip={cfg.workload.profiling.skip}",)

    def _with_networks(self, asked: Asked, question: Question) -> tuple[str, ...]:
        """The command's words; with `networks`, those of a testbed whose devices have several links."""
        if not self.networks:
            return asked.words
        words = joined(self.base, asked.words, [f"policy={next(iter(question.policies))}"])
        with composed_cell(words, asked.evaluator.config_dir) as cfg:
            device = cfg.hardware.get("device")
            if device is None:
                raise ConfigError("choose.networks splits the devices of hardware.device, and this testbed has none.")
            devices = self.require.devices_min or cfg.workload.devices or device.count
            fleet = {str(key): value for key, value in device.items()}
        try:
            mixed = mixed_networks(self.networks, fleet, int(devices))
        except ValueError as problem:
            raise ConfigError(f"choose.{problem}.") from problem
        return joined(asked.words, mixed)

    def _write(self, asked: Asked, found: Answer) -> None:
        report = choose_report.answer_report(found, asked.words, self.name)
        print_parts(report.parts, asked.out)
        folder = chosen_folder(asked.outputs) / self.name
        folder.mkdir(parents=True, exist_ok=True)
        comments = [
            report.sentence,
            f"Chosen for: {self.require.describe()}; of {' '.join(asked.words) or 'the defaults'}.",
        ]
        path = write_policy(asked.outputs, self.name, policy_text(self.name, found.claimed.candidate, comments))
        fingerprint.write_atomic(folder / "answer.md", markdown(report.parts))
        fingerprint.write_atomic(folder / "answer.json", json.dumps(report.data, indent=1) + "\n")
        figure = choose_report.draw_front(found, folder / "front.png")
        run = f"python -m pipeline +policy={self.name} {' '.join(without(asked.words, ['runtime']))}".rstrip()
        print(f"\npolicy: {path}\nrun it: {run}\nreport: {folder / 'answer.md'}, {figure}", file=asked.out, flush=True)
        self._log(asked, found, [folder / "answer.md", folder / "answer.json", figure, path])

    def _log(self, asked: Asked, found: Answer, files: Sequence[Any]) -> None:
        """One run of the MLflow experiment with the chosen row's metrics and the files."""
        tracking = replace(asked.tracking, outputs=str(asked.outputs))
        with tolerate_mlflow_errors(tracking, lambda text: print(text, file=asked.out, flush=True)):
            if tracking.enabled:
                logger = MlflowLogger.open(tracking)
                run = logger.start_run(f"choose {self.name}", tags={"tandem.kind": "answer"})
                logger.log_params(
                    run, {"require": self.require.describe(), "chosen": found.claimed.candidate.described}
                )
                logger.log_metrics(run, {f"claimed/{k}": v for k, v in found.claimed.metrics.items()})
                logger.log_metrics(run, {f"held_out/{k}": v for k, v in found.sealed.metrics.items()})
                logger.log_files(run, files)
                logger.end_run(run)


def _planned_cells(question: Question) -> str:
    effort = question.effort
    return (
        f"{len(question.policies)} policies as they are and {effort.trials} drawn candidates with {effort.requests[0]} "
        f"requests each, the best {effort.keep[0]} with {effort.requests[1]}, {effort.keep[1]} with "
        f"{effort.requests[2]} under {len(effort.seeds)} seeds"
    )
