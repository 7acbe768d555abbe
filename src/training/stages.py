"""What configuration may name as a stage of training or profiling, beside `corpus` and `pair`."""

from pathlib import Path

from serving.decoding import Decoding
from serving.pair import Checkpoint, Pair
from serving.progress import Progress
from serving.slots.draft import Draft
from serving.workload.workload import Workload
from training.trainer import Trainer


def profile_latency(
    out: Path,
    *,
    progress: Progress,
    pair: Pair,
    configurations: int = 40,
    repeats: int = 7,
    longest: int = 256,
    machine: str = "",  # noqa: ARG001
    seed: int = 0,
) -> None:
    """Times the engine on this machine; writes latency.json, the coefficients, and profile.json, what they are made of.

    `machine` only names it, so that outputs shared by two machines keep a profile of each.

    `configurations` shapes of work are fitted, half as many held out, each the median of those of `repeats`
    runs that nobody disturbed; no session has more than `longest` tokens (WISP, section 4.4 and appendix C).
    """
    from training.latency_profile import Effort, profile

    profile(out, progress, pair, Effort(configurations, repeats, longest, seed))


def profile_thresholds(
    out: Path,
    *,
    progress: Progress,
    device: Checkpoint,
    cloud: Checkpoint,
    workload: Workload,
    draft: Draft,
    decoding: Decoding,
    c_quantile: float,
    seed: int,
    accelerator: str = "cpu",
) -> None:
    """Verifies every draft on prompts that are not served; writes thresholds.json (Synera, section 5).

    c_th is the `c_quantile` of the confidence of fully accepted chunks: the paper does not say how it becomes a number.
    """
    from serving.drivers.offline import play
    from serving.open import open_models, queries
    from serving.thresholds import Thresholds
    from training.thresholds import acceptance, cutoff, mean_score, profiling_policy

    models = open_models(device, cloud, accelerator)
    asked = queries(workload, decoding, seed, 1, models.tokenizer)
    records = play(profiling_policy(draft), models, asked, seed, progress)
    chunks = [chunk for query in asked for chunk in records[query.call.session].chunks]
    if not chunks:
        raise ValueError(
            "not one draft was made on the profiling prompts; raise workload.profiling.prompts or max_new_tokens"
        )
    Thresholds(
        c_th=cutoff(chunks, c_quantile),
        alpha=acceptance(chunks),
        confidence=tuple(mean_score(c, "confidence") for c in chunks),
        importance=tuple(mean_score(c, "importance") for c in chunks),
        made_from={
            "pair": f"{named(device)} + {named(cloud)}",
            "data": f"{workload.dataset.name}, {len(asked)} prompts",
            "draft": repr(draft),
            "seed": str(seed),
            "fully accepted": f"{sum(c.accepted == len(c.tokens) for c in chunks)} of {len(chunks)} chunks",
        },
    ).save(out)


def named(checkpoint: Checkpoint) -> str:
    """An artifact's stage and digest, or what else tells a checkpoint from others, without the path to it."""
    return "/".join(checkpoint.path.parts[-2:]) if checkpoint.path else str(checkpoint.hub)


def measure_quality(
    out: Path, *, progress: Progress, corpus: Path, large: Path, small: Path, items_per_task: int, trainer: Trainer
) -> None:
    """Accuracy, ROUGE-1, acceptance, calibration and cost of the pair on test items: quality.json and a table."""
    import json

    from training.quality import measure
    from training.scorecard import scorecard

    measure(
        out, progress=progress, corpus=corpus, large=large, small=small, items_per_task=items_per_task, trainer=trainer
    )
    report = json.loads((out / "quality.json").read_text(encoding="utf-8"))
    (out / "quality.txt").write_text(scorecard(report) + "\n", encoding="utf-8")
