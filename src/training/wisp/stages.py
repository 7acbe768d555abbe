"""Stages of WISP that configuration names: the token trace, the rejection predictor, and its evaluations."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from serving.core.decoding import Decoding
from serving.deployment.prompt_lengths import check_prompts
from serving.engines.models import Checkpoint
from serving.policy.policy import EngineRequirements
from serving.policy.slots.early_exit import EarlyExit
from serving.progress import Progress
from serving.workload.workload import Workload
from training.fitting.trainer import CPU_TRAINER, Trainer
from training.wisp.families import PredictorFamily, check_several
from training.wisp.mlp import MLP
from training.wisp.rules import CoverageRule, ThresholdRule
from training.wisp.samples import load_samples, statistic_rows


def check_record_token_trace(*, device: Checkpoint, cloud: Checkpoint, workload: Workload, **_: object) -> None:
    """Raises ValueError for prompts that are too few or too long."""
    check_prompts(workload, cloud, device)


def record_token_trace(
    out: Path,
    *,
    progress: Progress,
    work: Path | None = None,
    device: Checkpoint,
    cloud: Checkpoint,
    workload: Workload,
    k: int,
    early_exit: EarlyExit,
    decoding: Decoding,
    seed: int = 0,
    accelerator: str = "cpu",
) -> None:
    """Serves prompts with every window of `k` drafts verified; writes tokens.parquet (WISP, appendix B).

    One row per drafted token: session, round, position, the four scores, and the outcome: accepted, rejected (the first
    of its window) or after (behind that one; not used for training). tokens.json has the sources.
    """
    from serving.deployment.model_loading import load_models, make_queries
    from serving.outcomes.kept_sessions import kept_in
    from serving.outcomes.offline import run_untimed
    from serving.policy.slots.draft import WindowDraft
    from training.wisp import trace
    from training.wisp.evaluation import tracing_policy

    models = load_models(device, cloud, accelerator)
    asked = make_queries(workload, decoding, seed, 1, models.tokenizer)
    policy = tracing_policy(WindowDraft(k), early_exit)
    records = run_untimed(policy, models, asked, seed, progress, kept=kept_in(work))
    tokens = trace.trace_from_decisions(
        {query.request.session: records[query.request.session].draft_decisions for query in asked}
    )
    made_from = {
        "pair": f"{device.display_name} + {cloud.display_name}",
        "data": f"{workload.dataset.name}, {len(asked)} prompts",
        "k": str(k),
        "layer-wise exit": repr(early_exit.layer_exit),
        "seed": str(seed),
    }
    trace.write(out, tokens, made_from)


def train_rejection_predictor(
    out: Path,
    *,
    progress: Progress,
    token_trace: Path,
    device: Checkpoint,
    cloud: Checkpoint,
    workload: Workload,
    k: int,
    early_exit: EarlyExit,
    decoding: Decoding,
    mlp: MLP = MLP(),  # noqa: B008
    rule: ThresholdRule = CoverageRule(),  # noqa: B008
    seed: int = 0,
    accelerator: str = "cpu",
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Trains WISP's predictor on `token_trace`, and serves the prompts of the test part with and without it.

    Writes predictor.json, predictor.safetensors and metrics.json. `workload`, `decoding` and `seed` are those of the
    trace. Raises ValueError, with the figures, for a predictor that does not raise the acceptance rate.
    """
    from serving.core.scores import by_name
    from serving.deployment.model_loading import load_models, make_queries
    from training.wisp import trace, train

    split = load_samples(token_trace).split(seed)
    found = train.train(split, mlp, rule, seed, trainer, progress)
    models = load_models(device, cloud, accelerator, EngineRequirements(by_name([found])))
    held_out = set(split.test.sessions.tolist())
    asked = [q for q in make_queries(workload, decoding, seed, 1, models.tokenizer) if q.request.session in held_out]
    if len(asked) < len(held_out):
        raise ValueError("the trace was made from other prompts than this workload's; profile again with stage=profile")
    found, _ = train.evaluate_served(found, models, asked, k, early_exit, seed, progress)
    train.write(out, replace(found, made_from=trace.made_from(token_trace) | {"split": f"by session, seed {seed}"}))


def describe_token_trace(
    out: Path, *, token_trace: Path, statistic: Literal["counts", "acceptance", "correlation"]
) -> None:
    """Counts, acceptance rates by score, or correlations of a trace: rows.json (WISP, Table 8, Fig. 2 and 3)."""
    _write(out, "rows.json", statistic_rows(load_samples(token_trace), statistic))


def check_compare_predictors(*, families: Sequence[PredictorFamily], **_: object) -> None:
    """Raises ValueError for two families with one name."""
    names = [one.name for one in families]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"families has {twice[0]} twice; a table has one row a name, so compare them in two stages")


