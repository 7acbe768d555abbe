"""What rounding hidden states on their way does to the text: a split target against the same one whole."""

from collections.abc import Sequence
from dataclasses import replace

from serving.core.decoding import Decoding
from serving.deployment.model_loading import open_models, queries
from serving.engines.models import Checkpoint
from serving.hardware.payload_size import Number, hidden_nbytes
from serving.outcomes.offline import play
from serving.outcomes.record import target_alone
from serving.policy.engine_requirements import Provision
from serving.policy.policy import Policy
from serving.policy.slots.offload import Always
from serving.policy.slots.payload import Hidden
from serving.policy.slots.placement import UShape
from serving.policy.slots.prefill import Whole
from serving.progress import Progress, silent
from serving.workload.workload import Workload


def split_target(shallow: int, depth: int, layers: int) -> Policy:
    """The target alone, split after its share of `shallow` of `depth` layers."""
    kept = UShape(shallow).kept(layers, depth)
    return replace(
        target_alone(), name="split target", offload=Always(), prefill=Whole("first"), exchange=Hidden("fp32"),
        placement=UShape(kept),
    )  # fmt: skip


def compare(
    cloud: Checkpoint, workload: Workload, shallow: int, depth: int, numbers: Sequence[Number], accelerator: str,
    progress: Progress,
) -> dict[Number, dict[str, float]]:  # fmt: skip
    """By number: the share of answers that are the whole target's token for token, of tokens before the first that is
    not, and bytes of a token's state.
    """
    models = open_models(cloud, cloud, accelerator)
    asked = queries(workload, Decoding(), 0, 1, models.tokenizer)
    whole = {name: record.tokens for name, record in play(target_alone(), models, asked, 0, silent).items()}
    policy = split_target(shallow, depth, models.cloud_layers)
    found: dict[Number, dict[str, float]] = {}
    for i, number in enumerate(numbers):
        models = open_models(cloud, cloud, accelerator, Provision(number=number))
        records = play(policy, models, asked, 0, silent)
        same = [_same(record.tokens, whole[name]) for name, record in records.items()]
        full = [len(whole[name]) for name in records]
        found[number] = {
            "same_texts": sum(a == b for a, b in zip(same, full, strict=True)) / len(full),
            "same_tokens": sum(same) / sum(full),
            "nbytes": float(hidden_nbytes(1, models.cloud.model.hidden, number)),  # type: ignore[attr-defined]
        }
        progress(i + 1, len(numbers), number)
    return found


def _same(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens two texts have in common from their beginning on; all of them only if they are equal."""
    pairs = zip(tokens, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(others)))
