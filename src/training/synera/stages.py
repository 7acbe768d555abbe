"""Stages of Synera that configuration names: the profiled thresholds and the alignment of both models."""

import json
from pathlib import Path

from serving.core.decoding import Decoding
from serving.core.scores import IMPORTANCE
from serving.engines.models import Checkpoint
from serving.policy.policy import EngineRequirements, scorers_of
from serving.policy.slots.draft import Draft
from serving.policy.slots.early_exit import EarlyExit
from serving.progress import Progress
from serving.workload.workload import Workload


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
    """Verifies every draft on profiling prompts; writes thresholds.json (Synera, section 5).

    The paper does not say how c_th is chosen. By default it is the value at which P_conf, of steepness `k`, best
    separates fully accepted drafts from others; with `c_quantile`, that quantile of the former's confidence.
    """
    from serving.deployment.model_loading import load_models, make_queries
    from serving.learned.thresholds import Thresholds
    from serving.outcomes.offline import run_untimed
    from serving.policy.slots.uncertainty_offload import perplexity
    from training.synera.thresholds import (
        acceptance_rate,
        best_threshold,
        full_drafts,
        importance_aucs,
        mean_score,
        profiling_policy,
        quantile_threshold,
        readings,
    )

    models = load_models(device, cloud, accelerator, EngineRequirements(scorers_of(draft)))
    queries = make_queries(workload, decoding, seed, 1, models.tokenizer)
    records = run_untimed(profiling_policy(draft, early_exit), models, queries, seed, progress)
    decisions = [each for query in queries for each in records[query.request.session].draft_decisions]
    if not decisions:
        raise ValueError(
            "not one draft was made on the profiling prompts; raise workload.profiling.num_prompts or max_new_tokens"
        )
    num_fully_accepted = sum(c.accepted == len(c.tokens) for c in decisions)

    def by_name(score: str) -> tuple[float, ...]:
        return tuple(mean_score(each, score) for each in decisions)

    Thresholds(
        c_th=best_threshold(decisions, k) if c_quantile is None else quantile_threshold(decisions, c_quantile),
        alpha=acceptance_rate(decisions),
        confidence=by_name("confidence"),
        importance=by_name(IMPORTANCE),
        first_chunk_perplexities=tuple(
            perplexity(r.draft_decisions[0].scores["confidence"]) for r in records.values() if r.draft_decisions
        ),
        made_from={
            "pair": f"{device.display_name} + {cloud.display_name}",
            "data": f"{workload.dataset.name}, {len(queries)} prompts",
            "draft": repr(draft),
            "layer-wise exit": repr(early_exit.layer_exit),
            "seed": str(seed),
            "fully accepted": f"{num_fully_accepted} of {len(decisions)} drafts",
        },
        num_fully_accepted=num_fully_accepted,
        importance_readings={name: by_name(name) for name in readings(decisions) if name != IMPORTANCE},
        importance_auc=importance_aucs(decisions),
        importance_auc_of_full_chunks=importance_aucs(full_drafts(decisions)),
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
    """Measures how often the small model's tokens equal the large model's, by confidence and importance.

    Uses the large model's greedy answers to the workload's prompts and drafts of `gamma` tokens. Writes rows.json,
    metrics.json and figures (Synera, section 3.2, Fig. 4 and 5b).
    """
    from serving.deployment.model_loading import load_models, make_queries
    from training.synera import alignment_report
    from training.synera.alignment import align

    models = load_models(device, cloud, accelerator)
    found = align(models, make_queries(workload, Decoding(), seed, 1, models.tokenizer), gamma, seed, progress)
    rows = alignment_report.rows(found)
    (out / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    (out / "metrics.json").write_text(json.dumps(alignment_report.metrics(found, rows), indent=1), encoding="utf-8")
    alignment_report.draw_figures(found, rows, out / "figures")
