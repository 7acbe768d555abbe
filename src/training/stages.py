"""What configuration may name as a stage of training or profiling, beside `corpus` and `pair`."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from serving.core.decoding import Decoding
from serving.engines.models import Checkpoint, Dtype, Pair
from serving.hardware.architecture import Architecture
from serving.policy.engine_requirements import Provision
from serving.policy.slots.draft import Draft
from serving.policy.slots.early_exit import EarlyExit
from serving.progress import Progress
from serving.workload.workload import Workload
from training.fitting.trainer import ALL_CORES, Trainer
from training.latency.grid import Effort
from training.wisp.families import Family
from training.wisp.mlp import MLP
from training.wisp.rules import Coverage, Rule


def profile_latency(
    out: Path,
    *,
    progress: Progress,
    pair: Pair,
    effort: Effort = Effort(),  # noqa: B008
    accelerator: str = "cpu",
    machine: str = "",  # noqa: ARG001
) -> None:
    """Times both models of a pair on this machine and fits WISP, Eq. 19 (section 4.4 and appendix C).

    Writes latency.json, the coefficients; profile.json, what they are made of; profile.txt, metrics.json, figures and
    chip.yaml, a chip to keep. `machine` only names it, so that outputs shared by two machines keep a profile of each.
    """
    from training.latency.profile import profile_pair
    from training.latency.timing import Accelerator

    profile_pair(out, progress, pair, Accelerator(accelerator), effort)


def profile_published(
    out: Path,
    *,
    progress: Progress,
    drafting: tuple[Architecture, ...] = (),
    verifying: tuple[Architecture, ...] = (),
    dtype: Dtype = "fp16",
    effort: Effort = Effort(),  # noqa: B008
    accelerator: str = "cpu",
    machine: str = "",  # noqa: ARG001
) -> None:
    """Times models of published shapes with random weights, as devices draft or as a cloud verifies; the same artifact.

    Raises ValueError, with the arithmetic, for a model that does not fit into memory.
    """
    from training.latency.profile import profile_shapes
    from training.latency.timing import Accelerator

    profile_shapes(out, progress, drafting, verifying, dtype, Accelerator(accelerator), effort)


def profile_from_csv(
    out: Path,
    *,
    file: Path,
    architectures: tuple[Architecture, ...],
    place: str,
    effort: Effort = Effort(),  # noqa: B008
) -> None:
    """Fits timings that somebody else measured, on `place`; the columns are in `training.latency.timings_file`.

    Writes the same artifact. Of `effort` only bootstraps, folds and the seed count. Raises ValueError by line.
    """
    from training.latency.artifact import write
    from training.latency.measured import Measured
    from training.latency.timings_file import read_timings

    timings = read_timings(file, architectures, effort.seed)
    measured = [Measured(each.name, each, place, effort, timings[each.name]) for each in architectures]
    write(out, f"timings of one's own ({place})", measured, {"processor": place})


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
    from serving.deployment.model_loading import open_models, queries
    from serving.learned.thresholds import Thresholds
    from serving.outcomes.offline import play
    from serving.policy.slots.uncertainty_offload import perplexity
    from training.synera.thresholds import acceptance, best_cutoff, cutoff, mean_score, profiling_policy

    models = open_models(device, cloud, accelerator, Provision(draft.scorers))
    asked = queries(workload, decoding, seed, 1, models.tokenizer)
    records = play(profiling_policy(draft, early_exit), models, asked, seed, progress)
    chunks = [chunk for query in asked for chunk in records[query.call.session].chunks]
    if not chunks:
        raise ValueError(
            "not one draft was made on the profiling prompts; raise workload.profiling.prompts or max_new_tokens"
        )
    Thresholds(
        c_th=best_cutoff(chunks, k) if c_quantile is None else cutoff(chunks, c_quantile),
        alpha=acceptance(chunks),
        confidence=tuple(mean_score(c, "confidence") for c in chunks),
        importance=tuple(mean_score(c, "importance") for c in chunks),
        openings=tuple(perplexity(r.chunks[0].scores["confidence"]) for r in records.values() if r.chunks),
        made_from={
            "pair": f"{device.named} + {cloud.named}",
            "data": f"{workload.dataset.name}, {len(asked)} prompts",
            "draft": repr(draft),
            "layer-wise exit": repr(early_exit.layer),
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

    from serving.deployment.model_loading import open_models, queries
    from training.synera import alignment_report
    from training.synera import alignment_report as table
    from training.synera.alignment import align

    models = open_models(device, cloud, accelerator)
    found = align(models, queries(workload, Decoding(), seed, 1, models.tokenizer), gamma, seed, progress)
    rows = table.rows(found)
    (out / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    (out / "metrics.json").write_text(json.dumps(table.metrics(found, rows), indent=1), encoding="utf-8")
    alignment_report.draw(found, rows, out / "figures")


def measure_quality(
    out: Path, *, progress: Progress, corpus: Path, large: Path, small: Path, items_per_task: int, trainer: Trainer
) -> None:
    """Accuracy, ROUGE-1, acceptance, calibration and cost of the pair on test items: quality.json and a table."""
    import json

    from training.embedded_pair.quality import measure, scorecard

    measure(
        out, progress=progress, corpus=corpus, large=large, small=small, items_per_task=items_per_task, trainer=trainer
    )
    report = json.loads((out / "quality.json").read_text(encoding="utf-8"))
    (out / "quality.txt").write_text(scorecard(report) + "\n", encoding="utf-8")


def record_tokens(
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
    from serving.deployment.model_loading import open_models, queries
    from serving.outcomes.offline import play
    from serving.policy.slots.draft import Window
    from training.wisp import trace
    from training.wisp.evaluation import judging_policy

    models = open_models(device, cloud, accelerator)
    asked = queries(workload, decoding, seed, 1, models.tokenizer)
    records = play(judging_policy(Window(k), early_exit), models, asked, seed, progress)
    tokens = trace.gather({query.call.session: records[query.call.session].chunks for query in asked})
    made_from = {
        "pair": f"{device.named} + {cloud.named}",
        "data": f"{workload.dataset.name}, {len(asked)} prompts",
        "k": str(k),
        "layer-wise exit": repr(early_exit.layer),
        "seed": str(seed),
    }
    trace.write(out, tokens, made_from)


def train_rejection_predictor(
    out: Path,
    *,
    progress: Progress,
    tokens: Path,
    device: Checkpoint,
    cloud: Checkpoint,
    workload: Workload,
    k: int,
    early_exit: EarlyExit,
    decoding: Decoding,
    mlp: MLP = MLP(),  # noqa: B008
    rule: Rule = Coverage(),  # noqa: B008
    seed: int = 0,
    accelerator: str = "cpu",
    trainer: Trainer = ALL_CORES,
) -> None:
    """Trains WISP's predictor on the trace `tokens`, and serves the prompts of its test part with and without it.

    Writes predictor.json, predictor.safetensors and metrics.json. `workload`, `decoding` and `seed` are those of the
    trace. Raises ValueError, with the figures, for a predictor with which no larger share of the drafts is accepted.
    """
    from serving.core.scores import ACCEPT
    from serving.deployment.model_loading import open_models, queries
    from training.wisp import trace, train
    from training.wisp.samples import load

    split = load(tokens).split(seed)
    found = train.train(split, mlp, rule, seed, trainer, progress)
    models = open_models(device, cloud, accelerator, Provision({ACCEPT: found}))
    held_out = set(split.test.sessions.tolist())
    asked = [q for q in queries(workload, decoding, seed, 1, models.tokenizer) if q.call.session in held_out]
    if len(asked) < len(held_out):
        raise ValueError("the trace was made from other prompts than this workload's; profile again with stage=profile")
    found, _ = train.serve(found, models, asked, k, early_exit, seed, progress)
    train.write(out, replace(found, made_from=trace.made_from(tokens) | {"split": f"by session, seed {seed}"}))


def describe_tokens(out: Path, *, tokens: Path, part: Literal["counts", "acceptance", "correlation"]) -> None:
    """Counts of a trace, acceptance by score or correlations, as rows.json (WISP, Table 8, Fig. 2 and 3)."""
    import json

    from training.wisp import sample_table
    from training.wisp.samples import load

    (out / "rows.json").write_text(json.dumps(sample_table.rows(load(tokens), part)), encoding="utf-8")


def compare_predictors(
    out: Path,
    *,
    progress: Progress,
    tokens: Path,
    families: tuple[Family, ...],
    rule: Rule = Coverage(),  # noqa: B008
    seed: int = 0,
    trainer: Trainer = ALL_CORES,
) -> None:
    """Every family trained on one split by session, and judged at 0.5 and where `rule` puts its threshold; rows.json
    (WISP, Tables 4 and 10, Fig. 10).
    """
    import json

    from training.wisp import comparison
    from training.wisp.samples import load

    found = comparison.rows(families, load(tokens).split(seed), rule, seed, trainer, progress)
    (out / "rows.json").write_text(json.dumps(found), encoding="utf-8")