def compare_predictors(
    out: Path,
    *,
    progress: Progress,
    token_trace: Path,
    families: tuple[PredictorFamily, ...],
    rule: ThresholdRule = CoverageRule(),  # noqa: B008
    seeds: tuple[int, ...] = (0,),
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Trains every family on one split by session a seed, and judges it at 0.5 and at the threshold of `rule`:
    rows.json (WISP, Tables 4 and 10, Fig. 10).
    """
    from training.wisp.comparison import chosen_threshold_rows, rows_by_seed

    samples = load_samples(token_trace)

    def rows(seed: int, progress: Progress) -> Any:
        return chosen_threshold_rows(families, samples.split(seed), rule, seed, trainer, progress)

    _write(out, "rows.json", rows_by_seed(seeds, rows, progress))


def evaluate_family(
    out: Path,
    *,
    progress: Progress,
    token_trace: Path,
    family: PredictorFamily = MLP(),  # noqa: B008
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Trains one family on `token_trace` and judges it on validation and test: metrics.json (WISP, Table 9)."""
    from training.wisp.comparison import family_metrics

    _write(out, "metrics.json", family_metrics(family, load_samples(token_trace).split(seed), seed, trainer, progress))


def check_compare_at_recall(*, families: Sequence[PredictorFamily], recalls: Sequence[float], **_: object) -> None:
    """Raises ValueError for recalls that are no shares, and two families with one name."""
    check_compare_predictors(families=families)
    _check_recalls(recalls)


def compare_at_recall(
    out: Path,
    *,
    progress: Progress,
    token_trace: Path,
    families: tuple[PredictorFamily, ...],
    recalls: Sequence[float],
    seeds: tuple[int, ...] = (0,),
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """False-positive rates of all families at the same recalls, trained on one split a seed: rows.json.

    Raises ValueError for recalls that are no shares.
    """
    from training.wisp.comparison import matched_recall_rows, rows_by_seed
    from training.wisp.families import fit_families

    _check_recalls(recalls)
    samples = load_samples(token_trace)

    def rows(seed: int, progress: Progress) -> Any:
        split = samples.split(seed)
        fitted = fit_families(families, split, seed, trainer, progress)
        chances = {name: one.probabilities(split.test.features) for name, one in fitted}
        return matched_recall_rows(chances, split.test, recalls)

    _write(out, "rows.json", rows_by_seed(seeds, rows, progress))


def check_measure_predictor_latency(*, families: Sequence[PredictorFamily], **_: object) -> None:
    """Raises ValueError for two families with one name."""
    check_compare_predictors(families=families)


def measure_predictor_latency(
    out: Path,
    *,
    progress: Progress,
    token_trace: Path,
    families: tuple[PredictorFamily, ...],
    num_calls: int = 1000,
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
    machine: str = "",  # noqa: ARG001
) -> None:
    """Seconds per token of each family on this machine, in one thread: rows.json (WISP, Table 11).

    `machine` is part of the artifact's identity only, so that two machines can share outputs.
    """
    from training.wisp.evaluation import token_latency
    from training.wisp.families import fit_families

    split = load_samples(token_trace).split(seed)
    fitted = fit_families(families, split, seed, trainer, progress)
    rows = {name: token_latency(one, split.test.features, num_calls) for name, one in fitted}
    _write(out, "rows.json", {"this machine": rows})


def check_measure_waste(
    *,
    families: Mapping[str, PredictorFamily],
    seeds: Sequence[int] = (0,),
    recalls: Sequence[float] = (0.5, 0.65, 0.8, 0.9, 0.95),
    **_: object,
) -> None:
    """Raises ValueError for recalls that are no shares, and for fewer than two predictors."""
    _check_recalls(recalls)
    check_several(len(families) * len(seeds))


def measure_waste(
    out: Path,
    *,
    progress: Progress,
    token_trace: Path,
    families: Mapping[str, PredictorFamily],
    seeds: Sequence[int] = (0,),
    recalls: Sequence[float] = (0.5, 0.65, 0.8, 0.9, 0.95),
    k: int = 8,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Wasted drafts against false alarms of many trained predictors, on held-out windows: rows.json (WISP, Theorem 1).

    Each of `families` (by its name in tables) is trained with each of `seeds`, and read at thresholds with these
    `recalls` on validation. The split is that of the first seed. Raises ValueError for windows longer than `k` and for
    fewer than two predictors.
    """
    from training.wisp import theorem1

    found = theorem1.measure_theorem(load_samples(token_trace), families, seeds, recalls, k, trainer, progress)
    _write(out, "rows.json", theorem1.rows(found))
    _write(out, "metrics.json", theorem1.metrics(found))


def _check_recalls(recalls: Sequence[float]) -> None:
    if not recalls or not all(0 < at < 1 for at in recalls):
        raise ValueError(f"recalls are {list(recalls)}; give shares between 0 and 1, as 0.75")


def _write(out: Path, name: str, node: Any) -> None:
    (out / name).write_text(json.dumps(node), encoding="utf-8")
