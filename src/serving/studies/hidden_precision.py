"""The effect of rounding transmitted hidden states on the text: a split target against the same target unsplit."""

from collections.abc import Sequence
from dataclasses import replace

from serving.core.decoding import Decoding
from serving.deployment.model_loading import load_models, make_queries
from serving.engines.models import Checkpoint
from serving.hardware.payload_size import HiddenDtype, hidden_nbytes
from serving.outcomes.offline import run_untimed
from serving.outcomes.record import target_only
from serving.policy.policy import EngineRequirements, Policy
from serving.policy.slots.offload import AlwaysOffload
from serving.policy.slots.payload import HiddenStatePayload
from serving.policy.slots.placement import UShapedPlacement
from serving.policy.slots.prefill import WholePrefill
from serving.progress import Progress, silent
from serving.workload.workload import Workload


def split_target_policy(shallow: int, depth: int, layers: int) -> Policy:
    """The policy of the target alone, split after its share of `shallow` of `depth` layers."""
    kept = UShapedPlacement(shallow).device_layers(layers, depth)
    return replace(
        target_only(),
        name="split target",
        offload=AlwaysOffload(),
        prefill=WholePrefill("first"),
        payload=HiddenStatePayload("fp32"),
        placement=UShapedPlacement(kept),
    )


def compare_precisions(
    cloud: Checkpoint,
    workload: Workload,
    shallow: int,
    depth: int,
    precisions: Sequence[HiddenDtype],
    accelerator: str,
    progress: Progress,
) -> dict[HiddenDtype, dict[str, float]]:
    """Per precision: the share of answers equal to the unsplit target's, the share of tokens before the first
    difference, and the bytes of a token's hidden state.
    """
    models = load_models(cloud, cloud, accelerator)
    asked = make_queries(workload, Decoding(), 0, 1, models.tokenizer)
    whole = {name: record.tokens for name, record in run_untimed(target_only(), models, asked, 0, silent).items()}
    policy = split_target_policy(shallow, depth, models.cloud_layers)
    found: dict[HiddenDtype, dict[str, float]] = {}
    for i, precision in enumerate(precisions):
        models = load_models(cloud, cloud, accelerator, EngineRequirements(hidden_dtype=precision))
        records = run_untimed(policy, models, asked, 0, silent)
        same = [_common_prefix_len(record.tokens, whole[name]) for name, record in records.items()]
        full = [len(whole[name]) for name in records]
        found[precision] = {
            "equal_texts_share": sum(a == b for a, b in zip(same, full, strict=True)) / len(full),
            "equal_prefix_share": sum(same) / sum(full),
            "nbytes": float(hidden_nbytes(1, models.cloud.model.hidden_size, precision)),  # type: ignore[attr-defined]
        }
        progress(i + 1, len(precisions), precision)
    return found


def _common_prefix_len(tokens: Sequence[int], others: Sequence[int]) -> int:
    """The length of the common prefix of two texts; the whole length only if they are equal."""
    pairs = zip(tokens, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(others)))
