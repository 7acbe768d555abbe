"""What packed weights change: texts, drafts, verdicts and scores with packing and without, in one run.

`python -m benchmarks.packing`: 240 prompts of the embedded pair, greedy, are served under each policy of `POLICIES`,
and each model alone, as it serves, drafts behind each prompt. Without packing all texts, drafts, verdicts and scores
must equal, byte for byte, those of models with layers that were never fused. What packing changes is printed.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias
from unittest.mock import patch

from benchmarks.pair import served_setup
from serving.deployment.model_loading import load_models, make_queries
from serving.messages import DraftDecision, DraftOutcome, DraftStopRule, DraftWork
from serving.progress import silent
from serving.runtimes.emulated import Emulated

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query
    from serving.deployment.setup import Setup
    from serving.hardware.executor import Engine
    from serving.metrics.recorder import SessionRecord
    from serving.runtimes.runtime import RunResult

POLICIES = ("sled", "synera", "wisp")
PROMPTS = 240
DRAFT_TOKENS = 8
SCORES = ("confidence", "margin")
PACK_WEIGHTS = "serving.engines.torch.packed_layers.pack_weights"
"""What packs weights, and fuses layers."""
DecisionPair: TypeAlias = tuple[DraftDecision | None, DraftDecision | None]
Drafts: TypeAlias = Sequence[DraftOutcome]
Scores: TypeAlias = Mapping[str, tuple[float, ...]]


def main() -> bool:
    setups = [served_setup(f"policy={policy}", f"workload.num_prompts={PROMPTS}") for policy in POLICIES]
    return all([*map(_compare, setups), _compare_models(setups[0])])


def _compare(setup: "Setup") -> bool:
    """Prints what packing changes in a served run; True if the run without it equals that of layers never fused."""
    packed, plain = _serve(setup, True).records, _serve(setup, False).records
    pairs = [pair for name in plain for pair in _decision_pairs(packed[name], plain[name])]
    texts = sum(packed[name].tokens != plain[name].tokens for name in plain)
    drafts = sum(one is None or other is None or one.tokens != other.tokens for one, other in pairs)
    verdicts = sum(one is None or other is None or one.accepted != other.accepted for one, other in pairs)
    exact = _is_same(plain, _serve_unfused(setup).records)
    print(
        f"packed weights, {setup.policy.name}: {texts} of {len(plain)} texts, {drafts} of {len(pairs)} drafts and "
        f"{verdicts} of their verdicts differ; {_describe_scores(_scores_of_equal(pairs))}; {_describe_exact(exact)}"
    )
    return exact


def _serve(setup: "Setup", packed: bool) -> "RunResult":
    return Emulated().serve(_with_packing(setup, packed), "cpu", silent)


def _with_packing(setup: "Setup", packed: bool) -> "Setup":
    return replace(setup, decoding=replace(setup.decoding, packed_weights=packed))


def _serve_unfused(setup: "Setup") -> "RunResult":
    """As packed, of models that nothing packs or fuses."""
    with patch(PACK_WEIGHTS):
        return _serve(setup, True)


def _decision_pairs(packed: "SessionRecord", plain: "SessionRecord") -> Iterator[DecisionPair]:
    """The drafts of a session in turn; None where one run has no such draft."""
    return zip_longest(packed.draft_decisions, plain.draft_decisions)


def _scores_of_equal(pairs: Iterable[DecisionPair]) -> Iterator[tuple[Scores, Scores]]:
    """The scores of drafts that both runs wrote."""
    for one, other in pairs:
        if one and other and one.tokens == other.tokens:
            yield one.scores, other.scores


def _compare_models(setup: "Setup") -> bool:
    """Prints what packing changes in drafts that each model writes; True as of `_compare`."""
    packed, plain = _load(_with_packing(setup, True)), _load(_with_packing(setup, False))
    queries = make_queries(setup.workload, setup.decoding, setup.seed, setup.num_devices, plain.tokenizer)
    with patch(PACK_WEIGHTS):
        unfused = _load(_with_packing(setup, True))
    found = [
        _compare_drafts("device", *(_draft(models.device, queries) for models in (packed, plain, unfused))),
        _compare_drafts("cloud", *(_draft(models.cloud, queries) for models in (packed, plain, unfused))),
    ]
    return all(found)


def _compare_drafts(side: str, packed: Drafts, plain: Drafts, unfused: Drafts) -> bool:
    exact = _is_same(plain, unfused)
    equal = [(one.scores, other.scores) for one, other in zip(packed, plain, strict=True) if one.tokens == other.tokens]
    print(
        f"packed weights, the {side}'s model alone: {len(plain) - len(equal)} of {len(plain)} drafts differ; "
        f"{_describe_scores(equal)}; {_describe_exact(exact)}"
    )
    return exact


def _load(setup: "Setup") -> "LoadedModels":
    return load_models(setup.models.device, setup.models.cloud, "cpu", setup.engine_requirements)


def _draft(engine: "Engine", queries: "Sequence[Query]") -> Drafts:
    """What the model writes behind each prompt, with its scores."""
    rule, found = DraftStopRule(DRAFT_TOKENS), []
    for i, query in enumerate(queries):
        work = DraftWork(str(i), 0, tuple(query.request.prompt), rule, requested_scores=SCORES)
        outcome, _ = engine.execute(work)
        assert isinstance(outcome, DraftOutcome)
        found.append(outcome)
        engine.drop(str(i), None)
    return found


def _is_same(one: object, other: object) -> bool:
    """True for equal texts of both, in which each float has all of its bits, and -0.0 is not 0.0."""
    return repr(one) == repr(other)


def _describe_exact(exact: bool) -> str:
    return f"without packing {'equal to' if exact else 'OTHER THAN'} layers that were never fused"


def _describe_scores(pairs: Iterable[tuple[Scores, Scores]]) -> str:
    """How far the scores of equal drafts are apart."""
    apart = [abs(a - b) for one, other in pairs for name in one for a, b in zip(one[name], other[name], strict=True)]
    return f"{len(apart)} scores differ by {max(apart):.1e} at most" if apart else "no scores are asked for"


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
