"""What configuration may name as a stage of training or profiling, beside `corpus` and `pair`."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from serving.core.decoding import Decoding
from serving.engines.models import Checkpoint, Dtype, ModelPair
from serving.hardware.architecture import Architecture
from serving.policy.policy import EngineRequirements
from serving.policy.slots.draft import Draft
from serving.policy.slots.early_exit import EarlyExit
from serving.progress import Progress
from serving.workload.workload import Workload
from training.fitting.trainer import CPU_TRAINER, Trainer
from training.latency.grid import ProfilingOptions
from training.wisp.families import PredictorFamily
from training.wisp.mlp import MLP
from training.wisp.rules import CoverageRule, ThresholdRule


def profile_latency(
    out: Path,
    *,
    progress: Progress,
    pair: ModelPair,
    options: ProfilingOptions = ProfilingOptions(),  # noqa: B008
    accelerator: str = "cpu",
    machine: str = "",  # noqa: ARG001
) -> None:
    """Times both models of a pair on this machine and fits WISP, Eq. 19 (section 4.4 and appendix C).

    Writes latency.json, the coefficients; profile.json, what they are made of; profile.txt, metrics.json, figures and
    chip.yaml, a chip to keep. `machine` only names it, so that outputs shared by two machines keep a profile of each.
    """
    from training.latency.profile import profile_pair
    from training.latency.timing import Accelerator

    profile_pair(out, progress, pair, Accelerator(accelerator), options)


def profile_published(
    out: Path,
    *,
    progress: Progress,
    draft_architectures: tuple[Architecture, ...] = (),
    target_architectures: tuple[Architecture, ...] = (),
    dtype: Dtype = "fp16",
    options: ProfilingOptions = ProfilingOptions(),  # noqa: B008
    accelerator: str = "cpu",
    machine: str = "",  # noqa: ARG001
) -> None:
    """Times models of published shapes with random weights, as devices draft or as a cloud verifies; the same artifact.

    Raises ValueError, with the arithmetic, for a model that does not fit into memory.
    """
    from training.latency.profile import profile_architectures
    from training.latency.timing import Accelerator

    profile_architectures(
        out, progress, draft_architectures, target_architectures, dtype, Accelerator(accelerator), options
    )


def profile_from_csv(
    out: Path,
    *,
    file: Path,
    architectures: tuple[Architecture, ...],
    measured_on: str,
    options: ProfilingOptions = ProfilingOptions(),  # noqa: B008
) -> None:
    """Fits timings that somebody else measured, on `measured_on`; the columns are in `training.latency.timings_file`.

    Writes the same artifact. Of `options` only bootstraps, folds and the seed count. Raises ValueError by line.
    """
    from training.latency.artifact import write_profile
    from training.latency.measured import ModelProfile
    from training.latency.timings_file import read_timings

    timings = read_timings(file, architectures, options.seed)
    measured = [ModelProfile(each.name, each, measured_on, options, timings[each.name]) for each in architectures]
    write_profile(out, f"timings of one's own ({measured_on})", measured, {"processor": measured_on})


def profile_thresholds(
    out: Path,
    *,
    progress: Progress,
    device: Checkpoint,
    cloud: Checkpoint,
    workload: Workload,
    draft: Draft,
    early_exit: EarlyExit,
    decoding: Decoding,
    seed: int,
    c_quantile: float | None = None,
    k: float = 10.0,
    accelerator: str = "cpu",
) -> None:
    """Verifies every draft on prompts that are not served; writes thresholds.json (Synera, section 5).

    The paper does not say how c_th becomes a number. By default it is the one at which P_conf, of steepness `k`, best
    parts fully accepted chunks from others; else the `c_quantile` of the confidence of the former.
    """
    from serving.deployment.model_loading import load_models, make_queries
    from serving.learned.thresholds import Thresholds
    from serving.outcomes.offline import run_untimed
    from serving.policy.slots.uncertainty_offload import perplexity
    from training.synera.thresholds import (
        acceptance_rate,
        best_threshold,
        mean_score,
        profiling_policy,
        quantile_threshold,
    )

    models = load_models(device, cloud, accelerator, EngineRequirements(draft.scorers))
    asked = make_queries(workload, decoding, seed, 1, models.tokenizer)
    records = run_untimed(profiling_policy(draft, early_exit), models, asked, seed, progress)
    chunks = [chunk for query in asked for chunk in records[query.request.session].draft_decisions]
    if not chunks:
        raise ValueError(
            "not one draft was made on the profiling prompts; raise workload.profiling.num_prompts or max_new_tokens"
        )
    Thresholds(
        c_th=best_threshold(chunks, k) if c_quantile is None else quantile_threshold(chunks, c_quantile),
        alpha=acceptance_rate(chunks),
        confidence=tuple(mean_score(c, "confidence") for c in chunks),
        importance=tuple(mean_score(c, "importance") for c in chunks),
        first_chunk_perplexities=tuple(
            perplexity(r.draft_decisions[0].scores["confidence"]) for r in records.values() if r.draft_decisions
        ),
        made_from={
            "pair": f"{device.display_name} + {cloud.display_name}",
            "data": f"{workload.dataset.name}, {len(asked)} prompts",
            "draft": repr(draft),
            "layer-wise exit": repr(early_exit.layer_exit),
            "seed": str(seed),
            "fully accepted": f"{sum(c.accepted == len(c.tokens) for c in chunks)} of {len(chunks)} chunks",
        },
    ).save(out)


def measure_alignment(
    out: Path,
    *,
    progress: Progress,
    device: Checkpoint,
    cloud: Checkpoint,
    workload: Workload,
    gamma: int = 4,
    seed: int = 0,
    accelerator: str = "cpu",
) -> None:
    """How often the small model's tokens are the large one's, by confidence, and what importance tells of it.

    On the large model's greedy answers to the workload's prompts, with drafts of `gamma` tokens; writes rows.json for
    an exhibit, metrics.json and figures (Synera, section 3.2, Fig. 4 and 5b).
    """
    import json

    from serving.deployment.model_loading import load_models, make_queries
    from training.synera import alignment_report
    from training.synera import alignment_report as table
    from training.synera.alignment import align

    models = load_models(device, cloud, accelerator)
    found = align(models, make_queries(workload, Decoding(), seed, 1, models.tokenizer), gamma, seed, progress)
    rows = table.rows(found)
    (out / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    (out / "metrics.json").write_text(json.dumps(table.metrics(found, rows), indent=1), encoding="utf-8")
    alignment_report.draw_figures(found, rows, out / "figures")


def measure_quality(
    out: Path, *, progress: Progress, corpus: Path, large: Path, small: Path, items_per_task: int, trainer: Trainer
) -> None:
    """Accuracy, ROUGE-1, acceptance, calibration and cost of the pair on test items: quality.json and a table."""
    import json

    from training.embedded_pair.quality import measure_pair, scorecard

    measure_pair(
        out, progress=progress, corpus=corpus, large=large, small=small, items_per_task=items_per_task, trainer=trainer
    )
    report = json.loads((out / "quality.json").read_text(encoding="utf-8"))
    (out / "quality.txt").write_text(scorecard(report) + "\n", encoding="utf-8")


def record_token_trace(
    out: Path,
    *,
    progress: Progress,
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

    One row a drafted token: session, round, position, the four scores, and accepted, rejected (the first of its
    window) or after (behind that one, of no use to training, but drafted). tokens.json says what it was made from.
    """
    from serving.deployment.model_loading import load_models, make_queries
    from serving.outcomes.offline import run_untimed
    from serving.policy.slots.draft import WindowDraft
    from training.wisp import trace
    from training.wisp.evaluation import tracing_policy

    models = load_models(device, cloud, accelerator)
    asked = make_queries(workload, decoding, seed, 1, models.tokenizer)
    records = run_untimed(tracing_policy(WindowDraft(k), early_exit), models, asked, seed, progress)
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
    """Trains WISP's predictor on the trace `token_trace`, and serves the prompts of its test part with and without it.

    Writes predictor.json, predictor.safetensors and metrics.json. `workload`, `decoding` and `seed` are those of the
    trace. Raises ValueError, with the figures, for a predictor with which no larger share of the drafts is accepted.
    """
    from serving.core.scores import ACCEPTANCE
    from serving.deployment.model_loading import load_models, make_queries
    from training.wisp import trace, train
    from training.wisp.samples import load_samples

    split = load_samples(token_trace).split(seed)
    found = train.train(split, mlp, rule, seed, trainer, progress)
    models = load_models(device, cloud, accelerator, EngineRequirements({ACCEPTANCE: found}))
    held_out = set(split.test.sessions.tolist())
    asked = [q for q in make_queries(workload, decoding, seed, 1, models.tokenizer) if q.request.session in held_out]
    if len(asked) < len(held_out):
        raise ValueError("the trace was made from other prompts than this workload's; profile again with stage=profile")
    found, _ = train.evaluate_served(found, models, asked, k, early_exit, seed, progress)
    train.write(out, replace(found, made_from=trace.made_from(token_trace) | {"split": f"by session, seed {seed}"}))


def describe_token_trace(
    out: Path, *, token_trace: Path, statistic: Literal["counts", "acceptance", "correlation"]
) -> None:
    """Counts of a trace, acceptance by score or correlations, as rows.json (WISP, Table 8, Fig. 2 and 3)."""
    import json

    from training.wisp import sample_table
    from training.wisp.samples import load_samples

    (out / "rows.json").write_text(
        json.dumps(sample_table.rows(load_samples(token_trace), statistic)), encoding="utf-8"
    )


def compare_predictors(
    out: Path,
    *,
    progress: Progress,
    token_trace: Path,
    families: tuple[PredictorFamily, ...],
    rule: ThresholdRule = CoverageRule(),  # noqa: B008
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Every family trained on one split by session, and judged at 0.5 and where `rule` puts its threshold; rows.json
    (WISP, Tables 4 and 10, Fig. 10).
    """
    import json

    from training.wisp import comparison
    from training.wisp.samples import load_samples

    found = comparison.rows(families, load_samples(token_trace).split(seed), rule, seed, trainer, progress)
    (out / "rows.json").write_text(json.dumps(found), encoding="utf-8")
