"""The stages of serving that configuration may name: serve, record and fit outcomes, and small studies."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.core.decoding import Decoding
from serving.core.scores import Scorer, by_name, reading_hidden_states
from serving.deployment.prompt_lengths import check_prompts
from serving.deployment.setup import Setup
from serving.engines.models import Checkpoint
from serving.hardware.architecture import Architecture
from serving.hardware.payload_size import HIDDEN_DTYPES, HiddenDtype
from serving.hardware.replica_packing import ReplicaPacking
from serving.learned.medusa import MedusaHeads
from serving.log.recording import RecordingOptions
from serving.outcomes.outcomes import PlannedOutcomes
from serving.policy.policy import NO_REQUIREMENTS, Policy
from serving.policy.slots.draft import TreeDraft
from serving.policy.slots.early_exit import EarlyExit
from serving.policy.slots.lookahead import Lookahead, TreeLookahead
from serving.policy.stateless import check_slots
from serving.progress import Progress
from serving.runtimes.runtime import Runtime
from serving.runtimes.simulated import Simulated
from serving.workload.workload import Workload

if TYPE_CHECKING:
    from serving.deployment.queries import Query
    from serving.drivers.observer import Observer

RUNS_FILE = "runs.json"
"""When the runs of several policies began and ended, in UTC, and the load average as each began."""


def check_serve(*, setup: Setup, runtime: Runtime, **_: object) -> None:
    """Raises ValueError for a setup that this runtime cannot run, a data set that cannot be read or is too small, and
    an option of decoding that has no effect.
    """
    _check_serves(setup, runtime)
    if not isinstance(runtime, Simulated):  # whose recording reads these options
        setup.check_decoding_used()


def _check_serves(setup: Setup, runtime: Runtime) -> None:
    check_slots(setup.policy)
    runtime.check(setup)
    models = () if isinstance(runtime, Simulated) else (setup.pair.cloud, setup.pair.device)
    check_prompts(setup.workload, *models)


def unread_serve(*, setup: Setup, runtime: Runtime, **_: object) -> tuple[object, ...]:
    """Artifacts of the setup that `serve` does not read: all of the pair where tokens are looked up in what no stage
    makes.
    """
    if isinstance(runtime, Simulated) and not isinstance(runtime.outcomes, PlannedOutcomes):
        return setup.pair.artifacts
    return setup.unread_artifacts


def check_record_outcomes(
    *, workload: Workload, device: Checkpoint, cloud: Checkpoint, max_draft_len: int = 8, max_prompts: int = 480,
    **_: object,
) -> None:  # fmt: skip
    """Raises ValueError for a data set that cannot be read, is too small, or has no text, for a prompt that is too
    long, and limits below 1.
    """
    for name, value in (("max_draft_len", max_draft_len), ("max_prompts", max_prompts)):
        if value < 1:
            raise ValueError(f"{name} is {value}; give 1 or more")
    check_prompts(workload, cloud, device, with_text=True)


def serve(
    out: Path,
    *,
    progress: Progress,
    setup: Setup,
    runtime: Runtime,
    record: RecordingOptions | None = None,
    packing: ReplicaPacking | None = None,
    repeat: int = 0,  # noqa: ARG001
    accelerator: str = "cpu",
) -> None:
    """Serves the workload, and writes requests.parquet, timeline.parquet, chunks.parquet, batches.parquet and
    meta.json.

    `record` adds the event log and a trace to look at. `repeat` only distinguishes runs of one configuration on
    the wall clock. `packing` is the cloud's unit of cost. `accelerator` is the torch device of the models.
    """
    from serving.metrics.batch_timing import BatchObserver
    from serving.metrics.utilisation import UtilisationObserver
    from serving.runtimes import run_results

    # Not in the plan: `workload=synthetic` plans the models of any pair (`make smollm2`).
    setup.workload.check_dataset(with_text=not isinstance(runtime, Simulated))
    with (record or RecordingOptions()).start(out, {}) as recorded:
        batches = BatchObserver()
        utilisation = UtilisationObserver() if setup.hardware.tiers else None
        own: list[Observer] = [batches] if setup.uses_target and runtime.detail else []
        own += [utilisation] if utilisation else []
        served = runtime.serve(setup, accelerator, progress, (*recorded.observers, *own))
        recorded.add_facts(layers=served.target_layers, timeout_s=served.timeout_s)
    run_results.write_results(out, setup, runtime, served, packing, batches.batches, utilisation)


def check_serve_policies(*, setup: Setup, policies: Mapping[str, Policy], runtime: Runtime, **_: object) -> None:
    """Raises ValueError for a policy that cannot serve this setup on this runtime, and as `check_serve`; an option of
    decoding has an effect on some of them.
    """
    for each in _setups(setup, policies).values():
        _check_serves(each, runtime)


def serve_policies(
    out: Path,
    *,
    progress: Progress,
    setup: Setup,
    policies: Mapping[str, Policy],
    runtime: Runtime,
    repeats: int = 1,
    after: Path | None = None,  # noqa: ARG001
    accelerator: str = "cpu",
) -> None:
    """Serves the workload under each of `policies` in place of the setup's own, all of them `repeats` times in turn, so
    that a disturbance of the machine meets few repeats of any one policy.

    POLICY/REPEAT is a folder as `serve` writes it; runs.json has the times. `after` is an artifact that must exist
    before the first run begins, such as predictions of it.
    """
    setups, runs = _setups(setup, policies), list[dict[str, Any]]()
    for repeat in range(repeats):
        for name, own in setups.items():
            label = f"{name}, run {repeat + 1} of {repeats}"
            folder, began, load = out / name / str(repeat), datetime.now(UTC), os.getloadavg()[0]
            folder.mkdir(parents=True)
            serve(folder, progress=_labelled(progress, label), setup=own, runtime=runtime, accelerator=accelerator)
            ended = datetime.now(UTC)
            runs.append({"policy": name, "repeat": repeat, "began": began.isoformat(), "ended": ended.isoformat(),
                         "load": load})  # fmt: skip
    (out / RUNS_FILE).write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


def _setups(setup: Setup, policies: Mapping[str, Policy]) -> dict[str, Setup]:
    return {name: replace(setup, policy=replace(policy, name=name)) for name, policy in policies.items()}


def _labelled(progress: Progress, label: str) -> Progress:
    return lambda done, total, note: progress(done, total, f"{label}: {note}")


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
    medusa: MedusaHeads | None = None,
    tree: TreeDraft | None = None,
    lookahead: Lookahead | None = None,
    scorers: tuple[Scorer, ...] = (),
    timed_architecture: Architecture | None = None,
    max_draft_len: int = 8,
    max_prompts: int = 480,
    accelerator: str = "cpu",
) -> None:
    """Records what both models write at each position of each answer; writes a trace that a simulation reads.

    `policy` None: the target's own greedy text; else the text that this policy writes under `seed`, where its placement
    splits the target as it would split `timed_architecture` (None: one of as many layers as the target has), because
    hidden states are rounded wherever it is split. Drafts leave layers early as the policy's do, or without one as
    `early_exit` says; `medusa` are heads of the target that propose trees of drafts; the drafter's trees are recorded
    if `tree`, or the policy, grows any, and those that `lookahead`, or the policy's, grows ahead. The scores that
    `scorers`, and those of the policy, compute from a draft's hidden state are kept. `max_draft_len` is how many tokens
    the drafter continues from each position: the longest window that the trace answers exactly; no prompt is recorded
    twice, and `max_prompts` of them at most: a simulation deals further requests onto them. Raises ValueError for
    sampled text, and for a scorer of another model.
    """
    from serving.deployment.model_loading import load_models, make_queries
    from serving.outcomes.record import TraceRecorder
    from serving.outcomes.replayed import check_greedy
    from serving.outcomes.trace import TOKENIZER_DIR, save_trace

    check_greedy(decoding)
    needed = policy.engine_requirements if policy else NO_REQUIREMENTS
    scored = by_name((*needed.scorers.values(), *scorers))
    needed = replace(needed, scorers=scored, drafter=True).with_decoding(decoding)
    models = load_models(device, cloud, accelerator, needed)
    once: dict[str, Query] = {}
    for query in make_queries(workload, decoding, seed, 1, models.tokenizer):
        once.setdefault(query.prompt.id, query)
    asked = list(once.values())[:max_prompts]
    made_from = {
        "pair": f"{device.display_name} + {cloud.display_name}",
        "data": f"{workload.dataset.name}, {len(asked)} prompts",
    }
    rule = (policy.early_exit if policy else early_exit).layer_exit
    layers = timed_architecture.layers if timed_architecture else None
    scored = reading_hidden_states(needed.scorers)
    if policy:
        tree, lookahead = policy.draft if isinstance(policy.draft, TreeDraft) else None, policy.lookahead
    ahead = tree is not None and isinstance(lookahead, TreeLookahead)
    recorder = TraceRecorder(models, policy, seed, max_draft_len, made_from, rule, medusa, tree, ahead, scored, layers)
    save_trace(out, recorder.record(asked, work, progress))
    models.tokenizer.hf.save_pretrained(out / TOKENIZER_DIR)


def fit_outcomes(out: Path, *, trace: Path, seed: int = 0) -> None:
    """Fits an acceptance model to a recorded trace; writes it with its goodness of fit."""
    from serving.outcomes import fit, fitted
    from serving.outcomes.trace import load_trace

    fitted.save(out, fit.fit_acceptance(load_trace(trace), seed))


def pack_replicas(out: Path, *, packing: ReplicaPacking, architectures: tuple[Architecture, ...]) -> None:
    """Packing factors of several models (Synera, Table 3); writes rows.json, a table for an exhibit."""
    rows = {}
    for architecture in architectures:
        packed = packing.best_packing(architecture)
        value = packed.num_replicas / packing.best_packing(packing.reference).num_replicas
        rows[architecture.name] = {
            "packing_factor": value,
            "copies": packed.num_replicas,
            "chips": packed.chips_per_replica,
            "bound": packed.limited_by,
        }
    (out / "rows.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


def check_measure_prefill_interference(
    *, prompt_tokens: int = 2048, chunk_sizes: tuple[int, ...] = (), **_: object
) -> None:
    """Raises ValueError for chunks that are no length, and for more of them than steps are compared."""
    from serving.studies.prefill_interference import PrefillInterference

    for chunk in chunk_sizes:
        if chunk < 1 or chunk * PrefillInterference.num_steps < prompt_tokens:
            raise ValueError(
                f"chunk_sizes has {chunk}; {PrefillInterference.num_steps} steps are compared, so give at least "
                f"{-(-prompt_tokens // PrefillInterference.num_steps)} for a prompt of {prompt_tokens} tokens"
            )


def measure_prefill_interference(
    out: Path,
    *,
    setup: Setup,
    prompt_lengths: tuple[int, ...] = (),
    prompt_tokens: int = 2048,
    chunk_sizes: tuple[int, ...] = (),
) -> None:
    """Measures how prompts of these `prompt_lengths`, or one prompt in these `chunk_sizes`, delay nine decoding
    sessions. Writes rows.json, a table for an exhibit (HAT, Fig. 1c and 1d).
    """
    from serving.studies.prefill_interference import PrefillInterference

    study = PrefillInterference(setup)
    rows = study.by_chunk_size(prompt_tokens, chunk_sizes) if chunk_sizes else study.by_prompt_length(prompt_lengths)
    (out / "rows.json").write_text(json.dumps({"": rows}, indent=1), encoding="utf-8")


def draw_prefill_interference(
    out: Path,
    *,
    progress: Progress,
    setup: Setup,
    errors: Path,
    prompt_lengths: tuple[int, ...] = (),
    chunk_sizes: tuple[int, ...] = (),
    draws: int = 200,
) -> None:
    """The table of `measure_prefill_interference` on each draw. Raises ValueError for a bad file of `errors`."""
    from serving.hardware.clock_draw import drawn_testbed
    from serving.hardware.error_pools import ClockErrors
    from serving.studies.clock_draws import draw_folder, note_drawn

    known = ClockErrors.read(errors)
    note_drawn(out, setup.hardware.every_fleet, known)
    for draw in range(draws):
        drawn = setup.on_clock(drawn_testbed(setup.hardware, known, draw))
        folder = draw_folder(out, draw)
        measure_prefill_interference(folder, setup=drawn, prompt_lengths=prompt_lengths, chunk_sizes=chunk_sizes)
        progress(draw + 1, draws, "draws")


def draw_packing(
    out: Path, *, progress: Progress, packing: ReplicaPacking, architectures: tuple[Architecture, ...], errors: Path,
    draws: int = 200,
) -> None:  # fmt: skip
    """The table of `pack_replicas` on each draw. Raises ValueError for a bad file of `errors`."""
    from serving.hardware.clock_draw import drawn_fleet
    from serving.hardware.error_pools import ClockErrors
    from serving.studies.clock_draws import draw_folder, note_drawn

    known = ClockErrors.read(errors)
    note_drawn(out, [packing.cluster], known)
    for draw in range(draws):
        drawn = replace(packing, cluster=drawn_fleet(packing.cluster, known, draw))
        pack_replicas(draw_folder(out, draw), packing=drawn, architectures=architectures)
        progress(draw + 1, draws, "draws")


def compare_hidden_precisions(
    out: Path,
    *,
    progress: Progress,
    cloud: Checkpoint,
    workload: Workload,
    shallow: int,
    timing: Architecture,
    precisions: tuple[HiddenDtype, ...] = HIDDEN_DTYPES,
    accelerator: str = "cpu",
) -> None:
    """Compares the text of a split target, whose hidden states are sent in each of `precisions`, with the unsplit
    one's. Writes rows.json, a table for an exhibit. `shallow` counts layers of `timing`.
    """
    from serving.studies.hidden_precision import compare_precisions

    rows = compare_precisions(cloud, workload, shallow, timing.layers, precisions, accelerator, progress)
    (out / "rows.json").write_text(json.dumps({"": rows}, indent=1), encoding="utf-8")
