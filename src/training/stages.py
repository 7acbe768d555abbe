"""What configuration may name as a stage of training or profiling, beside `corpus`, `pair` and `quality`."""

from pathlib import Path

from serving.decoding import Decoding
from serving.pair import Pair
from serving.progress import Progress
from serving.slots.draft import Draft
from serving.workload.workload import Workload


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
    pair: Pair,
    workload: Workload,
    draft: Draft,
    decoding: Decoding,
    c_quantile: float,
    seed: int,
) -> None:
    """Verifies every draft on prompts that are not served; writes thresholds.json (Synera, section 5).

    c_th is the `c_quantile` of the confidence of fully accepted chunks: the paper does not say how it becomes a number.
    """
    from serving.offline import play
    from serving.open import open_models, queries
    from serving.thresholds import Thresholds
    from training.thresholds import acceptance, cutoff, mean_score, profiling_policy

    models = open_models(pair.device, pair.cloud)
    asked = queries(workload, decoding, seed, 1, models)
    records = play(profiling_policy(draft), models, asked, seed, progress)
    chunks = [chunk for query in asked for chunk in records[query.call.session].chunks]
    Thresholds(
        c_th=cutoff(chunks, c_quantile),
        alpha=acceptance(chunks),
        confidence=tuple(mean_score(c, "confidence") for c in chunks),
        importance=tuple(mean_score(c, "importance") for c in chunks),
        made_from={
            "pair": f"{pair.device.where} + {pair.cloud.where}",
            "data": f"{workload.dataset.name}, {len(asked)} prompts",
            "draft": repr(draft),
            "fully accepted": f"{sum(c.accepted == len(c.tokens) for c in chunks)} of {len(chunks)} chunks",
        },
    ).save(out)
