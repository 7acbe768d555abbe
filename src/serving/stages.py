"""What configuration may name as a stage of serving."""

from pathlib import Path

from serving.core.decoding import Decoding
from serving.deployment.queries import Query
from serving.deployment.setup import Setup
from serving.drivers.observer import Observer
from serving.engines.models import Checkpoint
from serving.hardware.architecture import Architecture
from serving.hardware.payload_size import NUMBERS, Number
from serving.hardware.replica_packing import Packing
from serving.learned.medusa import Medusa
from serving.log.recording import Recording
from serving.metrics.batch_timing import Watch
from serving.metrics.utilisation import Occupancy
from serving.policy.engine_requirements import PLAIN
from serving.policy.policy import Policy
from serving.policy.slots.early_exit import EarlyExit
from serving.policy.slots.routed_offload import Router
from serving.progress import Progress
from serving.runtimes.runtime import Runtime
from serving.workload.workload import Workload


def check_serve(*, setup: Setup, runtime: Runtime, **_: object) -> None:
    """Raises ValueError for a setup that this runtime does not play."""
    runtime.check(setup)


def serve(
    out: Path,
    *,
    progress: Progress,
    setup: Setup,
    runtime: Runtime,
    record: Recording | None = None,
    packing: Packing | None = None,
    repeat: int = 0,  # noqa: ARG001
    accelerator: str = "cpu",
) -> None:
    """Serves the workload, and writes requests.parquet, timeline.parquet, chunks.parquet, batches.parquet and
    meta.json.

    `record` says what else is written: the event log, a trace to look at. `repeat` only tells runs of one configuration
    apart, where time is real and no two are alike. `packing` is the cloud's unit of cost. `accelerator` is the torch
    device that the models run on.
    """
    from serving.runtimes import run_results

    with (record or Recording()).open(out, {}) as recorded:
        watch = Watch()
        occupancy = Occupancy() if setup.hardware.tiers else None
        watching: list[Observer] = [watch] if setup.placed and runtime.detail else []
        watching += [occupancy] if occupancy else []
        served = runtime.serve(setup, accelerator, progress, (*recorded.observers, *watching))
        recorded.note(layers=served.layers, timeout_s=served.timeout_s)
    run_results.write(out, setup, runtime, served, packing, watch.batches, occupancy)


def record_outcomes(
    out: Path,
    *,
    progress: Progress,
    work: Path,
    device: Checkpoint,
    cloud: Checkpoint,
    workload: Workload,
    decoding: Decoding,
    seed: int,
    early_exit: EarlyExit,
    policy: Policy | None = None,
    medusa: Medusa | None = None,
    router: Router | None = None,
    depth: int = 8,
    most: int = 480,
    accelerator: str = "cpu",
) -> None:
    """Records what both models write at each position of each answer; writes a trace that a simulation reads.

    `policy` None (or a lossless one): the target's own greedy text; else the text that this policy writes under
    `seed`. Drafts leave layers early as the policy's do, or without one as `early_exit` says; `medusa` are heads of
    the target that propose trees of drafts, and of a `router` the score of each draft is kept. `depth` is how many
    tokens the drafter continues from each position: the longest window that the trace answers exactly; no prompt is
    recorded twice, and `most` of them at most: a simulation deals further requests onto them. Raises ValueError for
    sampled text.
    """
    from serving.deployment.model_loading import open_models, queries
    from serving.outcomes import store
    from serving.outcomes.record import TraceRecording
    from serving.outcomes.replayed import check_greedy

    check_greedy(decoding)
    models = open_models(device, cloud, accelerator, policy.provision if policy else PLAIN)
    once: dict[str, Query] = {}
    for query in queries(workload, decoding, seed, 1, models.tokenizer):
        once.setdefault(query.prompt.id, query)
    asked = list(once.values())[:most]
    made_from = {"pair": f"{device.named} + {cloud.named}", "data": f"{workload.dataset.name}, {len(asked)} prompts"}
    rule = (policy.early_exit if policy else early_exit).layer
    store.save(
        out, TraceRecording(models, policy, seed, depth, made_from, rule, medusa, router).take(asked, work, progress)
    )
    models.tokenizer.hf.save_pretrained(out / store.TOKENIZER)


def fit_outcomes(out: Path, *, trace: Path, seed: int = 0) -> None:
    """Fits an acceptance model to a recorded trace; writes it with its goodness of fit."""
    from serving.outcomes import fit, fitted, store

    fitted.save(out, fit.fitted(store.load(trace), seed))


def pack(out: Path, *, packing: Packing, architectures: tuple[Architecture, ...]) -> None:
    """Packing factors of several models (Synera, Table 3); writes rows.json, a table for an exhibit."""
    import json

    rows = {}
    for architecture in architectures:
        packed = packing.packed(architecture)
        value = packed.copies / packing.packed(packing.reference).copies
        rows[architecture.name] = {
            "factor": value, "copies": packed.copies, "chips": packed.chips, "bound": packed.bound,
        }  # fmt: skip
    (out / "rows.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


def mix(
    out: Path, *, setup: Setup, lengths: tuple[int, ...] = (), prompt: int = 2048, chunks: tuple[int, ...] = ()
) -> None:
    """What prompts of these `lengths`, or one prompt in these `chunks`, cost nine sessions that decode beside them;
    rows.json, a table for an exhibit (HAT, Fig. 1c and 1d).
    """
    import json

    from serving.studies.prefill_interference import Mixing

    mixing = Mixing(setup)
    rows = mixing.by_chunk(prompt, chunks) if chunks else mixing.by_prompt(lengths)
    (out / "rows.json").write_text(json.dumps({"": rows}, indent=1), encoding="utf-8")


def compare_numbers(
    out: Path,
    *,
    progress: Progress,
    cloud: Checkpoint,
    workload: Workload,
    shallow: int,
    timing: Architecture,
    numbers: tuple[Number, ...] = NUMBERS,
    accelerator: str = "cpu",
) -> None:
    """How often a split target whose hidden states travel in each of these numbers writes what the whole one writes;
    rows.json, a table for an exhibit. `shallow` counts layers of `timing`.
    """
    import json

    from serving.studies.hidden_precision import compare

    rows = compare(cloud, workload, shallow, timing.layers, numbers, accelerator, progress)
    (out / "rows.json").write_text(json.dumps({"": rows}, indent=1), encoding="utf-8")
