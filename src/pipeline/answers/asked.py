"""A question as a command asks it: the objects of its configuration, the command's own words, and where answers go."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TextIO

from pipeline.answers.evaluation import Evaluator
from pipeline.answers.words import key_of, without
from pipeline.config.arguments import choices_given
from pipeline.config.build import ConfigSchema, construct
from pipeline.errors import ConfigError
from pipeline.parallel.workers import create_workers
from pipeline.report.mlflow_logger import MlflowLogger
from pipeline.report.mlflow_store import Tracking, changes_result, mask_override, tolerate_mlflow_errors

if TYPE_CHECKING:
    from omegaconf import DictConfig

NOT_OF_CELLS = ("experiment", "policy", "tracking", "report", "stage", "force", "hydra")
"""Keys of a command that asks which its cells do not have: `policy` names the candidates."""


@dataclass(frozen=True)
class Asked:
    """A command's `words` for its cells, the `policies` that it names, and the means to serve cells."""

    evaluator: Evaluator
    words: tuple[str, ...]
    policies: tuple[str, ...]
    outputs: Path
    tracking: Tracking
    plan_only: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    given: tuple[str, ...] = ()
    """The command's words as they were given, those of the question included, without secrets and folders."""

    @property
    def command(self) -> str:
        return shlex.join(["python", "-m", "pipeline", *self.given])

    def log(self, name: str, params: Mapping[str, str], metrics: Mapping[str, float], files: Sequence[Path]) -> None:
        """One run of the MLflow experiment, with what was found; without a store that answers, a line says so."""
        with tolerate_mlflow_errors(self.tracking, lambda text: print(text, file=self.out, flush=True)):
            if self.tracking.enabled:
                logger = MlflowLogger.open(self.tracking)
                run = logger.start_run(name, tags={"tandem.kind": "answer"})
                with logger.ending(run):
                    logger.log_params(run, params)
                    logger.log_metrics(run, metrics)
                    logger.log_files(run, files)


class Question(Protocol):
    """What `hydra.sweeper.question` describes."""

    KEYS: ClassVar[tuple[str, ...]]
    """Top-level keys of the command that are the question's own, and no words of its cells."""

    FOR_ONE_POLICY: ClassVar[str]
    """The word that gives an option to the candidates of one policy, over {policy}, {key} and {value}."""

    def answer(self, asked: Asked) -> None:
        """Serves cells, prints the answer and writes its files. Raises UserError for what a user can mend."""


def check_no_option(arguments: Sequence[str], policies: Sequence[str], for_one_policy: str) -> None:
    """Raises ConfigError for an option of the command's policy: each candidate has a policy of its own."""
    for word in arguments:
        key, _, value = word.partition("=")
        if key.lstrip("+~").startswith("policy."):
            instead = for_one_policy.format(policy=next(iter(policies), "sled"), key=key, value=value)
            raise ConfigError(
                f"{word} is an option of one policy, and a question compares candidates, each with a policy of its "
                f"own. Name the policy that it is for: {instead}."
            )


def ask(
    question: Mapping[str, Any], workers: Mapping[str, Any], arguments: Sequence[str], config: "DictConfig",
    config_dir: Path | None,
) -> None:  # fmt: skip
    """Answers the question of a composed command. Raises UserError."""
    stage = str(config.get("stage", "all"))
    if stage not in ("all", "plan"):
        raise ConfigError(f"stage is {stage!r}; a question is asked with stage=all, or planned with stage=plan.")
    outputs = Path(str(config.outputs)).absolute()
    schema = ConfigSchema(lambda path: str(path), lambda _class, _name: None)
    asked: Question = construct(schema.coerce(question, Any, "hydra.sweeper.question"), None)
    tracking = Tracking(config.tracking.uri, config.tracking.experiment, str(outputs))
    evaluator = Evaluator(create_workers(dict(workers)), str(config_dir) if config_dir else None)
    words = without(arguments, (*NOT_OF_CELLS, *asked.KEYS))
    policies = choices_given(arguments, "policy")
    check_no_option(arguments, policies, asked.FOR_ONE_POLICY)
    given = tuple(f"+{word}" if word.startswith(("policy=", "experiment=")) else word for word in arguments)
    shown = tuple(mask_override(word) for word in given if changes_result(key_of(word)))
    asked.answer(Asked(evaluator, tuple(words), tuple(policies), outputs, tracking, stage == "plan", given=shown))
