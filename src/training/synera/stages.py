"""Stages of Synera that configuration names: the profiled thresholds and the alignment of both models."""

import json
from pathlib import Path

from serving.core.decoding import Decoding
from serving.deployment.prompt_lengths import check_prompts
from serving.engines.models import Checkpoint
from serving.policy.policy import EngineRequirements, scorers_of
from serving.policy.slots.draft import Draft
from serving.policy.slots.early_exit import EarlyExit
from serving.progress import Progress
from serving.workload.workload import Workload


def check_profile_thresholds(
    *, device: Checkpoint, cloud: Checkpoint, workload: Workload, c_quantile: float | None = None, **_: object
) -> None:
    """Raises ValueError for a `c_quantile` that is no share, and for prompts that are too few or too long."""
    if c_quantile is not None and not 0 <= c_quantile <= 1:
        raise ValueError(f"c_quantile is {c_quantile}; give a share from 0 to 1, or null for the best threshold")
    check_prompts(workload, cloud, device)


def profile_thresholds(
    out: Path,
    *,
    progress: Progress,
    work: Path | None = None,
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
    from serving.outcomes.kept_sessions import kept_in
    from serving.outcomes.offline import run_untimed
    from training.synera.thresholds import profiled_thresholds, profiling_policy

    models = load_models(device, cloud, accelerator, EngineRequirements(scorers_of(draft)))
    queries = make_queries(workload, decoding, seed, 1, models.tokenizer)
    records = run_untimed(profiling_policy(draft, early_exit), models, queries, seed, progress, kept=kept_in(work))
    decisions = [records[query.request.session].draft_decisions for query in queries]
    made_from = {
        "pair": f"{device.display_name} + {cloud.display_name}",
        "data": f"{workload.dataset.name}, {len(queries)} prompts",
        "draft": repr(draft),
        "layer-wise exit": repr(early_exit.layer_exit),
        "seed": str(seed),
    }
    profiled_thresholds(decisions, c_quantile, k, made_from).save(out)


def check_measure_alignment(*, device: Checkpoint, cloud: Checkpoint, workload: Workload, **_: object) -> None:
    """Raises ValueError for prompts that are too few or too long."""
    check_prompts(workload, cloud, device)


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
